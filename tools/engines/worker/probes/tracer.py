"""Operators noted as they run: torch's dispatcher sees each, and tensors get names as they pass points.

Every operator that reaches the dispatcher is noted, in-place ones and vLLM's custom ones included; operators that are
Python inside are entered where the table names them. What they read from elsewhere (weights, tables, caches) is kept as
a constant, cloned before an operator could write to it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .launches import Launch, encoded, watched
from .program import FRESH, Op, Point, Program, copied
from .region import Mark, Trace, region
from .touched import Before

ATTENTION = "vllm.model_executor.layers.attention.attention"
EXPERTS = "vllm.model_executor.layers.fused_moe.runner.moe_runner"
RECURRENT = "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention"
ENTERED = {
    "bitgate.tiled_product.default": "..tiles:_tiled_product",
    "vllm.moe_forward.default": f"{EXPERTS}:_moe_forward",
    "vllm.moe_forward_shared.default": f"{EXPERTS}:_moe_forward_shared",
    "bitgate.tiled_cpu_fused_moe.default": "..tiles_experts:_tiled",
    "vllm.unified_attention_with_output.default": f"{ATTENTION}:unified_attention_with_output",
    "vllm.unified_kv_cache_update.default": f"{ATTENTION}:unified_kv_cache_update",
    "vllm.cpu_gdn_attention_core.default": f"{RECURRENT}:cpu_gdn_attention_core",
}
"""Operators that are Python inside, and their functions: called as such, since torch would hand them to us again."""
CONSTANT_LIMIT = 1 << 28
HANDLERS = ("onednn_mm",)
"""Operators whose int64 scalar argument points to a packed weight inside the process."""
UNREADABLE = ("onednn_scaled_mm",)
"""As these, but of a weight that no product gives back to the bit: nothing could run them again."""


class Tracer(TorchDispatchMode):
    """Notes what runs while it is active (`with tracer:`); `mark` names tensors as they pass points."""

    def __init__(self) -> None:
        super().__init__()
        self.trace = Trace()
        self.paused = 0
        self.active = False
        self.substitute: Callable[[Tensor], Tensor | None] = lambda _: None
        self.recipes: dict[int, tuple[str, list[Any], Any]] = {}
        self._guards: list[Any] = []
        self._watch: list[Any] = []
        self._resized: dict[str, tuple[int, int]] = {}
        self._names: dict[int, str] = {}
        self._keep: list[Any] = []
        self._count = 0

    def program(self, inputs: Sequence[Point], output: Point, keys: Any) -> Program | None:
        """The region between these points, if the output passed (see `region`)."""
        return region(self.trace, inputs, output, keys)

    def __enter__(self) -> Any:
        self.active = True
        self._watch.append(watched(self._launched))
        self._watch[-1].__enter__()
        # vLLM defines some CPU kernels for all keys at once: with autograd's key in the way they would run unseen.
        self._guards.append(None if torch.is_grad_enabled() else torch._C._AutoDispatchBelowAutograd())
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        self._guards.pop()
        self._watch.pop().__exit__(None, None, None)
        self.active = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        name = str(func)
        if name in ENTERED:
            return self._enter(name, args, kwargs)
        encoded = self._encoded(name, args, kwargs)
        writes = tuple(self._written(func, args, kwargs))
        if name.split(".")[1] in HANDLERS:
            self._handler(func, args)
        if name.split(".")[1] in UNREADABLE:
            self.trace.refused[name] = f"the packed weight of {name} cannot be read back"
        # Triton kernels that an operator launches inside are part of it.
        self.paused += 1
        try:
            result = _defined(func(*args, **kwargs))
        finally:
            self.paused -= 1
        outs = result if isinstance(result, tuple | list) else [result]
        shared = self._aliased(func, args)
        names = [self._output(o, _same_memory(o, shared)) if isinstance(o, Tensor) else None for o in outs]
        self.trace.ops.append(Op(name, encoded[0], encoded[1], names, writes))
        return result

    def _launched(self, launch: Launch, go: Callable[[], Any]) -> Any:
        """A Triton kernel, which the dispatcher does not see: what it writes is found by looking at its arguments."""
        if self.paused:
            return go()
        given = {self._named(t): t for t in launch.tensors()}
        problem = launch.problem()
        try:
            args = [launch.sizes(), [encoded(value, self._named) for value in launch.args]]
            kwargs = {name: encoded(value, self._named) for name, value in launch.kwargs.items()}
        except (TypeError, ValueError) as error:
            args, kwargs, problem = [], {}, problem or f"{launch.name}: {error}"
        if problem is not None:
            self.trace.refused[launch.name] = problem
        self.paused += 1
        try:
            before = Before(given, self._unwritten(given))
            result = go()
            writes = dict.fromkeys(self.trace.root(name) for name in before.written())
        finally:
            self.paused -= 1
        self.trace.ops.append(Op(launch.name, args, kwargs, [], tuple(writes)))
        return result

    def _unwritten(self, names: Iterable[str]) -> set[str]:
        """Of these, fresh memory that nobody has written yet."""
        fresh = {o for op in self.trace.ops if op.name.split(".")[1] in FRESH for o in op.outs if o is not None}
        return {
            n for n in names if (r := self.trace.root(n)) in fresh and not any(r in op.writes for op in self.trace.ops)
        }

    def _named(self, tensor: Tensor) -> str:
        return self._names.get(id(tensor)) or self._external(tensor)

    def _encoded(self, name: str, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        """What cannot be kept ends the experiments, which say so, and not the engine's forward."""
        try:
            return self._sized(self._encode(name, list(args))), {k: self._encode(name, v) for k, v in kwargs.items()}
        except (RuntimeError, IndexError, TypeError) as error:
            self.trace.refused[name] = f"the arguments of {name} could not be kept: {error}"
            return [], {}

    def _enter(self, name: str, args: Any, kwargs: Any) -> Any:
        module, _, attribute = ENTERED[name].partition(":")
        run = getattr(importlib.import_module(module, __package__), attribute)
        with self:
            result = run(*args, **kwargs)
        self.active = True
        return result

    def mark(self, point: Point, raw: Tensor, canonical: Tensor, keys: Any = None) -> None:
        """`keys` int64 [R, 2]: of the rows of `canonical`, where they are not the forward's; more rows are padding."""
        name = self._named(raw)
        self.paused += 1
        # A view made outside of the trace is not known; what the engine itself holds is compared then.
        shown = self._names.get(id(canonical), name)
        self.trace.marks[point] = Mark(name, shown, len(self.trace.ops), copied(raw), canonical.detach().clone(), keys)
        self.paused -= 1

    def _encode(self, op: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return {"t": self._named(value)}
        if isinstance(value, list | tuple):
            return [self._encode(op, item) for item in value]
        if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return {"float": str(value)}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        self.trace.refused[op] = f"an argument of type {type(value).__name__} cannot be kept"
        return None

    def _sized(self, args: list[Any]) -> list[Any]:
        """The sizes in a view of a constant that was cut: the size that was cut is another now."""
        first = args[0] if args else None
        cut = self._resized.get(first["t"]) if isinstance(first, dict) and "t" in first else None
        if cut is None:
            return args
        return [[cut[1], *a[1:]] if isinstance(a, list) and a[:1] == [cut[0]] else a for a in args]

    def _external(self, tensor: Tensor) -> str:
        recipe = self.recipes.get(tensor.data_ptr())
        if recipe is not None:
            # A blob with pointers inside: kept as the call that made it.
            encoded = self._encode(recipe[0], recipe[1])
            name = self._name(tensor)
            self.trace.ops.append(Op(recipe[0], encoded, {}, [name]))
            return name
        name = self._name(tensor)
        value = self.substitute(tensor)
        if value is not None and value.is_floating_point():
            self.trace.caches.append(name)
        if value is not None:
            for size, kept in zip(tensor.shape, value.shape, strict=True):
                if size != kept:
                    self._resized[name] = (int(size), int(kept))
        if value is None:
            if tensor.numel() * tensor.element_size() > CONSTANT_LIMIT:
                self.trace.refused[name] = f"a constant of shape {list(tensor.shape)} is too large to keep"
                value = tensor.new_zeros(0)
            else:
                value = tensor
        with torch.no_grad():
            self.paused += 1
            self.trace.values[name] = copied(value)
            self.paused -= 1
        return name

    def _name(self, tensor: Tensor) -> str:
        self._count += 1
        name = f"v{self._count}"
        self._names[id(tensor)] = name
        self._keep.append(tensor)
        self.trace.alias[name] = name
        return name

    def _output(self, tensor: Tensor, shared: list[str]) -> str:
        name = self._names.get(id(tensor))
        if name is not None:
            return name
        name = self._name(tensor)
        if shared:
            self.trace.alias[name] = self.trace.root(shared[0])
        return name

    def _aliased(self, func: Any, args: Any) -> list[tuple[str, Tensor]]:
        """Arguments that an output may be a view of: a cast is one only where there is nothing to cast."""
        if not any(r.alias_info is not None for r in func._schema.returns):
            return []
        pairs = zip(func._schema.arguments, args, strict=False)
        found = [a for s, a in pairs if s.alias_info is not None and isinstance(a, Tensor)]
        return [(self._names[id(a)], a) for a in found if id(a) in self._names]

    def _written(self, func: Any, args: Any, kwargs: Any) -> Iterator[str]:
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            for tensor in value if isinstance(value, list | tuple) else [value]:
                if isinstance(tensor, Tensor) and id(tensor) in self._names:
                    yield self.trace.root(self._names[id(tensor)])

    def _handler(self, func: Any, args: Any) -> None:
        """The packed weight behind a handle, read back by multiplying with the identity (exact)."""
        out, x, _, handle = args[:4]
        name = self._names[id(handle)]
        if name in self.trace.handlers:
            return
        size = int(x.shape[-1])
        with torch.no_grad():
            self.paused += 1
            eye = torch.eye(size, dtype=x.dtype)
            read = torch.empty(size, out.shape[-1], dtype=x.dtype)
            func(read, eye, None, handle)
            self.trace.values[name] = read.t().contiguous()
            self.paused -= 1
        self.trace.handlers[name] = [int(out.shape[-1]), size]


def _same_memory(output: Tensor, arguments: Sequence[tuple[str, Tensor]]) -> list[str]:
    storage = output.untyped_storage().data_ptr()
    return [name for name, tensor in arguments if tensor.untyped_storage().data_ptr() == storage]


def _defined(result: Any) -> Any:
    """An undefined tensor in a list comes to us as None, which torch cannot take back from us."""
    if isinstance(result, list) and any(item is None for item in result):
        return [torch.empty(0) if item is None else item for item in result]
    return result
