"""What bitgate knows of an engine before it runs: its options, its axes, how to bring an axis about."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import JsonValue

from bitgate.tools.config.sides import Model, Side
from bitgate.tools.config.workloads import TokenSequence
from bitgate.tools.engines.jobs import Packing
from bitgate.tools.errors import RequestError, unknown_name

Kind = Literal["flag", "count", "fraction", "name", "table"]
Options = Mapping[str, JsonValue]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Option:
    """An option that is checked before anything starts.

    `choices` narrows a name, and adds to a flag; a table is checked key by key.
    """

    name: str
    kind: Kind
    choices: tuple[str, ...] = ()
    least: int = 1
    keys: tuple[Option, ...] = ()

    @property
    def allowed(self) -> str:
        match self.kind:
            case "flag":
                return " or ".join(["true", "false", *map(repr, self.choices)])
            case "count":
                return f"a whole number from {self.least}"
            case "fraction":
                return "a number above 0, up to 1"
            case "name":
                return ", ".join(self.choices) or "a plain name (letters, digits, _ . -)"
            case "table":
                return f"a table with the keys {', '.join(key.name for key in self.keys)}"

    def check(self, field: str, value: JsonValue) -> None:
        """Raises RequestError when `value` is not one this option takes."""
        if self.kind == "table" and isinstance(value, dict):
            check_table(field, value, self.keys)
        elif not self._takes(value):
            raise RequestError(field, value, self.allowed)

    def _takes(self, value: JsonValue) -> bool:
        match self.kind:
            case "flag":
                return isinstance(value, bool) or value in self.choices
            case "count":
                return isinstance(value, int) and not isinstance(value, bool) and value >= self.least
            case "fraction":
                return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
            case "name":
                return isinstance(value, str) and (
                    value in self.choices if self.choices else bool(_NAME.fullmatch(value))
                )
            case "table":
                return False


def refuse_options(side: Side, why: str) -> None:
    """Raises RequestError when a side that bitgate does not start has options."""
    if side.options:
        raise RequestError(f"side.{side.name}.options", dict(side.options), "no options", why)


def check_table(field: str, given: Options, known: Sequence[Option], hint: str = "") -> None:
    """Every key is one of `known` and has a value it takes.

    Raises: RequestError naming the key, what came, what is allowed, and the nearest known key.
    """
    table = {option.name: option for option in known}
    for name, value in given.items():
        if name not in table:
            raise unknown_name(f"{field}.{name}", name, table, hint)
        table[name].check(f"{field}.{name}", value)


@dataclass(frozen=True)
class Adapter:
    """One engine. The worker side is `tools/engines/worker/table.py`.

    decodes: it has a decode phase; trains: it has a training forward; packings: how it can lay out a batch, the first
    one alone; grade: what its evidence is worth.
    """

    name: str
    decodes: bool
    trains: bool
    packings: tuple[Packing, ...]
    grade: Literal["observed", "attested"] = "observed"

    def check_options(self, side: Side) -> None:
        """Refuse options that the engine does not have, and options that a call may not change.

        Raises: RequestError.
        """
        raise NotImplementedError

    def default_axes(self, side: Side) -> tuple[str, ...]:
        """What a deployment with these options uses, when the side declares nothing."""
        return ("batching",)

    def layouts(self, side: Side) -> tuple[Packing, ...]:
        """The packings that this side has; the first one is its habit."""
        return self.packings

    def not_applicable(self, side: Side) -> Mapping[str, str]:
        """Axes that do not exist where this side runs, each with the reason."""
        return {}

    def variants(self, side: Side, sequences: Sequence[TokenSequence], max_tokens: int) -> Mapping[str, Options]:
        """Axis -> options, laid over the side's own, that bring it about on this workload."""
        return {}

    def room(self, side: Side, model: Model) -> int:
        """Tokens of the longest sequence that the side takes; 0 where nothing says so."""
        try:
            config = json.loads((model.path / "config.json").read_text(encoding="utf-8"))
            return int(config.get("text_config", config)["max_position_embeddings"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # The engine will say what is wrong with the model; here only the lengths are not known.
            return 0

    def long_lengths(self, side: Side, model: Model, max_tokens: int) -> tuple[int, ...]:
        """Prompt lengths at and across the engine's cache-block edges, as far as the model reaches."""
        return ()
