"""Imported modules: their files, how they were found, and functions whose code is not their file's."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import marshal
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

WATCHED = (
    "vllm", "torch", "transformers", "triton", "flashinfer", "deep_gemm", "deep_ep", "megatron", "transformer_engine",
    "flash_attn", "verl", "batch_invariant_ops",
)  # fmt: skip
"""Packages whose functions are compared with their files, besides those that the side names."""
OURS = __package__.partition(".")[0]
BUDGET_S = 60.0
_CLASS_BODY = inspect.CO_NEWLOCALS | inspect.CO_OPTIMIZED
_UNCHECKED_HASH = 0b01


def imported() -> list[dict[str, Any]]:
    """Every imported module that has a file: `name`, `file`, `cached` bytecode where it was read or written."""
    found = []
    for name, module in sorted(sys.modules.items()):
        path = file_of(module)
        if path is None:
            continue
        entry: dict[str, Any] = {"name": name, "file": path}
        loader = type(getattr(getattr(module, "__spec__", None), "loader", None)).__name__
        if loader == "SourcelessFileLoader":
            entry["sourceless"] = True
        found.append(entry)
    return found


def file_of(module: Any) -> str | None:
    """The absolute path of a module's file. Only the module's own dictionary is read: lazy modules stay asleep."""
    if not isinstance(module, ModuleType):
        return None
    path = vars(module).get("__file__")
    return os.path.abspath(path) if isinstance(path, str) else None


def copies(path: Iterable[str]) -> dict[str, list[str]]:
    """Imported top-level name -> the places on `path` that have it, where there is more than one."""
    entries = [
        entry for entry in dict.fromkeys(os.path.realpath(e or os.getcwd()) for e in path) if not _is_vendored(entry)
    ]
    listed = {entry: _listing(entry) for entry in entries}
    tops = {name for name, module in sys.modules.items() if "." not in name and file_of(module)}
    found: dict[str, list[str]] = {}
    for top in sorted(tops - set(sys.builtin_module_names)):
        places = [where for entry in entries if (where := _provider(entry, listed[entry], top))]
        if len(places) > 1:
            found[top] = places
    return found


def _is_vendored(entry: str) -> bool:
    """A folder inside an installed package, such as setuptools/_vendor, that the package put on the path itself."""
    return any(f"{os.sep}{packages}{os.sep}" in entry for packages in ("site-packages", "dist-packages"))


def _listing(entry: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(entry))
    except OSError:
        return frozenset()


def _provider(entry: str, names: frozenset[str], top: str) -> str | None:
    package = os.path.join(entry, top, "__init__.py")
    if top in names and os.path.isfile(package):
        return package
    return os.path.join(entry, f"{top}.py") if f"{top}.py" in names else None


def bytecode(modules: Iterable[dict[str, Any]], watched: Iterable[str]) -> dict[str, Any]:
    """Bytecode that is not its source's: loaded without a source, unchecked, or older than a file that was put back.

    A timestamp in bytecode equals its source's or Python compiles anew, so only these can be stale; they are compiled
    and compared, for the packages that are watched.
    """
    tops, stale, checked = set(watched), [], 0
    for entry in modules:
        if entry.get("sourceless"):
            stale.append({"module": entry["name"], "file": entry["file"], "why": "there is no source"})
            continue
        if entry["name"].partition(".")[0] not in tops or not entry["file"].endswith(".py"):
            continue
        cached = importlib.util.cache_from_source(entry["file"])
        if not _is_doubtful(entry["file"], cached):
            continue
        checked += 1
        if (why := _differs(entry["file"], cached)) is not None:
            stale.append({"module": entry["name"], "file": entry["file"], "why": why})
    return {"stale": stale, "compiled": checked}


def _is_doubtful(source: str, cached: str) -> bool:
    try:
        with open(cached, "rb") as file:
            head = file.read(16)
        there, made = os.stat(source), os.stat(cached)
    except OSError:
        return False
    if len(head) < 16:
        return False
    flags = int.from_bytes(head[4:8], "little")
    return flags == _UNCHECKED_HASH or there.st_ctime_ns > made.st_ctime_ns + 10**9


def _differs(source: str, cached: str) -> str | None:
    try:
        with open(source, "rb") as file:
            fresh = compile(file.read(), source, "exec", dont_inherit=True)
        with open(cached, "rb") as file:
            held = marshal.loads(file.read()[16:])
    except (OSError, ValueError, SyntaxError, EOFError, TypeError) as error:
        return f"it cannot be compared: {type(error).__name__}"
    return None if same_code(fresh, held) else "the bytecode is not what the source compiles to"


def same_code(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects compute the same; where their file lies makes no difference."""
    if one is other or one == other:
        return True
    simple = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount", "co_kwonlyargcount")
    if any(getattr(one, name) != getattr(other, name) for name in simple) or len(one.co_consts) != len(other.co_consts):
        return False
    return all(_same_constant(a, b) for a, b in zip(one.co_consts, other.co_consts, strict=True))


def _same_constant(a: Any, b: Any) -> bool:
    if isinstance(a, CodeType):
        return isinstance(b, CodeType) and same_code(a, b)
    return type(a) is type(b) and repr(a) == repr(b)


