"""`bitgate export`, `import`, `token`: what leaves a ledger, what enters it, and who may connect."""

from __future__ import annotations

from pathlib import Path

import click

from bitgate.gates.roles import ROLES
from bitgate.gates.table import GATE_IDS
from bitgate.server.cli_gates import board_of, refusals, session_of
from bitgate.server.sanitise import clean_text
from bitgate.server.session import user_name


@click.command()
@click.argument("out", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--evidence", "ids", multiple=True, metavar="ID", help="This piece of evidence; may be repeated.")
@click.option("--gate", "gates", multiple=True, type=click.Choice(GATE_IDS), help="What this gate rests on.")
@click.option("--all", "everything", is_flag=True, help="The newest 1000 pieces of evidence.")
@click.option(
    "--key",
    type=click.Path(path_type=Path, exists=True),
    help="SSH key that vouches for the bundle, so that it stays observed.",
)
@click.option("--report", is_flag=True, help="Print the report as Markdown instead (or write it to OUT).")
@click.option(
    "--statements",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write an in-toto statement of each pass here.",
)
@click.pass_obj
def export(
    start: Path,
    out: Path | None,
    ids: tuple[str, ...],
    gates: tuple[str, ...],
    everything: bool,
    key: Path | None,
    report: bool,
    statements: Path | None,
) -> None:
    """Write evidence with its artifacts as a bundle OUT, for `bitgate import` elsewhere; or a report, or statements."""
    if report:
        _report(start, out)
    if statements:
        _statements(start, statements)
    if report or statements:
        return
    if out is None:
        raise click.UsageError("OUT: name the bundle's file, such as evidence.zip")
    _bundle(start, out, ids, gates, everything, key)


def _report(start: Path, out: Path | None) -> None:
    from bitgate.gates.ledger import LedgerView
    from bitgate.gates.report import Report, markdown

    session = session_of(start)
    view = LedgerView(session.store)
    text = markdown(Report(board_of(session), view.head, view.frozen))
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


def _statements(start: Path, folder: Path) -> None:
    from bitgate.gates.statements import statement

    folder.mkdir(parents=True, exist_ok=True)
    for gate, status in board_of(session_of(start)).items():
        found = statement(status)
        if found is not None:
            (folder / f"{gate}.intoto.json").write_text(found.text(), encoding="utf-8")
            click.echo(f"{folder / gate}.intoto.json", err=True)


def _bundle(
    start: Path, out: Path, ids: tuple[str, ...], gates: tuple[str, ...], everything: bool, key: Path | None
) -> None:
    from bitgate.gates import bundles

    session = session_of(start)
    wanted = list(ids)
    if gates:
        board = board_of(session)
        wanted += [match.seen.evidence.id for gate in gates for match in board[gate].matches if match.seen]
    if everything:
        wanted += [evidence.id for evidence in session.store.list_evidence(limit=1000)]
    with refusals():
        done = bundles.export(session.store, out, wanted, key)
    click.echo(
        f"{out}: {done.rows} pieces of evidence, {'vouched for' if key else 'unsigned: attested where it goes'}",
        err=True,
    )


@click.command("import")
@click.argument("bundle", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.pass_obj
def import_(start: Path, bundle: Path) -> None:
    """Take in another ledger's evidence: as new rows, attributed, observed only where a known key vouched for it."""
    from bitgate.gates import importing

    with refusals():
        found = importing.take_in(session_of(start).store, bundle, f"person:{user_name()}")
    by = f"vouched for by {found.vouched_by}" if found.vouched_by else "vouched for by nobody, so attested"
    click.echo(f"{len(found.evidence)} pieces of evidence, {by}", err=True)
    for evidence in found.evidence:
        click.echo(f"{evidence.id}  {evidence.verdict}  {evidence.grade}  {clean_text(evidence.summary)[:120]}")


@click.group()
def token() -> None:
    """Tokens of HTTP clients. Each fixes a role; the ledger keeps only a digest."""


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What its holder may do.")
@click.pass_obj
def add(start: Path, name: str, role: str) -> None:
    """Make a token and print it, this once."""
    from bitgate.gates import tokens

    with refusals():
        click.echo(tokens.add(session_of(start).store, name, role, f"person:{user_name()}"))


@token.command("list")
@click.pass_obj
def list_(start: Path) -> None:
    """List tokens by name and role."""
    from bitgate.gates import tokens

    for info in tokens.listed(session_of(start).store):
        click.echo(f"{info.name:24} {info.role:12} {info.added_at}  {'revoked' if info.revoked else 'in use'}")


@token.command()
@click.argument("name")
@click.pass_obj
def revoke(start: Path, name: str) -> None:
    """Make a token work no more, at once."""
    from bitgate.gates import tokens

    with refusals():
        tokens.revoke(session_of(start).store, name, f"person:{user_name()}")
    click.echo(f"{name}: revoked", err=True)
