"""What was observed against what was declared: one check an expectation, each with its verdict. Pure functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from pydantic import JsonValue

from bitgate.store.records import Reason, Verdict
from bitgate.tools.config.digests import digest_env
from bitgate.tools.config.model import ExpectConfig
from bitgate.tools.engines.worker.provenance.modules import WATCHED
from bitgate.tools.engines.worker.provenance.records import normalised
from bitgate.tools.provenance.files import Files, is_system
from bitgate.tools.provenance.observed import Observation, SeenModule
from bitgate.tools.reasons import REASONS, reason
from bitgate.tools.redaction import REDACTED, is_secret_name

WORKER: Final = "bitgate_worker"
GENERATED: Final = ("_version.py", "version.py", "_commit.py", "git_version_info_installed.py")
"""Files that building a package writes, so that no source tree has them."""
OF_LAUNCHERS: Final = frozenset({"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_FR_BUFFER_SIZE"})
"""Variables that torchrun sets for every job and that change no number."""


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

    def checks(self, declared: Declared) -> list[Check]:
        found = [check for rule in RULES for check in rule(self, declared)]
        return [Check(c.name, c.expected, c.observed, c.code, self.rank) for c in found]


def not_observed(facts: RankFacts, section: str, name: str, expected: str) -> Check:
    why = facts.seen.not_observed.get(section, "the worker did not report it")
    return Check(name, expected, f"nothing: {why}", "not_observed")


# --- environment ----------------------------------------------------------------------------------------------------


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
        yield _equal(f"expect.env {name}", value, "(unset)" if shown is None else shown)


# --- packages and code ----------------------------------------------------------------------------------------------


def versions(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    for name, value in declared.expect.versions.items():
        if facts.seen.distributions is None:
            yield not_observed(facts, "distributions", f"version of {name}", value)
            continue
        found = facts.seen.distributions.get(normalised(name))
        if found is None:
            yield Check(f"version of {name}", value, "not installed", "expectation_unmet")
        else:
            yield _equal(f"version of {name}", value, found.version)


def commits(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    for name, value in declared.expect.commits.items():
        tree = (facts.seen.trees or {}).get(name.replace("-", "_"))
        installed = (facts.seen.distributions or {}).get(normalised(name))
        commit = tree.commit if tree else installed.commit if installed else None
        label = f"commit of {name}"
        if commit is None:
            yield Check(
                label, value, "no commit: it is in no git tree, and its installer wrote none down", "not_observed"
            )
            continue
        code = "" if commit.startswith(value.lower()) and len(value) >= 7 else "expectation_unmet"
        yield Check(label, value, commit, code)
        if tree and tree.dirty:
            more = f" and {len(tree.dirty) - 3} more" if len(tree.dirty) > 3 else ""
            yield Check(label, "a clean tree", f"changed: {', '.join(tree.dirty[:3])}{more}", "tree_dirty")


def module_paths(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    for name, path in declared.expect.modules.items():
        found = next((m for m in facts.seen.modules or () if m.name == name), None)
        if found is None:
            yield Check(f"module {name}", path, "it was not imported", "not_observed")
            continue
        wanted, real = os.path.realpath(os.path.expanduser(path)), os.path.realpath(found.path)
        inside = real == wanted or real.startswith(wanted.rstrip("/") + "/")
        yield Check(f"module {name}", path, found.path, "" if inside else "expectation_unmet")


def recorded_files(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    """Bytes of imported files and loaded libraries against the wheel they came in."""
    edited = sorted(path for path, file in facts.files.known.items() if file.as_recorded is False)
    unreadable = sorted(path for path, file in facts.files.known.items() if file.unreadable)
    verified = sum(file.as_recorded is True for file in facts.files.known.values())
    if edited:
        yield Check("files of wheels", "the bytes of RECORD", _some(edited), "file_edited")
    elif verified:
        yield Check("files of wheels", "the bytes of RECORD", f"{verified} files are")
    if unreadable:
        why = facts.files.known[unreadable[0]].unreadable
        yield Check("files", "readable", f"{_some(unreadable)} ({why})", "file_unreadable")
    if facts.seen.modules is None:
        yield not_observed(facts, "modules", "imported modules", "their files")
    yield from _strangers(facts)


def _strangers(facts: RankFacts) -> Iterator[Check]:
    """Files inside an installed package that its RECORD does not have."""
    recorded = [
        (os.path.dirname(p), f) for p, f in facts.files.known.items() if f.record and p.endswith("/__init__.py")
    ]
    folders = {folder for folder, _ in recorded}
    added = sorted(
        module.path
        for module in facts.seen.modules or ()
        if facts.files.of(module.path).record is None and _in_any(module.path, folders)
    )
    if added:
        yield Check("files of wheels", "listed in RECORD", _some(added), "file_added")


def _in_any(path: str, folders: set[str]) -> bool:
    return os.path.dirname(path) in folders and "site-packages" in path


def source(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    """The code that runs against the tree that was read."""
    if declared.source_tree is None:
        return
    expected = f"the files of {declared.source_tree}"
    packages = {name.partition(".")[0] for name in declared.source}
    running = [m for m in facts.seen.modules or () if m.top in packages and m.path.endswith(".py")]
    pairs = [(m, declared.source.get(m.name)) for m in running]
    if not pairs:
        yield Check("source", expected, "no imported module is in that tree", "not_observed")
        return
    other = [m.name for m, digest in pairs if digest and digest != facts.files.of(m.path).blake3]
    lacking = [m.name for m, digest in pairs if not digest and not m.path.endswith(GENERATED)]
    if other:
        yield Check("source", expected, f"other bytes in {_some(other)}", "source_differs")
    if lacking:
        yield Check("source", expected, f"modules that the tree does not have: {_some(lacking)}", "source_differs")
    if not other and not lacking:
        yield Check("source", expected, f"{len(pairs)} modules have those bytes")


def replaced_code(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    """Functions that are not their file's, unless code of an unedited wheel put them there."""
    if facts.seen.replaced is None:
        yield not_observed(facts, "replaced", "functions", "the code of their files")
        return
    strange = [r for r in facts.seen.replaced if not (r.genuine and _is_trusted(facts, r.by))]
    for found in strange[:20]:
        where = f"{found.by}:{found.line} (module {found.module})"
        yield Check(f"function {found.function}", "the code of its file", f"replaced by {where}", "code_replaced")
    if facts.seen.replaced_skipped:
        seen = f"not looked at: {_some(facts.seen.replaced_skipped)}"
        yield Check("functions", "all looked at", seen, "code_not_compared")
    elif not strange:
        by_wheels = f"; {len(facts.seen.replaced)} replaced by installed wheels" if facts.seen.replaced else ""
        yield Check("functions", "the code of their files, or put there by an unedited wheel", f"they are{by_wheels}")


