"""What every rule of check_provenance takes and gives: a rank's facts and what was declared; a check an expectation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from bitgate.store.records import Reason, Verdict
from bitgate.tools.config.model import ExpectConfig
from bitgate.tools.provenance.files import Files
from bitgate.tools.provenance.observed import Observation
from bitgate.tools.reasons import REASONS, reason

WORKER: Final = "bitgate_worker"


@dataclass(frozen=True)
class Check:
    """One expectation or rule on one rank. `code` is empty for a pass, else a row of the reason table."""

    name: str
    expected: str
    observed: str
    code: str = ""
    rank: int = 0

    @property
    def verdict(self) -> Verdict:
        return REASONS[self.code].verdict if self.code else "pass"

    def reason(self) -> Reason:
        return reason(self.code, f"rank {self.rank}: {self.name}: expected {self.expected}; observed {self.observed}")


@dataclass(frozen=True)
class Declared:
    """What the configuration says of a side, and what bitgate itself would hand on from its own environment."""

    env: Mapping[str, str] = field(default_factory=dict)
    expect: ExpectConfig = ExpectConfig()
    inherited: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    """Module -> digest of its file in the tree that the user read; empty when no tree is named."""
    source_tree: str | None = None
    launcher: str = "local"


@dataclass(frozen=True)
class RankFacts:
    """One rank: what it wrote, the hashes of what it named, and what its engine says that it chose."""

    rank: int
    seen: Observation
    files: Files
    chosen: Mapping[str, JsonValue] = field(default_factory=dict)


def not_observed(facts: RankFacts, section: str, name: str, expected: str) -> Check:
    why = facts.seen.not_observed.get(section, "the worker did not report it")
    return Check(name, expected, f"nothing: {why}", "not_observed")


def equal(name: str, expected: str, observed: str) -> Check:
    return Check(name, expected, observed, "" if expected == observed else "expectation_unmet")


def some(items: Sequence[str], most: int = 3) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def flattened(values: Mapping[str, JsonValue], prefix: str = "") -> dict[str, str]:
    """`{"attention": {"backends": {"FLASH": 4}}}` -> `{"attention.backends": "FLASH"}`: of counts, what is counted."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and all(_is_count(v) for v in value.values()):
            flat[name] = ", ".join(sorted(value))
        elif isinstance(value, dict):
            flat |= flattened(value, f"{name}.")
        else:
            flat[name] = _text(value)
    return flat


def _is_count(value: JsonValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value: JsonValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
