"""Triton kernels as they are launched: torch's dispatcher does not see them, so their launchers are watched.

A launch is kept as an operator `triton.<module>:<function>` with its grid, its arguments and what it was compiled for
(constexprs, warps, stages), below any autotuner: it is launched again as it ran, not tuned anew.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

LAUNCH: Final = "triton."
LAUNCHERS: Final = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", "InterpretedFunction"))
PLAIN: Final = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Launch:
    """`kernel[grid](*args, **kwargs)`; `kernel` as Triton has it below decorators."""

    kernel: Any
    grid: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        function = self.kernel.fn
        return f"{LAUNCH}{function.__module__}:{function.__qualname__}"

    def tensors(self) -> list[Tensor]:
        return [value for value in _flat((*self.args, *self.kwargs.values())) if isinstance(value, Tensor)]

    def sizes(self) -> list[int]:
        """The grid as numbers; one that is a function is asked with the kernel's arguments, as Triton asks it."""
        grid = self.grid
        if callable(grid):
            signature = inspect.signature(self.kernel.fn)
            own = {name: value for name, value in self.kwargs.items() if name in signature.parameters}
            bound = signature.bind(*self.args, **own)
            bound.apply_defaults()
            grid = grid({**self.kwargs, **bound.arguments})
        return [int(size) for size in grid]

    def problem(self) -> str | None:
        """Why it could not be launched again in another process, if so."""
        try:
            found = kernel_of(self.name)
        except (ImportError, AttributeError) as error:
            return f"the Triton kernel {self.name.removeprefix(LAUNCH)} cannot be imported again: {error}"
        if self.kernel.fn.__module__ == "__main__":
            return f"the Triton kernel {self.name.removeprefix(LAUNCH)} is in no module that could be imported again"
        if found is not self.kernel:
            return f"the Triton kernel {self.name.removeprefix(LAUNCH)} is not what its module has under that name"
        return None


def _flat(values: tuple[Any, ...]) -> Iterator[Any]:
    for value in values:
        yield from _flat(value) if isinstance(value, tuple) else (value,)


Seen = Callable[[Launch, Callable[[], Any]], Any]
_WATCHING: list[Seen] = []


def kernel_of(name: str) -> Any:
    """The kernel of an operator's name, below autotuners and heuristics. Raises: ImportError, AttributeError."""
    module, _, path = name.removeprefix(LAUNCH).partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    while hasattr(found.fn, "fn"):
        found = found.fn
    return found


def launched(name: str, grid: list[int], args: list[Any], kwargs: dict[str, Any]) -> None:
    """The launch again. Raises: ImportError, AttributeError where the kernel is not there."""
    kernel_of(name).run(
        *map(_tupled, args), grid=tuple(grid), warmup=False, **{k: _tupled(v) for k, v in kwargs.items()}
    )


def _tupled(value: Any) -> Any:
    """Triton takes tuples where JSON has lists."""
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


@contextlib.contextmanager
def watched(seen: Seen) -> Iterator[None]:
    """Every launch goes to `seen` with the way to run it, until the end; of several watchers the last one has it."""
    with contextlib.ExitStack() as stack:
        if not _WATCHING:
            for module, name in LAUNCHERS:
                owner = getattr(sys.modules.get(module), name, None)
                if owner is not None:
                    stack.enter_context(_replaced(owner, "run", _noting))
            tuner = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
            if tuner is not None:
                stack.enter_context(_replaced(tuner, "_bench", _unwatched))
        _WATCHING.append(seen)
        try:
            yield
        finally:
            _WATCHING.pop()


@contextlib.contextmanager
def _replaced(owner: type, name: str, wrapper: Callable[[Any], Any]) -> Iterator[None]:
    original = owner.__dict__[name]
    setattr(owner, name, functools.wraps(original)(wrapper(original)))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _noting(original: Any) -> Any:
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        def go() -> Any:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)

        return go() if warmup or not _WATCHING else _WATCHING[-1](Launch(self, grid, args, kwargs), go)

    return run


def _unwatched(original: Any) -> Any:
    """What an autotuner tries is not what the engine computes with."""

    def bench(*args: Any, **kwargs: Any) -> Any:
        _WATCHING.append(lambda _, go: go())
        try:
            return original(*args, **kwargs)
        finally:
            _WATCHING.pop()

    return bench


def encoded(value: Any, tensor: Callable[[Tensor], str]) -> Any:
    """An argument of a launch as JSON has it. Raises: TypeError for what cannot be kept."""
    if isinstance(value, Tensor):
        return {"t": tensor(value)}
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"float": str(value)}
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, tuple):
        return [encoded(item, tensor) for item in value]
    kind = type(value).__name__
    if kind == "constexpr":
        return encoded(value.value, tensor)
    if type(value).__module__.startswith("triton.") and kind == "dtype":
        return {"triton.dtype": value.name}
    if kind in (name for _, name in LAUNCHERS):
        return {"triton.kernel": f"{value.fn.__module__}:{value.fn.__qualname__}"}
    raise TypeError(f"an argument of type {kind} cannot be kept")
