"""Which files a call may touch: what resolves, symlinks first, under the project root or a root of the policy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bitgate.tools.errors import RequestError


def confined(text: str, field: str, root: Path, extra_roots: Sequence[Path] = ()) -> Path:
    """The resolved path that `text` names, relative to `root`.

    Raises:
        RequestError: it lies outside every allowed root, or is not a usable path.
    """
    roots = [root.resolve(), *(extra.resolve() for extra in extra_roots)]
    allowed = "a path under " + " or ".join(map(str, roots))
    if "\0" in text or not text:
        raise RequestError(field, text, allowed)
    try:
        path = (root / text).resolve()
        # Names that no file can have pass `resolve`; later they would end a run.
        with suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()
    except (OSError, RuntimeError) as error:
        raise RequestError(field, text, allowed, f"It cannot be resolved: {error}.") from error
    if not any(path.is_relative_to(base) for base in roots):
        raise RequestError(field, text, allowed, "A person can add its folder to [policy] roots.")
    return path
