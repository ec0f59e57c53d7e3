"""Rules on variables: as declared, as expected, and none that nobody declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from bitgate.tools.config.digests import digest_env
from bitgate.tools.provenance.check import Check, Declared, RankFacts, equal, not_observed
from bitgate.tools.redaction import REDACTED, is_secret_name

OF_LAUNCHERS: Final = frozenset({"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_FR_BUFFER_SIZE"})
"""Variables that torchrun sets for every job and that change no number."""


def environment(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    start = facts.seen.environment_at_start
    if start is None:
        yield not_observed(facts, "environment_at_start", "environment", "the variables that the side declares")
        return
    for name, value in declared.env.items():
        if is_secret_name(name):
            continue
        shown = start.get(name)
        code = "" if shown == value else "env_not_as_declared"
        yield Check(f"env {name}", value, "(unset)" if shown is None else shown, code)
    yield from _undeclared(start, declared)


def _undeclared(start: Mapping[str, str], declared: Declared) -> Iterator[Check]:
    for name, value in digest_env(start).items():
        if name not in declared.env and name not in OF_LAUNCHERS:
            yield Check(f"env {name}", "not set, since the side does not declare it", value, "env_undeclared")
    for name, value in digest_env(declared.inherited).items():
        if name not in declared.env and name not in start:
            yield Check(f"env {name}", f"{value}, as bitgate's own environment has it", "(unset)", "env_not_delivered")


def expected_env(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    now = facts.seen.environment_now
    for name, value in declared.expect.env.items():
        if now is None:
            yield not_observed(facts, "environment_now", f"expect.env {name}", value)
            continue
        shown = now.get(name)
        if shown == REDACTED:
            yield Check(f"expect.env {name}", REDACTED, "a value that is not written down", "not_observed")
            continue
        yield equal(f"expect.env {name}", value, "(unset)" if shown is None else shown)
