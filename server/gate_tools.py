"""The gate tools of the MCP server. They read, submit and propose; none of them can sign."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, JsonValue, StringConstraints

from bitgate.gates.baseline import freeze_of, propose
from bitgate.gates.errors import GateError
from bitgate.gates.ledger import LedgerView
from bitgate.gates.rows import GateId, digest_of
from bitgate.gates.submit import submit
from bitgate.server.answers import fitted
from bitgate.server.gate_answers import BaselineAnswer, BoardAnswer, baseline_answer, board_answer, gate_answer
from bitgate.server.gate_today import today
from bitgate.server.ledger_tools import EvidenceId, LedgerTool
from bitgate.server.progress import OnProgress
from bitgate.server.session import Session
from bitgate.tools.errors import BitgateError
from bitgate.tools.registry import ToolRequest


class GateRefused(BitgateError):
    """What the gates refuse, as an error of the server; `code` is theirs."""

    def __init__(self, error: GateError) -> None:
        self.code = error.code
        super().__init__(str(error))


class GetGates(ToolRequest):
    gate: GateId | None = Field(default=None, description="One gate whole; leave out for the board")


class SubmitGate(ToolRequest):
    gate: GateId = Field(description="The gate to evaluate on today's evidence, C0 to C10")


class ProposeBaseline(ToolRequest):
    tuning: Annotated[list[EvidenceId], Field(max_length=200)] = Field(
        default=[], description="ids of the ab_benchmark evidence between candidates: what was tried, and what won"
    )
    workload: str | None = Field(default=None, description="Workload it was tuned on; default: the only one")
    note: Annotated[str, StringConstraints(max_length=2000)] = Field(
        default="", description="For the person who decides"
    )


async def get_gates(session: Session, request: GetGates, on_progress: OnProgress | None) -> dict[str, JsonValue]:
    view = LedgerView(session.store)
    board = view.board(today(session.project, session.store))
    if request.gate is None:
        return fitted(board_answer(board, freeze_of(session.store)), "get_gates(gate=…) for one of them")
    return fitted(gate_answer(board[request.gate], state=session.project.state), f"bitgate://gates/{request.gate}")


async def submit_gate(session: Session, request: SubmitGate, on_progress: OnProgress | None) -> dict[str, JsonValue]:
    try:
        found = submit(session.store, request.gate, today(session.project, session.store), session.who)
    except GateError as error:
        raise GateRefused(error) from error
    answer = gate_answer(found.status, "submission", session.project.state).model_copy(
        update={"recorded": found.entry is not None}
    )
    return fitted(answer, f"bitgate://gates/{request.gate}")


async def propose_baseline(
    session: Session, request: ProposeBaseline, on_progress: OnProgress | None
) -> dict[str, JsonValue]:
    project = session.project
    workload = project.workload(request.workload) if project.config.workload else None
    try:
        proposed = propose(
            session.store,
            today(project, session.store),
            session.who,
            workload=workload.name if workload else "",
            workload_digest=digest_of(workload.config.model_dump(mode="json")) if workload else "",
            tuning=request.tuning,
            note=request.note,
        )
    except GateError as error:
        raise GateRefused(error) from error
    return fitted(baseline_answer(proposed), "bitgate://gates/C1")


GATE_TOOLS: Final = (
    LedgerTool(
        "get_gates",
        "See the gates",
        "The board of gates C0-C10: state of each, what blocks it, what changed since it passed, and the call that "
        "would produce what is missing. gate=C5 shows one whole: criterion, evidence, votes.",
        GetGates,
        BoardAnswer,
        get_gates,
    ),
    LedgerTool(
        "submit_gate",
        "Submit a gate",
        "Evaluates a gate over the ledger's evidence and today's configuration, and records pass or fail with the "
        "evidence used. When it does not pass, says exactly what is missing and which call would produce it. Gates C1, "
        "C9 and C10 also need a person's signature, which no tool can give.",
        SubmitGate,
        BoardAnswer,
        submit_gate,
        read_only=False,
    ),
    LedgerTool(
        "propose_baseline",
        "Propose the baseline",
        "Proposes side baseline as it is configured now, with its provenance, tuning record and noise floor, as the "
        "next version (role baseline). A person freezes it by signing C1; afterwards nobody changes it.",
        ProposeBaseline,
        BaselineAnswer,
        propose_baseline,
        read_only=False,
    ),
)
