"""Rules on what else a rank has loaded and chosen: libraries, kernels, transport, caches, processes below it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase

from bitgate.tools.engines.worker.provenance.modules import WATCHED
from bitgate.tools.provenance.check import WORKER, Check, Declared, RankFacts, flattened, not_observed, some
from bitgate.tools.provenance.files import is_system


def libraries(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    mapped = facts.seen.mapped
    if mapped is None:
        yield not_observed(facts, "mapped", "loaded libraries", "known files")
        return
    for library in mapped:
        if library.deleted:
            yield Check("library", "a file that is still there", f"{library.path} (deleted)", "library_deleted")
    strange = [lib.path for lib in mapped if not lib.deleted and not _is_owned(facts, declared, lib.path)]
    if strange:
        yield Check(
            "libraries", "of a package or the system, or named in expect.loaded", some(strange), "library_unowned"
        )


def _is_owned(facts: RankFacts, declared: Declared, path: str) -> bool:
    place = facts.seen.place
    if facts.files.of(path).record is not None or is_system(path) or f"/{WORKER}/" in path:
        return True
    if place and path.startswith((f"{place.base_prefix}/", place.executable)) and "site-packages" not in path:
        return True
    if any(cache.file == path for cache in facts.seen.caches or ()):
        return True
    return any(matches(path, pattern) for pattern in declared.expect.loaded)


def matches(name: str, pattern: str) -> bool:
    """A glob on the whole name or on its last part."""
    return fnmatchcase(name, pattern) or fnmatchcase(os.path.basename(name), pattern)


def loaded(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    expect = declared.expect
    if not expect.loaded and not expect.not_loaded:
        return
    if facts.seen.mapped is None or facts.seen.modules is None:
        yield not_observed(facts, "mapped", "expect.loaded", ", ".join(expect.loaded + expect.not_loaded))
        return
    names = [lib.path for lib in facts.seen.mapped] + [m.name for m in facts.seen.modules]
    for pattern in expect.loaded:
        found = next((name for name in names if matches(name, pattern)), None)
        yield Check(f"loaded {pattern}", "loaded", found or "not loaded", "" if found else "expectation_unmet")
    for pattern in expect.not_loaded:
        found = next((name for name in names if matches(name, pattern)), None)
        yield Check(f"not loaded {pattern}", "not loaded", found or "not loaded", "expectation_unmet" if found else "")


def backends(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    """What the engine says that it chose, by the flattened key of its description; keys and values may be globs."""
    flat = flattened(facts.chosen)
    for key, value in declared.expect.backends.items():
        found = {name: text for name, text in flat.items() if fnmatchcase(name, key)}
        if not found:
            yield Check(f"backend {key}", value, "the engine does not report it", "not_observed")
        for name, text in found.items():
            code = "" if fnmatchcase(text, value) else "expectation_unmet"
            yield Check(f"backend {name}", value, text, code)


def machine(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    """What lies below the engine, and what is installed: recorded, and compared with the other ranks and sides."""
    if facts.seen.device is None:
        yield not_observed(facts, "device", "device", "its models and versions")
    if facts.seen.distributions is None and not declared.expect.versions:
        yield not_observed(facts, "distributions", "installed packages", "their versions")


def transport(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    """Observed from variables alone; without one, how ranks really talk was not seen."""
    wanted = declared.expect.transport
    if wanted is None:
        return
    chosen = facts.seen.transport or {}
    shown = ", ".join(f"{name}={value}" for name, value in chosen.items())
    if not chosen:
        yield Check("transport", wanted, "no variable chooses one, and no rank reported it", "not_observed")
        return
    said = wanted.lower() in shown.lower()
    yield Check("transport", wanted, shown, "" if said else "expectation_unmet")


def unobserved_workers(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    if facts.seen.children is None:
        yield not_observed(facts, "children", "workers", "every process that computes is observed")
    for child in facts.seen.children or ():
        if child.computes:
            shown = f"process {child.pid} holds a torch: {child.command[:80]}"
            yield Check("workers", "every process that computes is observed", shown, "worker_unobserved")


def caches(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    """Code made at run time that is older than the code it was made from."""
    if facts.seen.caches is None or facts.seen.mapped is None:
        section = "mapped" if facts.seen.mapped is None else "caches"
        yield not_observed(facts, section, "caches", "made from the code that runs")
    made = {cache.file for cache in facts.seen.caches or ()}
    code = [m for m in facts.seen.modules or () if m.stat and m.top in WATCHED and m.path not in made]
    newest = max((m.stat[4] / 1e9 for m in code if m.stat), default=0.0)
    old = [c.file for c in facts.seen.caches or () if c.from_cache and c.made_at < newest]
    if old:
        yield Check("caches", "made from the code that runs", f"older than it: {some(old)}", "jit_cache_older")
