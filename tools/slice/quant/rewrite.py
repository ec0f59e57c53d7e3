"""Carry quantisation rules over to a slice, and prove that they decide every module as before.

Each rule is expanded on the full model's module paths; names of layers are renumbered or dropped, expressions with
layer numbers become explicit names; then the new rules are expanded on the slice and must decide alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bitgate.tools.slice.family import LAYER, deep_copy
from bitgate.tools.slice.keys import Selection, moved_index
from bitgate.tools.slice.operators import split_name
from bitgate.tools.slice.quant.formats import Json, RuleList, rule_lists, rules_of
from bitgate.tools.slice.quant.matching import MATCHERS
from bitgate.tools.slice.refusal import QUANT_DIFFERS, Refusal

LITERAL: Final = re.compile(r"[\w.-]+")
NUMBERED: Final = re.compile(r"(?<![A-Za-z_0-9\\])\d")
"""A digit that is not part of a word such as conv1d or w2, so it may mean a layer."""


def module_paths(mapping: Mapping[str, str]) -> dict[str, str]:
    """Old path to new path for every module and every module around it, from tensor names."""
    found: dict[str, str] = {}
    for old, new in mapping.items():
        left, right = split_name(old)[0].split("."), split_name(new)[0].split(".")
        for length in range(len(left), 0, -1):
            path = ".".join(left[:length])
            if path in found:
                break
            found[path] = ".".join(right[:length])
    return found


def rewrite_rules(config: Json, paths: Mapping[str, str], sel: Selection) -> Json:
    """The quantisation configuration of the slice; `paths` are the kept modules, old path to new.

    Raises:
        Refusal: a module would be decided otherwise than in the full model.
    """
    result: Json = deep_copy(config)
    for holder, row in rule_lists(result):
        holder[row.key] = _rewritten(holder, row, paths, sel)
    _same_decisions(config, result, paths)
    return result


def decisions(config: Json, paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """What each rule list decides about each path, per consumer."""
    tests = [
        (f"{row.key}/{consumer}/{label}", MATCHERS[consumer](rules))
        for holder, row in rule_lists(config)
        for label, rules in rules_of(holder, row)
        for consumer in row.consumers
        if rules
    ]
    return {path: tuple(sorted({label for label, matches in tests if matches(path)})) for path in paths}


def _same_decisions(old: Json, new: Json, paths: Mapping[str, str]) -> None:
    before, after = decisions(old, paths), decisions(new, paths.values())
    wrong = [path for path, moved in paths.items() if before[path] != after[moved]]
    if wrong:
        first = wrong[0]
        raise Refusal(
            QUANT_DIFFERS,
            f"{len(wrong)} modules would be quantised otherwise, first {first}: {before[first]} there, "
            f"{after[paths[first]]} in the slice as {paths[first]}",
        )


def _rewritten(holder: Json, row: RuleList, paths: Mapping[str, str], sel: Selection) -> Any:
    value = holder[row.key]

    def moved(rule: str) -> list[str]:
        return _moved(rule, row, paths, sel)

    if row.shape == "list" and isinstance(value, list):
        return _flat(moved(item) if isinstance(item, str) else [item] for item in value)
    if row.shape == "nested" and isinstance(value, list):
        return [_flat(moved(item) for item in part) if isinstance(part, list) else part for part in value]
    if row.shape == "map" and isinstance(value, dict):
        return {new: item for key, item in value.items() for new in moved(key)}
    if row.shape == "groups" and isinstance(value, dict):
        return {key: _group(group, moved) for key, group in value.items()}
    return value


def _group(group: Json, moved: Any) -> Json:
    targets = group.get("targets")
    if not isinstance(targets, list):
        return group
    return {**group, "targets": _flat(moved(item) if isinstance(item, str) else [item] for item in targets)}


def _flat(parts: Iterable[list[Any]]) -> list[Any]:
    seen: dict[Any, None] = {}
    for part in parts:
        seen.update(dict.fromkeys(part))
    return list(seen)


def _moved(rule: str, row: RuleList, paths: Mapping[str, str], sel: Selection) -> list[str]:
    """The rules of the slice that stand for one rule of the full model."""
    if LITERAL.fullmatch(rule):
        return _renumbered(rule, sel)
    if not NUMBERED.search(rule):
        return [rule]
    matches = MATCHERS[row.consumers[0]]([rule])
    chosen = [new for old, new in paths.items() if matches(old)]
    if row.consumers[0] == "gptq":
        sign = rule[:2] if rule[:2] in ("+:", "-:") else "+:"
        return [f"{sign}{re.escape(name)}$" for name in chosen]
    return chosen


def _renumbered(rule: str, sel: Selection) -> list[str]:
    found = LAYER.fullmatch(f"{rule}.x")
    if found is None:
        return [rule]
    new = moved_index(int(found["layer"]), sel)
    return [] if new is None else [f"{found['head']}layers.{new}.{found['rest']}".removesuffix(".x")]
