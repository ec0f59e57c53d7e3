"""What all ranks of a side must have in common; what each of them loaded besides is its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from bitgate.tools.config.digests import digest_env
from bitgate.tools.engines.worker.provenance.records import CODE, normalised
from bitgate.tools.provenance.check import WORKER, Check, RankFacts, flattened, some
from bitgate.tools.provenance.files import KnownFile


def between_ranks(ranks: Sequence[RankFacts]) -> list[Check]:
    """Every rank against rank 0, one check for each kind of thing that is not the same."""
    first, *others = ranks
    return [
        Check("ranks", f"the {what} of rank 0", some(names), "ranks_differ", other.rank)
        for other in others
        for what, differ in COMMON
        if (names := sorted(differ(first, other)))
    ]


def _modules(one: RankFacts, other: RankFacts) -> Iterator[str]:
    """By name, so that a rank which imports it from another place is seen by the bytes that it found there."""
    return _other_bytes(modules_of(one), modules_of(other))


def _libraries(one: RankFacts, other: RankFacts) -> Iterator[str]:
    """By the file's name: a second libnccl.so.2 from another folder is another library."""
    return _other_bytes(_libraries_of(one), _libraries_of(other))


def _other_bytes(one: Mapping[str, KnownFile], other: Mapping[str, KnownFile]) -> Iterator[str]:
    return (f"other bytes in {name}" for name, file in other.items() if name in one and one[name].differs_from(file))


def modules_of(facts: RankFacts) -> dict[str, KnownFile]:
    """Module -> its file. bitgate's own worker, staged anew for every run, is left out."""
    return {m.name: facts.files.of(m.path) for m in facts.seen.modules or () if m.top != WORKER}


def _libraries_of(facts: RankFacts) -> dict[str, KnownFile]:
    found = [lib.path for lib in facts.seen.mapped or () if not lib.deleted and f"/{WORKER}/" not in lib.path]
    names = [os.path.basename(path) for path in found]
    return {name: facts.files.of(path) for name, path in zip(names, found, strict=True) if names.count(name) == 1}


def _versions(one: RankFacts, other: RankFacts) -> Iterator[str]:
    """Of the distributions whose code makes numbers."""
    left, right = (_versions_of(facts) for facts in (one, other))
    return (f"{name} {right.get(name)}" for name in {*left, *right} if left.get(name) != right.get(name))


def _versions_of(facts: RankFacts) -> dict[str, str]:
    wanted = {normalised(name) for name in CODE}
    return {name: found.version for name, found in (facts.seen.distributions or {}).items() if name in wanted}


def _variables(one: RankFacts, other: RankFacts) -> Iterator[str]:
    left, right = (digest_env(facts.seen.environment_now or {}) for facts in (one, other))
    return (name for name in {*left, *right} if left.get(name) != right.get(name))


def _machine(one: RankFacts, other: RankFacts) -> Iterator[str]:
    """Models of GPUs and versions below the engine; how many GPUs a rank sees is its launcher's choice."""
    left, right = (_machine_of(facts) for facts in (one, other))
    return (f"{name} {right[name]}" for name in left.keys() & right.keys() if left[name] != right[name])


def _machine_of(facts: RankFacts) -> dict[str, str]:
    stable = dict(facts.seen.device.stable) if facts.seen.device else {}
    models = stable.pop("gpus", None)
    named = {"GPU": ", ".join(sorted({str(model) for model in models}))} if isinstance(models, list) else {}
    return {name: value for name, value in (flattened(stable) | named).items() if name != "cpu_governor"}


COMMON: Final[tuple[tuple[str, Callable[[RankFacts, RankFacts], Iterator[str]]], ...]] = (
    ("files", _modules), ("libraries", _libraries), ("versions", _versions), ("variables", _variables),
    ("machine", _machine),
)  # fmt: skip
"""To add something that ranks must share: a function here."""


def module_digests(facts: RankFacts) -> dict[str, str]:
    """Module -> digest of its file, where it is known."""
    return {name: file.digest for name, file in modules_of(facts).items() if file.digest}
