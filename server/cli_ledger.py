"""`bitgate runs`, `bitgate evidence`, `bitgate verify`: the ledger, read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import click

from bitgate.server.answers import evidence_item, run_answer
from bitgate.server.cli_output import show_answer, show_json
from bitgate.server.sanitise import clean_text, shorten
from bitgate.server.session import Session, Workplace
from bitgate.store.records import RunState, Verdict
from bitgate.store.verify import VerifyReport
from bitgate.tools.verdicts import EXIT_INTERNAL

STATES = click.Choice(get_args(RunState))
VERDICTS = click.Choice(get_args(Verdict))
LIMIT = click.IntRange(1, 1000)


@click.command()
@click.option("--state", type=STATES, help="Only runs in this state.")
@click.option("--limit", type=LIMIT, default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def runs(start: Path, state: RunState | None, limit: int, as_json: bool) -> None:
    """List runs, newest first."""
    found = _session(start).store.list_runs(state=state, limit=limit)
    if as_json:
        show_json([run.model_dump(mode="json") for run in found])
        return
    for run in found:
        click.echo(f"{run.id}  {run.started_at}  {run.state:9}  {run.tool}  {run.evidence_id or run.error_code or ''}")


@click.command()
@click.argument("evidence_id", required=False, metavar="[ID]")
@click.option("--tool", help="Only this tool's.")
@click.option("--check", help="Only this check's.")
@click.option("--verdict", type=VERDICTS, help="Only this verdict.")
@click.option("--limit", type=LIMIT, default=20, show_default=True)
@click.option("--before", help="Only what is older than this id.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def evidence(
    start: Path,
    evidence_id: str | None,
    tool: str | None,
    check: str | None,
    verdict: Verdict | None,
    limit: int,
    before: str | None,
    as_json: bool,
) -> None:
    """Show one piece of evidence, or list the newest."""
    session = _session(start)
    if evidence_id:
        _show_one(session, evidence_id, as_json)
        return
    found = session.store.list_evidence(tool=tool, check=check, verdict=verdict, limit=limit, before=before)
    if as_json:
        show_json([evidence_item(one).model_dump(mode="json") for one in found])
        return
    for one in found:
        words = (
            f"{one.id}  {one.finished_at}  {one.verdict:12}  {one.tool} {one.check or ''}  {clean_text(one.summary)}"
        )
        click.echo(shorten(words, 200))


def _show_one(session: Session, evidence_id: str, as_json: bool) -> None:
    found = session.store.get_evidence(evidence_id)
    if as_json:
        show_json(found.model_dump(mode="json"))
        return
    show_answer(run_answer(session.store.get_run(found.run_id), found))


@click.command()
@click.option("--head", help="Hash of a head seen before, from git or CI: it must still be in the chain.")
@click.option(
    "--reviewers",
    "reviewers_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The allowed_signers file of the people you trust, from git or CI.",
)
@click.option("--artifacts/--no-artifacts", default=True, show_default=True, help="Also read and hash every artifact.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def verify(start: Path, head: str | None, reviewers_file: Path | None, artifacts: bool, as_json: bool) -> None:
    """Replay the ledger's hash chain, signatures and submissions, and name the first row that lies."""
    from bitgate.gates.verify import verify as verified

    pinned = reviewers_file.read_text(encoding="utf-8") if reviewers_file else None
    found = verified(Workplace(start).project.ledger, head=head, reviewers=pinned, artifacts=artifacts)
    lies = [{"row": lie.seq, "code": lie.code, "message": lie.message} for lie in found.problems]
    if as_json:
        replayed = {"votes": found.replay.votes, "submissions": found.replay.submissions, "lies": lies}
        show_json({**found.ledger.model_dump(mode="json"), "ok": found.ok, "replay": replayed})
    elif found.ok:
        click.echo(f"{words_of(found.ledger)}, {found.replay.votes} votes, {found.replay.submissions} submissions")
    else:
        for lie in found.problems[:20]:
            where = f"row {lie.seq}: " if lie.seq and not lie.message.startswith("row ") else ""
            click.echo(f"NOT OK: {where}{clean_text(lie.message)}")
    sys.exit(0 if found.ok else EXIT_INTERNAL)


def words_of(report: VerifyReport) -> str:
    """A verification in one line."""
    if report.ok:
        return f"ok: {report.rows} rows, {report.artifacts} artifacts, head {report.head}"
    return f"NOT OK: row {report.first_bad_seq}: {clean_text(str(report.problem))}"


def _session(start: Path) -> Session:
    return Session(Workplace(start), "cli")