@dataclass
class Replaced:
    """`functions`: those whose code is not their file's and not other code of the same package's files either."""

    functions: list[dict[str, Any]] = field(default_factory=list)
    modules: int = 0
    within_package: int = 0
    """Replaced by the package itself, with code that is in its files."""
    skipped: list[str] = field(default_factory=list)
    """Modules not looked at: the time was over, or their code could not be read."""


def replaced(watched: Iterable[str], generated: Iterable[str] = (), budget_s: float = BUDGET_S) -> dict[str, Any]:
    """Functions and methods of watched packages whose code is not that of their file, and who put it there.

    Modules whose files lie below a folder of `generated` were made at run time; the caches section has those.
    """
    tops, started, found = set(watched), time.thread_time(), Replaced()
    made = tuple(os.path.realpath(folder) + os.sep for folder in generated)
    codes = Codes()
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] not in tops or not (file_of(module) or "").endswith(".py"):
            continue
        if os.path.realpath(file_of(module) or "").startswith(made):
            continue
        code = codes.of(name) if time.thread_time() - started <= budget_s else None
        if code is None:
            found.skipped.append(name)
            continue
        found.modules += 1
        for entry, function in _replaced_in(name, module, code):
            entry["genuine"] = codes.hold(entry["by"], function.__code__)
            if entry["genuine"] and entry["module"].partition(".")[0] == name.partition(".")[0]:
                found.within_package += 1
            else:
                found.functions.append(entry)
    return vars(found)


class Codes:
    """The code of modules as their files have it."""

    def __init__(self) -> None:
        self._by_file = {path: name for name, module in list(sys.modules.items()) if (path := file_of(module))}
        self._known: dict[str, CodeType | None] = {}

    def of(self, name: str) -> CodeType | None:
        if name not in self._known:
            self._known[name] = _code_of(name, sys.modules[name])
        return self._known[name]

    def hold(self, path: str, wanted: CodeType) -> bool:
        """Whether this code is anywhere in that file."""
        name = self._by_file.get(path)
        whole = self.of(name) if name else None
        return whole is not None and any(same_code(code, wanted) for code in _inside(whole, wanted.co_name))


def _inside(code: CodeType, name: str) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_name == name:
                yield const
            yield from _inside(const, name)


def _code_of(name: str, module: ModuleType) -> CodeType | None:
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    try:
        code = loader.get_code(name)  # type: ignore[union-attr]
    except Exception:  # noqa: BLE001 - a loader of anybody's; what it cannot give is counted as not looked at
        return None
    return code if isinstance(code, CodeType) else None


def _replaced_in(name: str, module: ModuleType, code: CodeType) -> Iterator[tuple[dict[str, Any], FunctionType]]:
    doubtful = list(_doubtful(vars(module), code, ""))
    if not doubtful:
        return
    text = _text(file_of(module) or "")
    lines = text.splitlines()
    undecorated = [(qualname, function) for qualname, line, function in doubtful if _is_undecorated(lines, line)]
    plain = _plain_definitions(text) if undecorated else frozenset()
    for qualname, function in undecorated:
        if qualname in plain:
            where = function.__code__
            entry = {"function": f"{name}.{qualname}", "by": os.path.abspath(where.co_filename)}
            module_name = str(getattr(function, "__module__", ""))
            yield {**entry, "line": where.co_firstlineno, "module": module_name}, function


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def _is_undecorated(lines: list[str], first: int) -> bool:
    """A function's first line is that of its first decorator: most are told apart without parsing the file."""
    start = lines[first - 1].lstrip() if 0 < first <= len(lines) else ""
    return start.startswith(("def ", "async def ", "@staticmethod", "@classmethod"))


def _doubtful(live: Any, code: CodeType, prefix: str) -> Iterator[tuple[str, int, FunctionType]]:
    """Live functions under the names that the file defines, whose code is not the file's."""
    names = [const.co_name for const in code.co_consts if isinstance(const, CodeType)]
    for const in code.co_consts:
        if not isinstance(const, CodeType) or const.co_name.startswith("<") or names.count(const.co_name) > 1:
            continue
        value = live.get(const.co_name)
        if const.co_flags & _CLASS_BODY:
            function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if isinstance(function, FunctionType) and not same_code(function.__code__, const):
                yield prefix + const.co_name, const.co_firstlineno, function
        elif isinstance(value, type):
            yield from _doubtful(vars(value), const, f"{prefix}{const.co_name}.")


def _plain_definitions(text: str) -> frozenset[str]:
    """Functions that the file defines without a decorator and binds once: only those must be as the file has them."""
    try:
        return frozenset(_plain(ast.parse(text).body, ""))
    except (ValueError, SyntaxError):
        return frozenset()


def _plain(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    bound = [name for statement in body for name in _bound(statement)]
    for statement in body:
        if isinstance(statement, ast.ClassDef) and not statement.decorator_list:
            yield from _plain(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            harmless = all(getattr(d, "id", "") in ("staticmethod", "classmethod") for d in statement.decorator_list)
            if harmless and bound.count(statement.name) == 1:
                yield prefix + statement.name


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement binds in its own scope, conditions and loops included."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt):
            yield from _bound(node)
        for name in ast.walk(node) if not isinstance(node, ast.stmt) else ():
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                yield name.id
    if isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
