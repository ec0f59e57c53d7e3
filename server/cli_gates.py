"""`bitgate gates`, `decision`, `sign`, `waive`, `reviewers`: the board, and what people do about it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from bitgate.gates.errors import GateError
from bitgate.gates.status import GateStatus
from bitgate.gates.table import GATE_IDS
from bitgate.server.cli_output import show_json
from bitgate.server.sanitise import clean_text
from bitgate.server.session import Session, Workplace
from bitgate.tools.verdicts import EXIT_BY_VERDICT, EXIT_GATE_CLOSED

COLOURS: Final = {
    "passed": "green",
    "failed": "red",
    "stale": "yellow",
    "awaiting": "cyan",
    "open": "white",
    "locked": "bright_black",
}
KEY = click.option(
    "--key", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="SSH key to sign with, at once."
)


@contextmanager
def refusals() -> Iterator[None]:
    """What the gates refuse, as a message and exit 2."""
    try:
        yield
    except GateError as error:
        raise click.UsageError(clean_text(str(error))) from error


def session_of(start: Path) -> Session:
    return Session(Workplace(start), "cli", "observer")


def board_of(session: Session) -> Mapping[str, GateStatus]:
    from bitgate.gates.ledger import LedgerView
    from bitgate.server.gate_today import today

    return LedgerView(session.store).board(today(session.project, session.store))


# --- gates ------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("gate", required=False, metavar="[GATE]")
@click.option("--require", metavar="C3,C5", help="Exit 0 only when these are passed: 10 failed, 14 anything else.")
@click.option(
    "--no-waivers", is_flag=True, help="With --require: a gate that a waiver helped does not count as passed."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def gates(start: Path, gate: str | None, require: str | None, no_waivers: bool, as_json: bool) -> None:
    """Show the board of gates, or one GATE whole.

    In a GitHub job the board also becomes the step's summary.
    """
    from bitgate.gates.baseline import freeze_of
    from bitgate.server.gate_answers import board_answer, gate_answer

    session = session_of(start)
    wanted = required(require)
    board = board_of(session)
    if as_json:
        shown = gate_answer(board[known(gate)]) if gate else board_answer(dict(board), freeze_of(session.store))
        show_json(shown.model_dump(mode="json"))
    elif gate:
        show_gate(board[known(gate)])
    else:
        show_board(board)
    step_summary(board)
    sys.exit(exit_required(board, wanted, no_waivers))


def required(text: str | None) -> list[str]:
    return [known(name.strip()) for name in text.split(",") if name.strip()] if text else []


def known(gate: str) -> str:
    if gate not in GATE_IDS:
        raise click.UsageError(f"gate: got {gate[:40]!r}; allowed: {', '.join(GATE_IDS)}")
    return gate


def exit_required(board: Mapping[str, GateStatus], wanted: list[str], no_waivers: bool) -> int:
    """0 when all are passed, 10 when one failed, else 14 (DESIGN section 3)."""
    closed = [board[gate] for gate in wanted if board[gate].state != "passed" or (no_waivers and board[gate].waived)]
    for status in closed:
        waived = " with a waiver" if status.state == "passed" else ""
        click.echo(f"required: {status.gate.id} is {status.state}{waived}; {clean_text(status.next)}", err=True)
    if any(status.state == "failed" for status in closed):
        return EXIT_BY_VERDICT["fail"]
    return EXIT_GATE_CLOSED if closed else 0


def show_board(board: Mapping[str, GateStatus]) -> None:
    for status in board.values():
        click.secho(f"{status.gate.id:4}{status.state:9}", fg=COLOURS[status.state], nl=False)
        waived = " [waived]" if status.waived else ""
        click.echo(f" {status.gate.title:12}{waived} {clean_text(_line(status))}")


def _line(status: GateStatus) -> str:
    if status.state == "passed" and status.passed:
        return f"{status.passed.at} by {status.passed.actor}"
    if status.changes:
        return f"{status.changes[0]}; next: {status.next}"
    return f"next: {status.next}"


def show_gate(status: GateStatus) -> None:
    click.secho(f"{status.gate.id} {status.gate.title}: {status.state}", fg=COLOURS[status.state], bold=True)
    click.echo(f"  {status.gate.criterion}")
    for text in status.changes:
        click.echo(f"  changed: {clean_text(text)}")
    for match in status.matches:
        if match.seen:
            evidence = match.seen.evidence
            click.echo(f"  {match.need.key}: {evidence.id} {evidence.verdict} ({evidence.grade})")
    for item in status.missing:
        click.echo(f"  missing {item.key}: {clean_text(item.why)}\n    {clean_text(item.call)}")
    for item, vote in status.waived:
        click.echo(f"  waived {item.key} by {vote.signer}: {clean_text(vote.decision.reason)}")
    for shown in status.votes:
        outdated = shown.outdated or shown.vote.problem
        note = f" ({clean_text(outdated)})" if outdated else ""
        click.echo(f"  {shown.vote.choice} by {shown.vote.signer} at {shown.vote.at}{note}")


def step_summary(board: Mapping[str, GateStatus]) -> None:
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        from bitgate.gates.report import summary_table

        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"### bitgate gates\n\n{summary_table(board)}\n")


# --- decisions --------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("gate")
@click.option("--reject", is_flag=True, help="A rejection instead of an approval; needs --reason.")
@click.option("--reason", default="", help="For those who read it later.")
@KEY
@click.pass_obj
def decision(start: Path, gate: str, reject: bool, reason: str, key: Path | None) -> None:
    """Print what a reviewer signs for GATE: exactly what is there now.

    \b
        bitgate decision C1 > d.json
        ssh-keygen -Y sign -n bitgate -f ~/.ssh/id_ed25519 d.json
        bitgate sign d.json --signature d.json.sig
    """
    _decide(start, gate, "reject" if reject else "approve", reason, (), key)


@click.command()
@click.argument("gate")
@click.option("--reason", required=True, help="Why; it stays visible.")
@click.option("--need", "needs", multiple=True, metavar="KEY", help="What is waived; default: everything missing.")
@KEY
@click.pass_obj
def waive(start: Path, gate: str, reason: str, needs: tuple[str, ...], key: Path | None) -> None:
    """Print a waiver for GATE to be signed, or sign it at once with --key.

    A waiver is a reviewer's signature with a reason. It holds for today's sides and models only, and stays visible.
    """
    _decide(start, gate, "waive", reason, needs, key)


def _decide(start: Path, gate: str, choice: str, reason: str, needs: tuple[str, ...], key: Path | None) -> None:
    from bitgate.gates import decisions
    from bitgate.gates.rows import pretty
    from bitgate.server.gate_today import today

    session = session_of(start)
    with refusals():
        now = today(session.project, session.store)
        made = decisions.decision_for(session.store, known(gate), now, choice, reason, needs)  # type: ignore[arg-type]
        if key is None:
            click.echo(pretty(made), nl=False)
            return
        signed = decisions.record(session.store, pretty(made), decisions.sign_with(made, key), now)
    click.echo(f"{signed.signer} signed: {choice} {gate}", err=True)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--signature", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Default: FILE.sig")
@KEY
@click.pass_obj
def sign(start: Path, file: Path, signature: Path | None, key: Path | None) -> None:
    """Take a signed decision FILE (of `bitgate decision`, `waive` or `reviewers --change`) into the ledger."""
    from bitgate.gates import decisions, reviewers, sshsig
    from bitgate.server.gate_today import today

    session = session_of(start)
    with refusals():
        message = _text_of(file)
        armored = sshsig.sign(message, key) if key else _text_of(signature or Path(f"{file}.sig"))
        if '"kind": "reviewers"' in message:
            reviewers.change(session.store, message, armored, "person:cli")
            click.echo("the reviewer set is changed", err=True)
            return
        found = decisions.record(session.store, message, armored, today(session.project, session.store))
    click.echo(f"{found.signer} signed: {found.decision.choice} {found.decision.gate}", err=True)


def _text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path}: cannot be read as text") from error


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--change", is_flag=True, help="Print the change to FILE's set, for a reviewer in force to sign.")
@click.pass_obj
def reviewers(start: Path, file: Path | None, change: bool) -> None:
    """Show who may sign, or make FILE (an OpenSSH allowed_signers file) the first row of a new ledger.

    A name that begins with runner: is a machine, which may vouch for evidence bundles and never votes.
    """
    from bitgate.gates import reviewers as people

    session = session_of(start)
    with refusals():
        if file is None:
            click.echo(
                people.current(session.store) or "nobody: the reviewer set is a ledger's first row or none", nl=False
            )
        elif change:
            click.echo(people.propose_change(session.store, _text_of(file)), nl=False)
        else:
            people.found(session.store, _text_of(file), "person:cli")
            click.echo(f"reviewers: {', '.join(people.names(people.current(session.store)))}", err=True)
