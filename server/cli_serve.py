"""`bitgate serve`"""

from __future__ import annotations

from pathlib import Path

import click

from bitgate.gates.roles import ROLES
from bitgate.gates.rows import Role
from bitgate.server.session import Session, Workplace, user_name


@click.command()
@click.option("--http", is_flag=True, help="Serve streamable HTTP instead of stdio.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8765, show_default=True, help="Port to listen on; 0 picks a free one.")
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="Also answer to this Host header, such as a proxy's name."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Lines `NAME ROLE TOKEN` for HTTP clients; mode 600. BITGATE_TOKEN holds a single one.",
)
@click.option("--actor", default=None, help="Name written beside what a stdio client starts; default: the user's.")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="consistency",
    show_default=True,
    envvar="BITGATE_ROLE",
    help="What a stdio client may do; over HTTP its token says.",
)
@click.pass_obj
def serve(
    start: Path,
    http: bool,
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    token_file: Path | None,
    actor: str | None,
    role: Role,
) -> None:
    """Serve the tools over MCP, on stdio or HTTP.

    stdio is what an MCP client starts itself. HTTP listens on loopback unless told otherwise, never without a token.
    """
    from bitgate.server.logging_setup import configure_logging

    configure_logging()
    session = Session(Workplace(start), actor or f"stdio:{user_name()}", role)
    if http:
        _serve_http(session, host, port, allow_host, token_file)
    else:
        _serve_stdio(session)


def _serve_stdio(session: Session) -> None:
    from bitgate.server.app import build_server
    from bitgate.server.stdio import run_stdio

    run_stdio(build_server(session))


def _serve_http(session: Session, host: str, port: int, hosts: tuple[str, ...], token_file: Path | None) -> None:
    from bitgate.server.http import Address, bound, http_server, url
    from bitgate.server.tokens import LedgerTokens, Verifier, credentials_from_env, credentials_from_file

    fixed = [*(credentials_from_file(token_file) if token_file else []), *credentials_from_env()]
    address = Address(host, port, hosts)
    with bound(address) as listening:
        server = http_server(session, address, Verifier(fixed, LedgerTokens(session.workplace)), listening)
        click.echo(f"bitgate: MCP on {url(address, listening.getsockname()[1])}", err=True)
        server.run(sockets=[listening])
