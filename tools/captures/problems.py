"""What is found wrong in rows, counted by code, with the first place of each."""

from __future__ import annotations

from dataclasses import dataclass, field

from bitgate.store.records import Reason
from bitgate.tools.reasons import reason


@dataclass
class Problems:
    """Codes of the reason table -> how many rows, and where the first one is."""

    found: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, code: str, count: int, first: str) -> None:
        if count:
            before, where = self.found.get(code, (0, first))
            self.found[code] = (before + count, where)

    def __contains__(self, code: str) -> bool:
        return code in self.found

    def __bool__(self) -> bool:
        return bool(self.found)

    def reasons(self) -> tuple[Reason, ...]:
        return tuple(
            reason(code, f"{first}" + (f" ({count} in all)" if count > 1 else ""))
            for code, (count, first) in sorted(self.found.items())
        )

    def counts(self) -> dict[str, int]:
        return {code: count for code, (count, _) in sorted(self.found.items())}
