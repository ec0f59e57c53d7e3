"""Calls that run a tool: start, wait, answer. The MCP server and the command line both come through here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitgate.server.answers import Progress, RunAnswer, run_answer
from bitgate.server.arguments import parse
from bitgate.server.call_rules import check_cancel, check_run
from bitgate.server.known import known_to
from bitgate.server.progress import OnProgress, Pacer
from bitgate.server.session import Session
from bitgate.store.records import Run
from bitgate.tools.registry import TOOLS


async def start(session: Session, name: str, arguments: Mapping[str, Any]) -> Run:
    """Checks the request and starts its run.

    Raises:
        RequestError: the request cannot be run; nothing was written.
        GateRefused: the session's role may not; nothing was written.
    """
    from bitgate.tools.runs.control import start_run

    tool = TOOLS.find(name)
    request = parse(tool.request, arguments)
    check_run(session, name, request)
    known = known_to(name, session.store)
    return await start_run(session.project, name, request, actor=session.who.text, known=known)


async def wait(
    session: Session, run_id: str, seconds: float | None, on_progress: OnProgress | None = None
) -> RunAnswer:
    """The run's answer after up to `seconds` (None: at its end). Giving up the wait does not end the run."""
    from bitgate.tools.runs.control import wait_run

    run = session.store.get_run(run_id)
    if run.state == "running":
        run = await wait_run(session.project, run_id, seconds, Pacer(on_progress) if on_progress else None)
    return answer(session, run)


async def cancel(session: Session, run_id: str) -> RunAnswer:
    """Ends the run, waits until it is ended, and answers with its state."""
    from bitgate.tools.runs.control import cancel_run

    check_cancel(session, session.store.get_run(run_id))
    return answer(session, await cancel_run(session.project, run_id, actor=session.who.text))


def answer(session: Session, run: Run) -> RunAnswer:
    from bitgate.tools.runs.control import progress_of

    evidence = session.store.get_evidence(run.evidence_id) if run.evidence_id else None
    note = progress_of(session.project, run.id) if run.state == "running" else None
    return run_answer(run, evidence, Progress(done=note.done, total=note.total, message=note.message) if note else None)


def rest_of(answer: RunAnswer) -> str:
    """Where the whole of an answer is that was cut."""
    if answer.evidence_id:
        return f"the whole is bitgate://evidence/{answer.evidence_id}"
    return f"the rest is in bitgate://runs/{answer.run_id}/log"
