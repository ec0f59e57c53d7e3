"""What an interpreter has installed, read from its files: nothing is imported, so it takes milliseconds."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path


def site_packages(python: str | None) -> Path | None:
    """The site-packages of a virtual environment's interpreter; None where there is none to look at."""
    if python is None:
        return None
    found = sorted(Path(python).parent.parent.glob("lib/python3.*/site-packages"))
    return found[-1] if found else None


def platform_of(python: str | None) -> str | None:
    """`cpu` or `cuda`, from the torch that is installed; None when that cannot be seen (a container, a remote host)."""
    packages = site_packages(python)
    text = _read(packages / "torch" / "version.py") if packages else None
    if text is None:
        return None
    values = {
        target.id: node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Constant)
        for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
        if isinstance(target, ast.Name)
    }
    return "cuda" if values.get("cuda") or values.get("hip") else "cpu"


def dataclass_fields(python: str | None, module: str, name: str) -> frozenset[str] | None:
    """The annotated fields of a class in an installed module's source, such as vLLM's EngineArgs; None if not found."""
    packages = site_packages(python)
    if packages is None:
        return None
    path = packages.joinpath(*module.split(".")).with_suffix(".py")
    try:
        return _fields(str(path), path.stat().st_mtime_ns, name)
    except OSError:
        return None


@lru_cache(maxsize=32)
def _fields(path: str, _changed: int, name: str) -> frozenset[str] | None:
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            annotated = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
            return frozenset(target.id for target in annotated if isinstance(target, ast.Name))
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
