"""What all ranks of a side must have in common; what each of them loaded besides is its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bitgate.tools.config.digests import digest_env
from bitgate.tools.engines.worker.provenance.records import CODE, normalised
from bitgate.tools.provenance.check import WORKER, Check, RankFacts, flattened, some
from bitgate.tools.provenance.files import KnownFile


@dataclass(frozen=True)
class Apart:
    """What one rank has otherwise than rank 0, or what of it nobody could compare."""

    what: str
    observed: bool = True


def between_ranks(ranks: Sequence[RankFacts]) -> list[Check]:
    """Every rank against rank 0: of each kind of thing, what is not the same, and what could not be compared."""
    first, *others = ranks
    checks = []
    for other in others:
        for kind, compare in COMMON:
            found = list(compare(first, other))
            for code, observed in (("ranks_differ", True), ("not_observed", False)):
                names = sorted({item.what for item in found if item.observed is observed})
                if names:
                    checks.append(Check("ranks", f"the {kind} of rank 0", some(names), code, other.rank))
    return checks


def _modules(one: RankFacts, other: RankFacts) -> Iterator[Apart]:
    """By name, so that a rank which imports it from another place is seen by the bytes that it found there."""
    yield from _unobserved("modules", one, other)
    yield from _other_bytes(modules_of(one), modules_of(other))


def _libraries(one: RankFacts, other: RankFacts) -> Iterator[Apart]:
    """By the file's name: a second libnccl.so.2 from another folder is another library."""
    yield from _unobserved("mapped", one, other)
    yield from _other_bytes(_libraries_of(one), _libraries_of(other))


def _other_bytes(one: Mapping[str, KnownFile], other: Mapping[str, KnownFile]) -> Iterator[Apart]:
    for name, file in other.items():
        same = one[name].same_as(file) if name in one else True
        if same is None:
            yield Apart(f"no hash of {name} that both have", observed=False)
        elif not same:
            yield Apart(f"other bytes in {name}")


def _unobserved(section: str, *ranks: RankFacts) -> Iterator[Apart]:
    """A rank without this section: nobody can say that it is as the others are."""
    for facts in ranks:
        if getattr(facts.seen, section) is None:
            why = facts.seen.not_observed.get(section, "the worker did not report it")
            yield Apart(f"nothing from rank {facts.rank}: {why}", observed=False)


def modules_of(facts: RankFacts) -> dict[str, KnownFile]:
    """Module -> its file. bitgate's own worker, staged anew for every run, is left out."""
    return {m.name: facts.files.of(m.path) for m in facts.seen.modules or () if m.top != WORKER}


def _libraries_of(facts: RankFacts) -> dict[str, KnownFile]:
    found = [lib.path for lib in facts.seen.mapped or () if not lib.deleted and f"/{WORKER}/" not in lib.path]
    names = [os.path.basename(path) for path in found]
    return {name: facts.files.of(path) for name, path in zip(names, found, strict=True) if names.count(name) == 1}


def _versions(one: RankFacts, other: RankFacts) -> Iterator[Apart]:
    """Of the distributions whose code makes numbers."""
    yield from _unobserved("distributions", one, other)
    if one.seen.distributions is not None and other.seen.distributions is not None:
        left, right = (_versions_of(facts) for facts in (one, other))
        yield from (Apart(f"{n} {right.get(n)}") for n in {*left, *right} if left.get(n) != right.get(n))


def _versions_of(facts: RankFacts) -> dict[str, str]:
    wanted = {normalised(name) for name in CODE}
    return {name: found.version for name, found in (facts.seen.distributions or {}).items() if name in wanted}


def _variables(one: RankFacts, other: RankFacts) -> Iterator[Apart]:
    yield from _unobserved("environment_now", one, other)
    left, right = (digest_env(facts.seen.environment_now or {}) for facts in (one, other))
    yield from (Apart(name) for name in {*left, *right} if left.get(name) != right.get(name))


def _machine(one: RankFacts, other: RankFacts) -> Iterator[Apart]:
    """Models of GPUs and versions below the engine; how many GPUs a rank sees is its launcher's choice."""
    yield from _unobserved("device", one, other)
    left, right = (_machine_of(facts) for facts in (one, other))
    for name in left.keys() & right.keys():
        if left[name] != right[name]:
            yield Apart(f"{name} {right[name]}")
    if one.seen.device is not None and other.seen.device is not None:
        yield from (_told_by_one(name, one if name in left else other) for name in left.keys() ^ right.keys())


def _told_by_one(name: str, facts: RankFacts) -> Apart:
    return Apart(f"{name}, which rank {facts.rank} alone tells", observed=False)


def _machine_of(facts: RankFacts) -> dict[str, str]:
    stable = dict(facts.seen.device.stable) if facts.seen.device else {}
    models = stable.pop("gpus", None)
    named = {"GPU": ", ".join(sorted({str(model) for model in models}))} if isinstance(models, list) else {}
    return {name: value for name, value in (flattened(stable) | named).items() if name != "cpu_governor"}


COMMON: Final[tuple[tuple[str, Callable[[RankFacts, RankFacts], Iterator[Apart]]], ...]] = (
    ("files", _modules), ("libraries", _libraries), ("versions", _versions), ("variables", _variables),
    ("machine", _machine),
)  # fmt: skip
"""To add something that ranks must share: a function here."""
