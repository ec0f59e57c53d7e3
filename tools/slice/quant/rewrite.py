"""Carry quantisation rules over to a slice, and prove that they decide every module as before.

Each rule is expanded on the full model's module paths; names of layers are renumbered or dropped, expressions with
layer numbers become explicit names; then the new rules are expanded on the slice and must decide alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from bitgate.tools.slice.family import LAYER, deep_copy
from bitgate.tools.slice.keys import Selection, moved_index
from bitgate.tools.slice.operators import split_name
from bitgate.tools.slice.quant.formats import Json, RuleList, rule_lists, rules_of, well_formed
from bitgate.tools.slice.quant.matching import MATCHERS
from bitgate.tools.slice.refusal import CONFIG_BROKEN, QUANT_DIFFERS, Refusal

LITERAL: Final = re.compile(r"[\w.-]+")
NUMBERED: Final = re.compile(r"(?<![A-Za-z_0-9\\])\d")
"""A digit that is not part of a word such as conv1d or w2, so it may mean a layer."""

NAMES_LAYER: Final = re.compile(r"(?:^|\.)layers\\?\.[0-9]")


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
        Refusal: a list is not understood, or a module would be decided otherwise than in the full model.
    """
    _check_understood(config)
    result = _carried_over(config, paths, sel, explicit=False)
    if _otherwise(config, result, paths):
        result = _carried_over(config, paths, sel, explicit=True)
    _check_same_decisions(config, result, paths)
    return result


def _carried_over(config: Json, paths: Mapping[str, str], sel: Selection, explicit: bool) -> Json:
    """`explicit` writes out the names that a rule chooses wherever the rule would choose others in the slice."""
    result: Json = deep_copy(config)
    for holder, row in rule_lists(result):
        moved = partial(_moved, row=row, paths=paths, sel=sel, explicit=explicit)
        holder[row.key] = _rewritten(holder, row, moved)
    return result


def _check_understood(config: Json) -> None:
    """Every list has its row's shape, and no layer is named outside the lists of the table."""
    rest: Json = deep_copy(config)
    for holder, row in [*rule_lists(rest)]:
        if not well_formed(holder, row):
            raise Refusal(CONFIG_BROKEN, f"{row.key} of the quantisation configuration is no {row.shape} of names")
        del holder[row.key]
    strange = next((text for text in _strings(rest) if NAMES_LAYER.search(text)), None)
    if strange is not None:
        raise Refusal(
            QUANT_DIFFERS, f"the quantisation configuration names {strange[:120]!r} under a key that no rule table has"
        )


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    if isinstance(value, dict | list):
        for item in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from _strings(item)


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


def _otherwise(old: Json, new: Json, paths: Mapping[str, str]) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """(old path, decided there, decided in the slice) of every module for which these differ."""
    before, after = decisions(old, paths), decisions(new, paths.values())
    return [(path, before[path], after[moved]) for path, moved in paths.items() if before[path] != after[moved]]


def _check_same_decisions(old: Json, new: Json, paths: Mapping[str, str]) -> None:
    wrong = _otherwise(old, new, paths)
    if wrong:
        first, before, after = wrong[0]
        raise Refusal(
            QUANT_DIFFERS,
            f"{len(wrong)} modules would be quantised otherwise, first {first}: {before} there, "
            f"{after} in the slice as {paths[first]}",
        )


def _rewritten(holder: Json, row: RuleList, moved: Callable[[str], list[str]]) -> Any:
    value = holder[row.key]
    if row.shape == "list":
        return _flat(map(moved, value))
    if row.shape == "nested":
        return [_flat(map(moved, part)) if isinstance(part, list) else part for part in value]
    if row.shape == "map":
        return {new: item for key, item in value.items() for new in moved(key)}
    return {key: _group(group, moved) for key, group in value.items()}


def _group(group: Json, moved: Callable[[str], list[str]]) -> Json:
    targets = group.get("targets")
    return {**group, "targets": _flat(map(moved, targets))} if targets else group


def _flat(parts: Iterable[list[Any]]) -> list[Any]:
    seen: dict[Any, None] = {}
    for part in parts:
        seen.update(dict.fromkeys(part))
    return list(seen)


def _moved(rule: str, row: RuleList, paths: Mapping[str, str], sel: Selection, explicit: bool) -> list[str]:
    """The rules of the slice that stand for one rule of the full model."""
    literal = LITERAL.fullmatch(rule) is not None
    if literal or not NUMBERED.search(rule):
        carried = _renumbered(rule, sel) if literal else [rule]
        if not explicit or _agree(rule, carried, row, paths):
            return carried
    matches = MATCHERS[row.consumers[0]]([rule])
    chosen = [new for old, new in paths.items() if matches(old)]
    if row.consumers[0] == "gptq":
        sign = rule[:2] if rule[:2] in ("+:", "-:") else "+:"
        return [f"{sign}{re.escape(name)}$" for name in chosen]
    return chosen


def _agree(rule: str, carried: list[str], row: RuleList, paths: Mapping[str, str]) -> bool:
    tests = [(MATCHERS[consumer]([rule]), MATCHERS[consumer](carried)) for consumer in row.consumers]
    return all(before(old) == after(new) for old, new in paths.items() for before, after in tests)


def _renumbered(rule: str, sel: Selection) -> list[str]:
    found = LAYER.fullmatch(f"{rule}.x")
    if found is None:
        return [rule]
    new = moved_index(int(found["layer"]), sel)
    return [] if new is None else [f"{found['head']}layers.{new}.{found['rest']}".removesuffix(".x")]
