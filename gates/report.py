"""The report of a ledger as Markdown, fit for a pull request. Its headings are those of the skill's report template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bitgate.gates.rows import Manifest
from bitgate.gates.status import GateStatus
from bitgate.store.chain import Head

MARKS = {"passed": "✅", "failed": "❌", "stale": "⚠️", "awaiting": "✍️", "open": "⬜", "locked": "🔒"}
HEADINGS = ("Gates", "What is missing", "Evidence", "Waivers and votes", "Baseline", "How to check this report")


@dataclass(frozen=True)
class Report:
    """What a report is made from."""

    board: Mapping[str, GateStatus]
    head: Head
    frozen: Manifest | None = None
    verified: str = ""
    """One sentence of `bitgate verify`, when it was run for this report."""


def markdown(report: Report) -> str:
    parts = [_title(report), _gates(report), _missing(report), _evidence(report), _votes(report), _baseline(report)]
    return "\n\n".join([*parts, _checking(report)]) + "\n"


def summary_table(board: Mapping[str, GateStatus]) -> str:
    """The board alone, for a CI step's summary."""
    rows = [f"| {s.gate.id} | {_text(s.gate.title)} | {_state(s)} | {_text(s.next)} |" for s in board.values()]
    return "\n".join(["| gate | | state | next |", "|---|---|---|---|", *rows])


def _title(report: Report) -> str:
    passed = [gate for gate, status in report.board.items() if status.state == "passed"]
    waived = [gate for gate, status in report.board.items() if status.state == "passed" and status.waived]
    more = f" ({', '.join(waived)} with a waiver)" if waived else ""
    return f"# Train-inference consistency\n\n**{len(passed)} of {len(report.board)} gates passed**{more}."


def _gates(report: Report) -> str:
    return f"## Gates\n\n{summary_table(report.board)}"


def _state(status: GateStatus) -> str:
    waived = ", waived" if status.waived else ""
    return f"{MARKS[status.state]} {status.state}{waived}"


def _missing(report: Report) -> str:
    lines = []
    for gate, status in report.board.items():
        if status.state in {"passed", "locked"}:
            continue
        lines += [f"- **{gate}** changed: {_text(text)}" for text in status.changes[:5]]
        lines += [
            f"- **{gate}** {item.key}: {_text(item.why)}. Next: `{_code(item.call)}`" for item in status.missing[:8]
        ]
    return "## What is missing\n\n" + ("\n".join(lines) or "Nothing.")


def _evidence(report: Report) -> str:
    rows = list(_evidence_rows(report.board))
    table = ["| gate | need | evidence | verdict | grade | summary |", "|---|---|---|---|---|---|", *rows]
    return "## Evidence\n\n" + ("\n".join(table) if rows else "None.")


def _evidence_rows(board: Mapping[str, GateStatus]) -> Iterator[str]:
    for gate, status in board.items():
        for match in status.matches:
            seen = match.counter or match.seen
            if seen:
                e = seen.evidence
                yield f"| {gate} | {match.need.key} | `{e.id}` | {e.verdict} | {e.grade} | {_text(e.summary, 160)} |"


def _votes(report: Report) -> str:
    lines = []
    for gate, status in report.board.items():
        for item, vote in status.waived:
            lines.append(
                f"- **{gate}** {item.key} waived by {_text(vote.signer)} at {vote.at}: {_text(vote.decision.reason)}"
            )
        for shown in status.votes:
            vote = shown.vote
            if vote.choice != "waive":
                outdated = f" (outdated: {_text(shown.outdated)})" if shown.outdated else ""
                invalid = f" (not valid: {_text(vote.problem)})" if vote.problem else ""
                reason = f": {_text(vote.decision.reason)}" if vote.decision.reason else ""
                lines.append(
                    f"- **{gate}** {vote.choice} by {_text(vote.signer)} at {vote.at}{reason}{outdated}{invalid}"
                )
    return "## Waivers and votes\n\n" + ("\n".join(lines) or "None.")


def _baseline(report: Report) -> str:
    manifest = report.frozen
    if manifest is None:
        return "## Baseline\n\nNo baseline is frozen."
    sides = "\n".join(
        f"- {name}: `{record.digest}` ({_text(record.engine)})" for name, record in manifest.sides.items()
    )
    return f"## Baseline\n\nVersion {manifest.version}, manifest `{manifest.digest}`.\n\n{sides}"


def _checking(report: Report) -> str:
    said = f"{report.verified}\n\n" if report.verified else ""
    return (
        f"## How to check this report\n\n{said}Chain head `{report.head.hash}` (row {report.head.seq}):\n\n"
        f"```\nbitgate verify --head {report.head.hash} --reviewers reviewers.pub\n```"
    )


def _text(text: object, limit: int = 300) -> str:
    """Text of others, inert in Markdown: one line, no table cells, no markup, no mentions, no direction tricks."""
    clean = " ".join(str(text).split())
    clean = re.sub(r"[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]", "", clean)
    clean = clean if len(clean) <= limit else f"{clean[: limit - 1]}…"
    return re.sub(r"([\\`*_{}\[\]<>()#|~!@&])", r"\\\1", clean)


def _code(text: str) -> str:
    return " ".join(text.split()).replace("`", "'")[:300]
