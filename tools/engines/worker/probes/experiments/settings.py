"""What the two found besides their arguments: variables of the environment, and torch's switches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..program import Program
from ..rows import rows_of, same_bits
from ..setting import PRECISION, unlike
from .case import Case, Report
from .replay import attempt


def told(case: Case, report: Report) -> None:
    """Names what differs, whether or not it turns out to matter."""
    for kind, word in (("environment", "the environment"), ("torch", "torch's switches")):
        for name, values in unlike(case.a.notes, case.b.notes, kind).items():
            said = (f"{side} {_said(value)}" for side, value in zip(case.names, values, strict=True))
            report.tried(f"{word}: {name}", ", ".join(said))


def switched(case: Case, report: Report) -> bool:
    """One side's program under the other side's switches, all of them and one by one."""
    unlike_ = unlike(case.a.notes, case.b.notes, "torch")
    for side, (program, rows) in enumerate(((case.a, case.shared.a), (case.b, case.shared.b))):
        wanted = case.outputs()[1 - side]
        values = {name: pair[1 - side] for name, pair in unlike_.items()}
        for names in [*([name] for name in values), *([list(values)] if len(values) > 1 else [])]:
            result = rows_of(attempt(_under(program, {n: values[n] for n in names})), len(program.rows))
            if result is None or not same_bits(result[rows], wanted):
                continue
            said = ", ".join(f"torch.{n} = {_said(values[n])}" for n in names)
            report.tried(f"{case.names[side]} with {said}", f"{case.names[1 - side]}'s bits")
            label = "precision" if any(part in n for n in names for part in PRECISION) else "reduction_order"
            return report.is_(label, f"{said} gives {case.names[1 - side]}'s bits on {case.names[side]}")
    return False


def _under(program: Program, values: dict[str, Any]) -> Program:
    given = program.notes["setting"]
    setting = {**given, "torch": {**given["torch"], **values}}
    return replace(program, notes={**program.notes, "setting": setting})


def _said(value: Any) -> str:
    return "unset" if value is None else str(value)
