"""Operators noted as they run: torch's dispatcher sees each, and tensors get names as they pass points.

Every operator that reaches the dispatcher is noted, in-place ones and vLLM's custom ones included; operators that are
Python inside are entered where the table names them. A region is what lies between the tensors at its input points and
the tensor at its output point; whatever else it reads (weights, tables, caches) is kept as a constant, cloned before
the operator could write to it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .gpu import batch_invariant_mode, home
from .launches import Launch, encoded, watched
from .program import FRESH, Op, Point, Program, copied, tensors_of
from .rows import same_bits
from .setting import setting
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


@dataclass(frozen=True)
class Mark:
    """A tensor at a point: `name` is the engine's own, `shown` its canonical view [R, …], with their values then."""

    name: str
    shown: str
    at: int
    raw: Tensor
    canonical: Tensor
    keys: Any = None


def _for_rows(mark: Mark, forward: Any, rows: Any) -> Tensor:
    """The mark's rows in the order of `rows`; all of them where one of these did not pass this point."""
    keys = forward if mark.keys is None else mark.keys
    if keys is rows:
        return mark.canonical
    at = {key: number for number, key in enumerate(map(tuple, keys.tolist())) if key[0] >= 0}
    wanted = [at.get(key, -1) for key in map(tuple, rows.tolist())]
    owned = [number >= 0 or key[0] < 0 for number, key in zip(wanted, rows.tolist(), strict=True)]
    return (
        mark.canonical[torch.tensor(wanted, device=mark.canonical.device).clamp(min=0)]
        if all(owned)
        else mark.canonical
    )


