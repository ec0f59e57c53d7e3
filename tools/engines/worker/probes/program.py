"""Operators as they ran, kept as a straight-line program of a region, and run again."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import fits
from .apart import elsewhere, run_elsewhere
from .gpu import home, on_device, registering
from .launches import LAUNCH, kernel_of, launched
from .setting import follow_switches

FRESH = ("empty", "new_empty", "empty_like", "empty_strided")
"""Operators that hand out memory which nobody has written."""
Point = tuple[int, str]
"""(layer, name)."""


@dataclass(frozen=True)
class Op:
    """`args` and `kwargs` as JSON has them: {"t": name} is a tensor."""

    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    outs: list[str | None]
    writes: tuple[str, ...] = ()


@dataclass
class Program:
    """ops in order; `inputs` point -> tensor name; `values` of inputs and constants; `output` what is compared.

    rows: keys of the forward; expected: what the engine itself had at the output; canonical: the inputs as [R, …].
    """

    ops: list[Op]
    inputs: dict[str, str]
    output: str
    values: dict[str, Tensor]
    expected: Tensor
    rows: list[list[int]]
    notes: dict[str, Any] = field(default_factory=dict)
    canonical: dict[str, Tensor] = field(default_factory=dict)

    def run(
        self,
        overrides: Mapping[str, Tensor] | None = None,
        hook: Callable[[int, Op, dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """All tensors by name, on the CPU. Values are cloned first, since operators may write into them.

        `hook` sees them where the program runs.
        """
        if elsewhere(self.notes):
            return run_elsewhere(self, overrides, hook)
        follow_switches(self.notes)
        env: dict[str, Any] = {n: materialised(n, self, (overrides or {}).get(n, v)) for n, v in self.values.items()}
        with torch.no_grad():
            for number, op in enumerate(self.ops):
                call(op, env)
                if hook is not None:
                    hook(number, op, env)
        return {name: home(value) for name, value in env.items()}

    def result(self, overrides: Mapping[str, Tensor] | None = None) -> Tensor:
        value: Tensor = self.run(overrides)[self.output]
        return value


ONEDNN = "_C.onednn_mm.default"
_HANDLERS: dict[int, tuple[Tensor, Any]] = {}
_KEPT = 8
"""Packed weights at a time: more than one run of a program needs."""


def materialised(name: str, program: Program, value: Tensor) -> Any:
    if name in program.notes.get("handlers", {}):
        return packed(value)
    return copied(on_device(program.notes, name, value))


def packed(weight: Tensor) -> Tensor:
    """[N, K] -> the number by which oneDNN finds the packed weight, which lives as long as its handler: kept here."""
    from vllm import _custom_ops as ops

    if id(weight) not in _HANDLERS:
        while len(_HANDLERS) >= _KEPT:
            _HANDLERS.pop(next(iter(_HANDLERS)))
        _HANDLERS[id(weight)] = (weight, ops.create_onednn_mm(weight.t(), 32))
    handle: Tensor = _HANDLERS[id(weight)][1].handler_tensor
    return handle


def _check_product(out: Tensor, x: Tensor, bias: Any, handle: Tensor) -> None:
    """oneDNN reads and writes behind tensors of other sizes: a program that was cut wrongly would end the process.

    Raises: RuntimeError.
    """
    weight = next((w for w, handler in _HANDLERS.values() if handler.handler_tensor is handle), None)
    if weight is None or (out.shape[-1], x.shape[-1]) != tuple(weight.shape) or out.shape[:-1] != x.shape[:-1]:
        known = "a weight that is no longer there" if weight is None else f"a weight of {list(weight.shape)}"
        raise RuntimeError(f"{ONEDNN}: got {list(x.shape)} and room for {list(out.shape)} with {known}")


def call(op: Op, env: dict[str, Any]) -> None:
    args = decoded(op.args, env)
    if op.name.startswith(LAUNCH):
        launched(op.name, args[0], args[1], {k: decoded(v, env) for k, v in op.kwargs.items()})
        return
    if op.name == ONEDNN:
        _check_product(*args)
    fits.check(op.name, args)
    result = function(op.name)(*args, **{k: decoded(v, env) for k, v in op.kwargs.items()})
    fits.note(op.name, args, result)
    outs = result if isinstance(result, tuple | list) else [result]
    if len(outs) != len(op.outs):
        # Only a program that was cut can come to this: a tensor split into fewer pieces.
        raise RuntimeError(f"{op.name}: {len(outs)} results in the place of {len(op.outs)}")
    for name, value in zip(op.outs, outs, strict=True):
        if name is not None:
            env[name] = value


def function(name: str) -> Any:
    """`aten.mm.default` -> the operator; vLLM's are registered by importing it."""
    namespace, operator, overload = name.split(".")
    if not hasattr(getattr(torch.ops, namespace), operator):
        for module in registering(namespace):
            importlib.import_module(module)
    return getattr(getattr(getattr(torch.ops, namespace), operator), overload)


def alone(name: str, rest: list[Any], kwargs: dict[str, Any], notes: Mapping[str, Any]) -> Callable[..., Tensor]:
    """One operator as a function of its leading tensors: run where and under what a program with `notes` is."""

    def run(*given: Tensor) -> Tensor:
        values = {f"x{n}": tensor for n, tensor in enumerate(given)}
        op = Op(name, [*({"t": n} for n in values), *rest], kwargs, ["made"])
        where = {**notes, "gpu": list(values) if notes.get("gpu") else [], "handlers": {}}
        return Program([op], {}, "made", values, given[0], [], where).result()

    return run


def tensors_of(op: Op) -> list[str]:
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict) and "t" in value:
            found.append(value["t"])
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(op.args)
    walk(list(op.kwargs.values()))
    return found


def decoded(value: Any, env: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [decoded(item, env) for item in value]
    if isinstance(value, dict):
        kind, text = next(iter(value.items()))
        if kind == "t":
            return env[text]
        if kind == "float":
            return float(text)
        if kind == "device":
            return torch.device(text)
        if kind == "triton.dtype":
            return importlib.import_module("triton.language").dtype(text)
        if kind == "triton.kernel":
            return kernel_of(text)
        return getattr(torch, text)
    return value


def copied(tensor: Tensor) -> Tensor:
    """A copy with the same strides, gaps included: kernels choose by them."""
    if 0 in tensor.stride() or tensor.numel() == 0:
        return tensor.detach().clone()
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor.detach())