def _is_trusted(facts: RankFacts, path: str) -> bool:
    if f"/{WORKER}/" in path:
        return True
    place = facts.seen.place
    if place and path.startswith((f"{place.base_prefix}/lib/python", "<frozen")) and "site-packages" not in path:
        return True
    return facts.files.of(path).as_recorded is True


def stale_bytecode(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    if facts.seen.stale is None:
        yield not_observed(facts, "bytecode", "bytecode", "that of its source")
        return
    for entry in facts.seen.stale[:20]:
        yield Check(f"bytecode of {entry['module']}", "that of its source", entry["why"], "bytecode_stale")


def copies(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    if facts.seen.copies is None:
        yield not_observed(facts, "copies", "packages", "one copy of each on the path")
        return
    imported = {m.name: m.path for m in facts.seen.modules or ()}
    for name, places in facts.seen.copies.items():
        shown = f"{', '.join(places[:4])}; {imported.get(name, 'the first')} was imported"
        yield Check(f"package {name}", "one copy on the path", shown, "two_copies")


def moved_on(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    """Files written after the process had started: what is on the disk now need not be what was imported."""
    place = facts.seen.place
    if place is None or place.started_at is None:
        yield not_observed(facts, "place", "files", "as they were when the process started")
        return
    began = place.started_at * 1e9
    late = [m.path for m in facts.seen.modules or () if _is_late(m, began)]
    if late:
        yield Check("files", "as they were when the process started", f"written since: {_some(late)}", "code_moved_on")


def _is_late(module: SeenModule, began_ns: float) -> bool:
    return module.stat is not None and module.top != WORKER and module.stat[4] > began_ns + 2e9


# --- libraries, ranks, machine --------------------------------------------------------------------------------------


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
            "libraries", "of a package or the system, or named in expect.loaded", _some(strange), "library_unowned"
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
    for child in facts.seen.children or ():
        if child.computes:
            shown = f"process {child.pid} holds a torch: {child.command[:80]}"
            yield Check("workers", "every process that computes is observed", shown, "worker_unobserved")


def caches(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    """Code made at run time that is older than the code it was made from."""
    made = {cache.file for cache in facts.seen.caches or ()}
    code = [m for m in facts.seen.modules or () if m.stat and m.top in WATCHED and m.path not in made]
    newest = max((m.stat[4] / 1e9 for m in code if m.stat), default=0.0)
    old = [c.file for c in facts.seen.caches or () if c.from_cache and c.made_at < newest]
    if old:
        yield Check("caches", "made from the code that runs", f"older than it: {_some(old)}", "jit_cache_older")


Rule = Callable[[RankFacts, Declared], Iterable[Check]]
RULES: Final[tuple[Rule, ...]] = (
    environment, expected_env, versions, commits, module_paths, recorded_files, source, replaced_code, stale_bytecode,
    copies, moved_on, libraries, loaded, backends, transport, unobserved_workers, caches,
)  # fmt: skip
"""To add a rule: a function here, and a row in the table of reasons for each code it raises."""


def between_ranks(ranks: Sequence[RankFacts]) -> list[Check]:
    """Ranks must run the same files, versions and variables; what each of them imported besides is its own."""
    first, *others = ranks
    found = []
    for other in others:
        names = sorted(
            name for name, digest in module_digests(other).items() if module_digests(first).get(name, digest) != digest
        )
        if names:
            found.append(
                Check("ranks", "the files of rank 0", f"other bytes in {_some(names)}", "ranks_differ", other.rank)
            )
        one, two = (digest_env(r.seen.environment_now or {}) for r in (first, other))
        differ = sorted(name for name in {*one, *two} if one.get(name) != two.get(name))
        if differ:
            found.append(Check("ranks", "the variables of rank 0", _some(differ), "ranks_differ", other.rank))
    return found


def module_digests(facts: RankFacts) -> dict[str, str]:
    """Module -> digest of its file, where it is known. bitgate's own worker, staged anew for every run, is left out."""
    found = ((m.name, facts.files.of(m.path).digest) for m in facts.seen.modules or () if m.top != WORKER)
    return {name: digest for name, digest in found if digest}


def _equal(name: str, expected: str, observed: str) -> Check:
    return Check(name, expected, observed, "" if expected == observed else "expectation_unmet")


def _some(items: Sequence[str], most: int = 3) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
