"""One observation of this process, after its engine has loaded and run: written as provenance.json by every rank."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..files import write_json
from ..logs import is_secret
from .caches import cache_folders, caches_in_use
from .devices import device, transport
from .modules import OURS, WATCHED, bytecode, copies, imported, replaced
from .process import children, image, mapped_files, place, starting_environment
from .records import distributions, git_tree

FILE = "provenance.json"
FORMAT = 1
LONGEST_VALUE = 4096


def observe(folder: str, step: Mapping[str, Any]) -> str:
    """Writes the observation that the step asks for into the rank's folder; returns the file's name.

    Of the environment only what the step names is written down, and never the value of a secret-looking name.
    """
    body = observation([*WATCHED, *step["watched"]], hash_files=step["hash_files"])
    for section in ("environment_at_start", "environment_now"):
        if "not_observed" not in body[section]:
            body[section] = _wanted(body[section], frozenset(step["env_names"]), tuple(step["env_prefixes"]))
    write_json(os.path.join(folder, FILE), body)
    return FILE


def _wanted(environment: Mapping[str, str], names: frozenset[str], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {
        name: "[redacted]" if is_secret(name) else value[:LONGEST_VALUE]
        for name, value in sorted(environment.items())
        if name in names or name.startswith(prefixes)
    }


def observation(watched: Iterable[str], *, hash_files: bool = False) -> dict[str, Any]:
    """Sections by name. One that could not be observed is `{"not_observed": why}`, and is never left out."""
    names = sorted(set(watched) | {OURS})
    body: dict[str, Any] = {"format": FORMAT, "place": _section(place)}
    body["modules"] = modules = _section(imported)
    body["mapped"] = mapped = _section(mapped_files)
    listed = modules if isinstance(modules, list) else []
    folders = cache_folders(_environments())
    body["replaced"] = _section(lambda: replaced(names, [folder for _, folder in folders]))
    body["bytecode"] = _section(lambda: bytecode(listed, names))
    body["copies"] = _section(lambda: copies(sys.path))
    body["environment_at_start"] = _section(starting_environment)
    body["environment_now"] = dict(os.environ)
    body["distributions"] = _section(_distributions)
    body["trees"] = _section(lambda: _trees(listed))
    body["children"] = _section(children)
    body["image"] = _section(image)
    body["device"] = _section(device)
    body["transport"] = transport(dict(os.environ))
    started = body["place"].get("started_at") if isinstance(body["place"], dict) else None
    files = mapped if isinstance(mapped, list) else []
    body["caches"] = _section(lambda: caches_in_use(folders, files, started))
    _stat_all(listed)
    _stat_all(files)
    if hash_files:
        _hash_all([*listed, *files])
    return body


def _environments() -> list[Mapping[str, str]]:
    """As the process was started, where that can be read, and as it is now."""
    start = _section(starting_environment)
    return [os.environ] if "not_observed" in start else [start, os.environ]


def _section(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - an observation that fails is itself what was observed
        return {"not_observed": f"{type(error).__name__}: {error}"}


def _distributions() -> dict[str, Any]:
    found = distributions(sys.path)
    return {
        name: {
            "version": item.version,
            "folder": item.folder,
            "record": item.record_digest,
            "editable": item.editable,
            "commit": item.commit,
        }
        for name, item in found.items()
    }


def _trees(modules: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Top-level package -> the git tree its file lies in, for what is imported and lies in one."""
    found: dict[str, Any] = {}
    for entry in modules:
        top = entry["name"].partition(".")[0]
        if top in found or entry["name"] != top or "site-packages" in entry["file"] or top == OURS:
            continue
        if entry["file"].startswith((sys.base_prefix + os.sep, os.path.dirname(os.__file__) + os.sep)):
            continue
        tree = git_tree(entry["file"])
        if tree is not None:
            found[top] = tree.record()
    return found


def _stat_all(entries: Iterable[dict[str, Any]]) -> None:
    """Adds `stat` [device, inode, size, mtime, ctime], by which bitgate knows whether it sees the same file."""
    for entry in entries:
        try:
            seen = os.stat(entry.get("file") or entry["path"])
            entry["stat"] = [seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns]
        except OSError as error:
            entry["unreadable"] = error.strerror or type(error).__name__


def _hash_all(entries: Iterable[dict[str, Any]]) -> None:
    for entry in entries:
        try:
            with open(entry.get("file") or entry["path"], "rb") as file:
                entry["sha256"] = hashlib.file_digest(file, "sha256").hexdigest() if _HAS_DIGEST else _sha256(file)
        except OSError as error:
            entry["unreadable"] = error.strerror or type(error).__name__


_HAS_DIGEST = hasattr(hashlib, "file_digest")


def _sha256(file: Any) -> str:
    found = hashlib.sha256()
    while block := file.read(1 << 20):
        found.update(block)
    return found.hexdigest()
