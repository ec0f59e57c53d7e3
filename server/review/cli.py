"""`bitgate review`"""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from bitgate.server.cli_gates import session_of


@click.command()
@click.option("--port", default=0, show_default=True, help="Port on this machine; 0 picks a free one.")
@click.option(
    "--key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="SSH key to sign with on the page at once; without it the page hands out what to sign and takes it back.",
)
@click.option(
    "--reviewers",
    "reviewers_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The pinned allowed_signers file that the chain is verified against.",
)
@click.option("--open/--no-open", "opens", default=False, show_default=True, help="Open a browser.")
@click.pass_obj
def review(start: Path, port: int, key: Path | None, reviewers_file: Path | None, opens: bool) -> None:
    """Open the review page: the gates, what blocks each, the evidence, and where a person decides.

    Listens on loopback alone. The link that is printed works once, for ten minutes, in one browser.
    """
    from bitgate.server.logging_setup import configure_logging
    from bitgate.server.review.desk import ChainWatch, Desk
    from bitgate.server.review.serving import listening, serve

    configure_logging()
    session = session_of(start)
    pinned = reviewers_file.read_text(encoding="utf-8") if reviewers_file else None
    desk = Desk(session, ChainWatch(session.store.ledger.path, pinned), key)
    with listening(port) as (socket, door, url):
        click.echo(f"bitgate: review page at {url}", err=True)
        if opens:
            webbrowser.open(url)
        serve(desk, door, socket)
