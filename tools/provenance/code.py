"""Rules on Python code: versions, commits, files, functions, bytecode."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from bitgate.tools.engines.worker.provenance.records import normalised
from bitgate.tools.provenance.check import WORKER, Check, Declared, RankFacts, equal, not_observed, some
from bitgate.tools.provenance.observed import SeenModule

GENERATED: Final = ("_version.py", "version.py", "_commit.py", "git_version_info_installed.py")
"""Files that building a package writes, so that no source tree has them."""


def versions(facts: RankFacts, declared: Declared) -> Iterator[Check]:
    for name, value in declared.expect.versions.items():
        if facts.seen.distributions is None:
            yield not_observed(facts, "distributions", f"version of {name}", value)
            continue
        found = facts.seen.distributions.get(normalised(name))
        if found is None:
            yield Check(f"version of {name}", value, "not installed", "expectation_unmet")
        else:
            yield equal(f"version of {name}", value, found.version)


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
        yield Check("files of wheels", "the bytes of RECORD", some(edited), "file_edited")
    elif verified:
        yield Check("files of wheels", "the bytes of RECORD", f"{verified} files are")
    if unreadable:
        why = facts.files.known[unreadable[0]].unreadable
        yield Check("files", "readable", f"{some(unreadable)} ({why})", "file_unreadable")
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
        yield Check("files of wheels", "listed in RECORD", some(added), "file_added")


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
        yield Check("source", expected, f"other bytes in {some(other)}", "source_differs")
    if lacking:
        yield Check("source", expected, f"modules that the tree does not have: {some(lacking)}", "source_differs")
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
        seen = f"not looked at: {some(facts.seen.replaced_skipped)}"
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
    """Files written after the process had started: what is on the disk now need not be what was imported.

    Code that the process itself made at run time, in the caches that are known to hold such, is no sign of that.
    """
    place = facts.seen.place
    expected = "as they were when the process started"
    if place is None:
        yield not_observed(facts, "place", "files", expected)
        return
    if place.started_at is None:
        yield Check("files", expected, "nothing: no /proc says when the process started", "not_observed")
        return
    began = place.started_at * 1e9
    made = {cache.file for cache in facts.seen.caches or ()}
    late = [m.path for m in facts.seen.modules or () if m.path not in made and _is_late(m, began)]
    if late:
        yield Check("files", expected, f"written since: {some(late)}", "code_moved_on")


def _is_late(module: SeenModule, began_ns: float) -> bool:
    return module.stat is not None and module.top != WORKER and module.stat[4] > began_ns + 2e9
