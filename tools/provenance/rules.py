"""What was observed against what was declared: all rules on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from bitgate.tools.provenance.check import Check, Declared, RankFacts
from bitgate.tools.provenance.code import (
    commits,
    copies,
    module_paths,
    moved_on,
    recorded_files,
    replaced_code,
    source,
    stale_bytecode,
    versions,
)
from bitgate.tools.provenance.environment import environment, expected_env
from bitgate.tools.provenance.loaded import (
    backends,
    caches,
    libraries,
    loaded,
    machine,
    transport,
    unobserved_workers,
)

Rule = Callable[[RankFacts, Declared], Iterable[Check]]
RULES: Final[tuple[Rule, ...]] = (
    environment, expected_env, versions, commits, module_paths, recorded_files, source, replaced_code, stale_bytecode,
    copies, moved_on, libraries, loaded, backends, machine, transport, unobserved_workers, caches,
)  # fmt: skip
"""To add a rule: a function here, and a row in the table of reasons for each code it raises."""


def checks_of(facts: RankFacts, declared: Declared) -> list[Check]:
    found = [check for rule in RULES for check in rule(facts, declared)]
    return [replace(check, rank=facts.rank) for check in found]