class Tracer(TorchDispatchMode):
    """Notes what runs while it is active (`with tracer:`); `mark` names tensors as they pass points."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.values: dict[str, Tensor] = {}
        self.marks: dict[Point, Mark] = {}
        self.paused = 0
        self.active = False
        self.refused: dict[str, str] = {}
        self.handlers: dict[str, list[int]] = {}
        self.caches: list[str] = []
        """Constants that an engine's taps cut to what is read."""
        self.substitute: Callable[[Tensor], Tensor | None] = lambda _: None
        self.recipes: dict[int, tuple[str, list[Any], Any]] = {}
        self._guards: list[Any] = []
        self._watch: list[Any] = []
        self._resized: dict[str, tuple[int, int]] = {}
        self._names: dict[int, str] = {}
        self._alias: dict[str, str] = {}
        self._keep: list[Any] = []
        self._count = 0

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
            self.refused[name] = f"the packed weight of {name} cannot be read back"
        # Triton kernels that an operator launches inside are part of it.
        self.paused += 1
        try:
            result = _defined(func(*args, **kwargs))
        finally:
            self.paused -= 1
        outs = result if isinstance(result, tuple | list) else [result]
        shared = self._aliased(func, args)
        names = [self._output(o, _same_memory(o, shared)) if isinstance(o, Tensor) else None for o in outs]
        self.ops.append(Op(name, encoded[0], encoded[1], names, writes))
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
            self.refused[launch.name] = problem
        self.paused += 1
        try:
            before = Before(given, self._unwritten(given))
            result = go()
            writes = dict.fromkeys(self._root(name) for name in before.written())
        finally:
            self.paused -= 1
        self.ops.append(Op(launch.name, args, kwargs, [], tuple(writes)))
        return result

    def _unwritten(self, names: Iterable[str]) -> set[str]:
        """Of these, fresh memory that nobody has written yet."""
        fresh = {o for op in self.ops if op.name.split(".")[1] in FRESH for o in op.outs if o is not None}
        return {n for n in names if (r := self._root(n)) in fresh and not any(r in op.writes for op in self.ops)}

    def _named(self, tensor: Tensor) -> str:
        return self._names.get(id(tensor)) or self._external(tensor)

    def _encoded(self, name: str, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        """What cannot be kept ends the experiments, which say so, and not the engine's forward."""
        try:
            return self._sized(self._encode(name, list(args))), {k: self._encode(name, v) for k, v in kwargs.items()}
        except (RuntimeError, IndexError, TypeError) as error:
            self.refused[name] = f"the arguments of {name} could not be kept: {error}"
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
        self.marks[point] = Mark(name, shown, len(self.ops), copied(raw), canonical.detach().clone(), keys)
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
        self.refused[op] = f"an argument of type {type(value).__name__} cannot be kept"
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
            self.ops.append(Op(recipe[0], encoded, {}, [name]))
            return name
        name = self._name(tensor)
        value = self.substitute(tensor)
        if value is not None and value.is_floating_point():
            self.caches.append(name)
        if value is not None:
            for size, kept in zip(tensor.shape, value.shape, strict=True):
                if size != kept:
                    self._resized[name] = (int(size), int(kept))
        if value is None:
            if tensor.numel() * tensor.element_size() > CONSTANT_LIMIT:
                self.refused[name] = f"a constant of shape {list(tensor.shape)} is too large to keep"
                value = tensor.new_zeros(0)
            else:
                value = tensor
        with torch.no_grad():
            self.paused += 1
            self.values[name] = copied(value)
            self.paused -= 1
        return name

    def _name(self, tensor: Tensor) -> str:
        self._count += 1
        name = f"v{self._count}"
        self._names[id(tensor)] = name
        self._keep.append(tensor)
        self._alias[name] = name
        return name

    def _output(self, tensor: Tensor, shared: list[str]) -> str:
        name = self._names.get(id(tensor))
        if name is not None:
            return name
        name = self._name(tensor)
        if shared:
            self._alias[name] = self._root(shared[0])
        return name

    def _root(self, name: str) -> str:
        while self._alias.get(name, name) != name:
            name = self._alias[name]
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
                    yield self._root(self._names[id(tensor)])

    def _handler(self, func: Any, args: Any) -> None:
        """The packed weight behind a handle, read back by multiplying with the identity (exact)."""
        out, x, _, handle = args[:4]
        name = self._names[id(handle)]
        if name in self.handlers:
            return
        size = int(x.shape[-1])
        with torch.no_grad():
            self.paused += 1
            eye = torch.eye(size, dtype=x.dtype)
            read = torch.empty(size, out.shape[-1], dtype=x.dtype)
            func(read, eye, None, handle)
            self.values[name] = read.t().contiguous()
            self.paused -= 1
        self.handlers[name] = [int(out.shape[-1]), size]

    def program(self, inputs: Sequence[Point], output: Point, keys: Any) -> Program | None:
        """The operators from the marks of `inputs` (those that passed) to the mark of `output`, whose rows count.

        keys: of the forward's rows.
        """
        if output not in self.marks:
            return None
        end = self.marks[output]
        passed = {point: self.marks[point] for point in inputs if point in self.marks}
        given, root = dict(passed), self._root(end.shown)
        ops, read, late = self._backwards(root, end.at, self._stops(given))
        if late:
            # One kernel wrote the output and this input (a residual sum and its norm): what it read is the input.
            given = {point: mark for point, mark in given.items() if self._root(mark.name) not in late}
            ops, read, _ = self._backwards(root, end.at, self._stops(given))
        shown = end.shown if ops else self._handed_on(end, given.values())
        read += [] if any(shown in op.outs for op in ops) else [shown]
        values = {name: self.values[name] for name in read if name in self.values}
        values |= {mark.name: mark.raw for mark in given.values()}
        produced = {o for op in ops for o in op.outs if o is not None}
        notes = {
            "handlers": {n: v for n, v in self.handlers.items() if n in values},
            "refused": {k: v for k, v in self.refused.items() if k in values or any(k == op.name for op in ops)},
            "missing": sorted(name for name in read if name not in values and name not in produced),
            "gpu": sorted(name for name, value in values.items() if value.is_cuda),
            "batch_invariant": any(value.is_cuda for value in values.values()) and batch_invariant_mode(),
            "output": list(output),
            "caches": [name for name in self.caches if name in values],
        }
        notes["setting"] = setting((op.name for op in ops), gpu=bool(notes["gpu"]))
        rows = keys if end.keys is None else end.keys
        names = {f"{layer}.{name}": mark.name for (layer, name), mark in given.items()}
        canonical = {f"{layer}.{name}": home(_for_rows(mark, keys, rows)) for (layer, name), mark in passed.items()}
        values = {name: home(value) for name, value in values.items()}
        return Program(ops, names, shown, values, home(end.canonical), rows.tolist(), notes, canonical)

    def _stops(self, given: Mapping[Point, Mark]) -> dict[str, int]:
        return {self._root(mark.name): mark.at for mark in given.values()}

    def _backwards(self, root: str, end: int, stops: dict[str, int]) -> tuple[list[Op], list[str], set[str]]:
        """Ops that the output depends on, walking back from it; views of a wanted tensor belong to it.

        Also the names that they read from outside, and those stops that one of them made itself.
        """
        wanted = {root}
        late: set[str] = set()
        kept: list[Op] = []
        for number in range(end - 1, -1, -1):
            op = self.ops[number]
            made = {self._root(name) for name in op.outs if name is not None} | set(op.writes)
            live = {r for r in made & wanted if number >= stops.get(r, -1)}
            if not live:
                continue
            kept.append(op)
            late |= {r for r in made if number < stops.get(r, -1)}
            wanted |= {self._root(name) for name in tensors_of(op)}
        kept.reverse()
        produced: set[str] = set()
        read: list[str] = []
        for op in kept:
            read += [name for name in tensors_of(op) if name not in produced and name not in read]
            produced |= {o for o in op.outs if o is not None}
        return kept, read, late

    def _handed_on(self, end: Mark, given: Iterable[Mark]) -> str:
        """The output's name where nothing computes it: that of the input that it is, if it is one seen otherwise."""
        root, held = self._root(end.shown), end.raw.reshape(1, -1)
        views = [mark for mark in given if self._root(mark.name) == root and same_bits(mark.raw.reshape(1, -1), held)]
        return views[0].name if views else end.shown


def _same_memory(output: Tensor, arguments: Sequence[tuple[str, Tensor]]) -> list[str]:
    storage = output.untyped_storage().data_ptr()
    return [name for name, tensor in arguments if tensor.untyped_storage().data_ptr() == storage]


def _defined(result: Any) -> Any:
    """An undefined tensor in a list comes to us as None, which torch cannot take back from us."""
    if isinstance(result, list) and any(item is None for item in result):
        return [torch.empty(0) if item is None else item for item in result]
    return result
