"""How each consumer of a quantisation list matches a rule against a module path.

Sources: transformers `quantizers_utils.should_convert_module`; vLLM `quant_utils.is_layer_skipped`,
`modelopt.is_layer_excluded`, `moe_wna16.is_layer_skipped_quant`, `gptq_utils.get_dynamic_override`;
compressed-tensors `match_name`; Quark `should_ignore_layer`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from typing import Final

Matcher = Callable[[str], bool]


def joined(patterns: Iterable[str]) -> re.Pattern[str] | None:
    """One expression for all of `patterns`; None when there are none. An invalid one is taken as its own text."""
    parts = [pattern if _valid(pattern) else re.escape(pattern) for pattern in patterns]
    return re.compile("|".join(f"(?:{part})" for part in parts)) if parts else None


def _valid(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def transformers(rules: Sequence[str]) -> Matcher:
    """Regular expression from the start, or the end of the path."""
    start, ends = joined(rules), tuple(rules)
    return lambda path: bool(start and start.match(path)) or path.endswith(ends)


def exact(rules: Sequence[str]) -> Matcher:
    names = set(rules)
    return lambda path: path in names


def substring(rules: Sequence[str]) -> Matcher:
    found = joined(re.escape(rule) for rule in rules)
    return lambda path: bool(found and found.search(path))


def modelopt(rules: Sequence[str]) -> Matcher:
    """A wildcard, or (for older checkpoints) any part of the path."""
    part, wild = substring(rules), joined(translate(rule) for rule in rules)
    return lambda path: part(path) or bool(wild and wild.match(path))


def wildcard(rules: Sequence[str]) -> Matcher:
    """Quark: shell wildcards, or a regular expression after `re:`."""
    plain = joined(translate(rule) for rule in rules if not rule.startswith("re:"))
    regex = joined(rule[3:] for rule in rules if rule.startswith("re:"))
    return lambda path: bool(plain and plain.match(path)) or bool(regex and regex.match(path))


def compressed(rules: Sequence[str]) -> Matcher:
    """compressed-tensors: equal, or a regular expression after `re:`. Class names such as Linear match no path."""
    names = {rule for rule in rules if not rule.startswith("re:")}
    regex = joined(rule[3:] for rule in rules if rule.startswith("re:"))
    return lambda path: path in names or bool(regex and regex.match(path))


def gptq(rules: Sequence[str]) -> Matcher:
    """`+:regex` and `-:regex`, from the start of the path."""
    regex = joined(re.sub(r"^[+-]:", "", rule) for rule in rules)
    return lambda path: bool(regex and regex.match(path))


MATCHERS: Final[dict[str, Callable[[Sequence[str]], Matcher]]] = {
    "transformers": transformers,
    "vllm exact": exact,
    "vllm substring": substring,
    "modelopt": modelopt,
    "quark": wildcard,
    "compressed-tensors": compressed,
    "gptq": gptq,
}
