"""Taps of the trainer that calls the inference kernels: its operators are attributes, replaced while it is watched."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .tap_plans import plans
from .taps import AFTER, BEFORE, Taps, first
from .tracer import Tracer


class KernelsTaps(Taps):
    def __init__(self, recorder: Any, engine: Any, company: set[int]) -> None:
        super().__init__(recorder)
        self._engine, self._company, self._layer = engine, company, BEFORE

    def install(self) -> None:
        model = self._engine._model
        run = self._engine._forward
        self.replace(self._engine, "_forward", lambda *args: self._run(run, *args))
        self._wrap(model, "_embed", lambda out, args: self._embedded(out, args), BEFORE)
        for index, layer in enumerate(model.model.layers):
            self._decoder(index, layer)
        shared = model._shared
        self._wrap(shared, "rope", lambda out, args: self._rope(out))
        self._wrap_attention(shared)
        last = len(model.model.layers) - 1
        self.traced(model.model.norm, AFTER)
        self.after(model.model.norm, lambda out: self._norm(last, "resid_post", AFTER, "final_norm", out))
        self._wrap(model, "_head", lambda out, args: self._logits(out), AFTER, self._head_input)
        self._wrap(model, "_logprob", lambda out, args: self._logprob(out), AFTER)
        pack = shared.attention.pack
        self.replace(shared.attention, "pack", lambda lengths: self._packed(pack(lengths)))
        self._plans = plans(self)
        self.recorder.prepare = self._prepare

    def _prepare(self, tracer: Tracer) -> None:
        """The plan is made in the first layer and read in all: where that lies outside of a region, it is a call."""
        tracer.recipes = self._plans

    def _decoder(self, index: int, layer: Any) -> None:
        self.before(layer, lambda a, k: self._enter(index, a))
        self.traced(layer, index)
        self.after(layer.input_layernorm, lambda out: self._norm(index - 1, "resid_post", index, "attn_norm", out))
        attention, mlp = layer.self_attn, layer.mlp
        self._wrap(attention, "_qkv", lambda out, args: self._split(index, attention, out))
        for name in ("q_norm", "k_norm"):
            if hasattr(attention, name):
                self._by_head(index, getattr(attention, name), name)
        self._wrap(attention, "_out", lambda out, args: self._note(index, "o_proj", out))
        self.after(layer.post_attention_layernorm, lambda out: self._norm(index, "resid_mid", index, "mlp_norm", out))
        if hasattr(mlp, "_gate_up"):
            self._wrap(mlp, "_gate_up", lambda out, args: self._halves(index, out))
            self._wrap(mlp, "_act", lambda out, args: self._note(index, "act", out))
        else:
            self._wrap(mlp, "_logits", lambda out, args: self._note(index, "router_logits", out))
            self._wrap(mlp, "_route", lambda out, args: self._routed(index, out))
        self.output(mlp, index, "mlp_out")

    def _by_head(self, index: int, module: Any, name: str) -> None:
        self.output(module, index, name, lambda out: first(out).reshape(first(out).shape[0], -1))

    def _wrap(self, owner: Any, name: str, action: Any, layer: int | None = None, before: Any = None) -> None:
        run = getattr(owner, name)

        class Watched:
            """Everything but the call stays the operator's own."""

            def __call__(watched, *args: Any, **kwargs: Any) -> Any:
                if before is not None:
                    # What is read is named before a view of it is made.
                    before(args)
                if layer is None:
                    out = run(*args, **kwargs)
                else:
                    with self.tracing(layer):
                        out = run(*args, **kwargs)
                action(out, args)
                return out

            def __getattr__(watched, attribute: str) -> Any:
                return getattr(run, attribute)

        self.replace(owner, name, Watched())

    def _wrap_attention(self, shared: Any) -> None:
        run = shared.attention

        class Watched:
            def __call__(watched, batch: Any, q: Tensor, k: Tensor, v: Tensor) -> Any:
                for name, tensor in (("q", q), ("k", k), ("v", v)):
                    self.recorder.point(self._layer, name, tensor)
                out = run(batch, q, k, v)
                self.recorder.point(self._layer, "attn_out", out)
                return out

            def __getattr__(watched, attribute: str) -> Any:
                return getattr(run, attribute)

        self.replace(shared, "attention", Watched())

    def _enter(self, index: int, args: tuple[Any, ...]) -> None:
        self._layer = index
        if args[1] is None:
            self.recorder.point(index, "resid_pre", args[0])

    def _norm(self, layer: int, residual: str, own: int, name: str, out: Any) -> None:
        if isinstance(out, tuple):
            if layer >= 0:
                self.recorder.point(layer, residual, out[1])
            if name == "attn_norm":
                self.recorder.point(own, "resid_pre", out[1])
        self.recorder.point(own, name, first(out))

    def _embedded(self, out: Tensor, args: tuple[Any, ...]) -> None:
        self.recorder.point(BEFORE, "token_ids", args[0])
        self.recorder.point(BEFORE, "embed", out)

    def _note(self, layer: int, name: str, out: Tensor) -> None:
        self.recorder.point(layer, name, out)

    def _split(self, layer: int, attention: Any, out: Tensor) -> None:
        for name, part in zip(("q_proj", "k_proj", "v_proj"), out.split(attention._sizes, dim=-1), strict=True):
            self.recorder.point(layer, name, part, raw=out)

    def _halves(self, layer: int, out: Tensor) -> None:
        for name, part in zip(("gate", "up"), out.chunk(2, dim=-1), strict=True):
            self.recorder.point(layer, name, part, raw=out)

    def _rope(self, out: Any) -> None:
        """Noted where attention takes them: rope's outputs are its inputs."""

    def _routed(self, layer: int, out: Any) -> None:
        weights, ids = out
        self.recorder.point(layer, "topk_ids", ids.to(torch.int64), raw=ids)
        self.recorder.point(layer, "topk_weights", weights.to(torch.float32), raw=weights)

    def _head_input(self, args: tuple[Any, ...]) -> None:
        self.recorder.point(AFTER, "head_input", args[0], keys=self._scored)

    def _logits(self, out: Tensor) -> None:
        self.recorder.point(AFTER, "logits", out, keys=self._scored)

    def _logprob(self, out: Tensor) -> None:
        """In hashing this point is what the step reports."""
        if self.recorder.target is not None:
            self.recorder.point(AFTER, "logprob", out[:, None], raw=out, keys=self._scored)

    def _packed(self, batch: Any) -> Any:
        self.recorder.point(BEFORE, "positions", batch.positions)
        return batch

    def _run(self, run: Any, batch: Any, sequences: Any, pad: bool, train: bool) -> Any:
        sizes = [len(sequences.whole(i)) for i in batch]
        longest = max(sizes)
        parts = []
        for index, size in zip(batch, sizes, strict=True):
            own = np.full((longest if pad else size, 2), -1, np.int64)
            if index not in self._company:
                own[:size, 0], own[:size, 1] = index, np.arange(size)
            parts.append(own)
        self._scored = np.concatenate([part[:-1] for part in parts])
        self.recorder.begin(np.concatenate(parts))
        return run(batch, sequences, pad, train)
