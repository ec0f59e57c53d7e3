"""Who may make a call, asked of the gates before anything is written: the same for MCP, HTTP and the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import JsonValue

from bitgate.gates.baseline import freeze_of
from bitgate.gates.errors import GateError
from bitgate.gates.roles import Call, SideInCall, check_call
from bitgate.server.session import Session
from bitgate.store.records import Run
from bitgate.tools.config.project import Project
from bitgate.tools.registry import ToolRequest

NOT_SIDES: Final = frozenset({"model", "workload", "check", "name", "captures", "note", "options"})
"""Fields whose text may look like a side's name and is not one."""


def check_run(session: Session, tool: str, request: ToolRequest) -> None:
    """Nothing, when the session's role may start this run.

    Raises:
        GateRefused: who may, and what to do.
    """
    from bitgate.server.gate_today import side_today
    from bitgate.server.gate_tools import GateRefused

    project, freeze = session.project, freeze_of(session.store)
    frozen = freeze.digests if freeze else {}
    sides = []
    for name, tried in sides_of(project, tool, request).items():
        side = side_today(project, session.store, name)
        digest = side.record.digest if side.record else None
        sides.append(SideInCall(name, side.owner, digest, configured=not tried))
    try:
        check_call(session.who, Call(tool, sides=tuple(sides), frozen=frozen))
    except GateError as error:
        raise GateRefused(error) from error


def check_cancel(session: Session, run: Run) -> None:
    """Nothing, when the session's role may end this run."""
    from bitgate.server.gate_tools import GateRefused

    try:
        check_call(session.who, Call("cancel_run", started_by=run.actor))
    except GateError as error:
        raise GateRefused(error) from error


def sides_of(project: Project, tool: str, request: ToolRequest) -> dict[str, bool]:
    """Side -> whether the call tries other options on it. Every configured side that the request names anywhere."""
    body = request.model_dump(mode="json")
    named = {text for field, value in body.items() if field not in NOT_SIDES for text in _texts(value)}
    if tool == "ab_benchmark" and not body.get("other") and not body.get("breakdown"):
        named.add("baseline")
    if tool == "slice_model" and not body.get("plan_only") and not body.get("side"):
        named.add("rollout")  # whose interpreter runs the slice's proofs
    options = body.get("options")
    tried = {name for name, given in options.items() if given} if isinstance(options, Mapping) else set()
    return {name: name in tried for name in project.config.side if name in named | tried}


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
