"""Gates and roles as MCP resources, and the prompts that start an agent or a reviewer."""

from __future__ import annotations

from typing import Annotated, Final

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.server.mcpserver.prompts.base import Message, UserMessage
from pydantic import Field

from bitgate.gates.ledger import LedgerView
from bitgate.gates.table import BY_ID, GATE_IDS, GATES
from bitgate.server.gate_answers import gate_answer
from bitgate.server.gate_today import today
from bitgate.server.resources import readable
from bitgate.server.sanitise import clean_text
from bitgate.server.session import Session

BOARD: Final = "bitgate://gates"
GATE: Final = "bitgate://gates/{id}"


def add_gate_resources(server: MCPServer[None], session: Session) -> None:
    @server.resource(BOARD, name="gates", title="Gates C0-C10", mime_type="text/markdown")
    def gates() -> str:
        """What each gate requires: criterion, evidence, prerequisites, signature; and its state now."""
        with readable("gates"):
            board = LedgerView(session.store).board(today(session.project, session.store))
            return clean_text(
                "\n\n".join(f"{_described(gate.id)}\n\nNow: **{board[gate.id].state}**" for gate in GATES)
            )

    @server.resource(GATE, title="One gate", mime_type="application/json")
    def gate(id: str) -> str:
        """One gate whole: state, evidence, what is missing, votes."""
        if id not in BY_ID:
            raise ResourceNotFoundError(f"gates are {', '.join(GATE_IDS)}")
        with readable("gates"):
            status = LedgerView(session.store).board(today(session.project, session.store))[id]
            return clean_text(gate_answer(status).model_dump_json(indent=1))


def _described(gate_id: str) -> str:
    gate = BY_ID[gate_id]
    lines = [f"## {gate.id} {gate.title}", "", gate.criterion, ""]
    for need in gate.needs:
        check = f" {need.check}" if need.check else ""
        about = ", ".join(filter(None, [*need.sides, f"{need.model} model" if need.model else "", need.grade]))
        lines.append(f"- `{need.key}`: {need.what} ({need.tool}{check}; {about})")
    lines += [f"- condition `{name}`" for name in gate.conditions]
    if gate.prerequisites:
        lines.append(f"- after {', '.join(gate.prerequisites)}")
    if gate.signature:
        lines.append(f"- a person signs: {gate.signed_by}")
    return "\n".join(lines)


def gates_text() -> str:
    """Every gate as Markdown, from the table; docs and the skill carry the same text."""
    return "\n\n".join(_described(gate.id) for gate in GATES) + "\n"


def add_prompts(server: MCPServer[None]) -> None:
    @server.prompt(name="baseline_agent", title="Work as the baseline agent")
    def baseline_agent() -> list[Message]:
        """Make the baseline fast, honestly, and propose it."""
        return [UserMessage(BASELINE_AGENT)]

    @server.prompt(name="consistency_agent", title="Work as the consistency agent")
    def consistency_agent() -> list[Message]:
        """Walk the gates from C0 on until rollout and trainer agree to the last bit."""
        return [UserMessage(CONSISTENCY_AGENT)]

    @server.prompt(name="review", title="Prepare a person's decision")
    def review(gate: Annotated[str, Field(description="C0 to C10")]) -> list[Message]:
        """Sum up a gate for the person who decides about it."""
        return [UserMessage(REVIEW.format(gate=gate if gate in BY_ID else "C1"))]


BASELINE_AGENT: Final = """\
You are the baseline agent of bitgate. Your side is `baseline` (and other sides that you own); the consistency \
agent's sides are not yours to run. Make the baseline as fast as an honest team would: try one knob at a time \
and compare candidates with ab_benchmark, so that each trial is on record. Nothing batch-invariant may be active \
in it. When no knob helps any more: check_provenance(side="baseline"), an A/A run, ab_benchmark(side="baseline", \
breakdown=true), then propose_baseline(tuning=[the ids of your A/B evidence]) and submit_gate(gate="C1"). A \
person freezes it; you cannot, and after that nobody changes it. A configuration change is a person's edit of \
bitgate.toml: say which lines you want and why. Call get_gates first."""

CONSISTENCY_AGENT: Final = """\
You are the consistency agent of bitgate. Call get_gates, take the first gate that is not passed, and produce \
exactly what it says is missing; then submit_gate. Never look for a way around a fail: a fail under today's \
digests stands until what failed changes. After a fail of run_compare call bisect_layer, fix the first operator \
that differs, and run the check again. Options tried in a call are recorded and count for no gate until a person \
puts them into bitgate.toml: say which lines you want and why. Of the baseline you may run the frozen one with \
ab_benchmark and check_provenance, nothing else. C1, C9 and C10 need a person's signature, and a waiver is a \
person's too: when a gate awaits one, say so, name `bitgate review`, and go on with what is not blocked by it."""

REVIEW: Final = """\
Prepare the decision about gate {gate} for a person. Call get_gates(gate="{gate}"), and get_evidence for each \
piece it rests on. Say in at most fifteen lines: what the gate asks; what each piece shows, with its grade; what \
is weak, missing or waived; what changed since the last pass; what you would ask before signing. Do not \
recommend a signature because evidence is merely present. The person signs with `bitgate review` or `bitgate \
decision {gate}`; nothing you or your client can do is a signature."""
