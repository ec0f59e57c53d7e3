"""Taps of a transformers model: modules by their names, rotary and attention functions in the model's own module."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .tap_experts import holds_experts, looped
from .taps import AFTER, BEFORE, Taps, first, keys_of, layers_of

INPUTS = {
    "pre_ff_layernorm": "resid_mid",
    "feed_forward.down_proj": "act",
    "input_layernorm": "resid_pre",
    "self_attn.o_proj": "attn_out",
    "post_attention_layernorm": "resid_mid",
    "mlp.down_proj": "act",
}
OUTPUTS = {
    "": "resid_post",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "o_proj",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp": "mlp_out",
    "linear_attn.out_proj": "o_proj",
    "mamba.out_proj": "o_proj",
    "pre_ff_layernorm": "mlp_norm",
    "feed_forward.gate_proj": "gate",
    "feed_forward.up_proj": "up",
    "feed_forward": "mlp_out",
}
CONVOLUTION = "causal_conv1d_fn"
"""A function of the model's own module, as its recurrences are: [B, C, T] -> [B, C, T]."""
RECURRENCES = {
    "torch_chunk_gated_delta_rule": False,
    "chunk_kimi_delta_attention": False,
    "mamba2_chunk_scan": False,
    "mamba_selective_scan": True,
}
"""Whether the output is [B, C, T] and not [B, T, …]; with the last state behind it where that is wanted."""


class TransformersTaps(Taps):
    def __init__(self, recorder: Any, engine: Any, company: set[int]) -> None:
        super().__init__(recorder)
        self._engine, self._company, self._layer = engine, company, BEFORE

    def install(self) -> None:
        model = self._engine._model
        inner = model.model
        run = self._engine._forward
        self.replace(self._engine, "_forward", lambda batch, *rest: self._run(run, batch, *rest))
        self.traced(inner.embed_tokens, BEFORE)
        self.output(inner.embed_tokens, BEFORE, "embed", _rows)
        for layer, name, module in layers_of(model):
            self._module(layer, name, module)
        self._rotary(inner)
        self._recurrences(inner)
        norm = inner.norm if hasattr(inner, "norm") else inner.final_layernorm
        self.traced(norm, AFTER)
        self.output(norm, AFTER, "final_norm", _rows)
        self.traced(model.lm_head, AFTER)
        self.output(model.lm_head, AFTER, "logits", _rows)
        if self.recorder.target is not None:
            self._logprobs(sys.modules[type(self._engine)._forward.__module__])

    def _module(self, layer: int, name: str, module: Any) -> None:
        if name == "":
            self.traced(module, layer)
            self.before(module, lambda a, k: self._at(layer))
        if name in INPUTS:
            point = INPUTS[name]
            self.before(module, lambda a, k: self.recorder.point(layer, point, _rows(a[0]), raw=a[0]))
        if name in OUTPUTS:
            self.output(module, layer, OUTPUTS[name], _rows)
        if name == "self_attn.v_proj":
            self.output(module, layer, "v", _rows)
        if name in ("self_attn.q_norm", "self_attn.k_norm"):
            self.output(module, layer, name.removeprefix("self_attn."), _heads_last)
        if name == "mlp.gate" and "Router" in type(module).__name__:
            self.after(module, lambda out: self._routed(layer, out))
        if holds_experts(name, module):
            self.replace(module, "forward", looped(self.sink(), layer, module.forward, module.num_experts))

    def _at(self, layer: int) -> None:
        self._layer = layer

    def _routed(self, layer: int, out: Any) -> None:
        logits, weights, ids = out[:3]
        self.recorder.point(layer, "router_logits", logits)
        self.recorder.point(layer, "topk_ids", ids.to(torch.int64), raw=ids)
        self.recorder.point(layer, "topk_weights", weights.to(torch.float32), raw=weights)

    def _rotary(self, inner: Any) -> None:
        home = sys.modules[type(inner).__module__]
        run = getattr(home, "apply_rotary_pos_emb", None)
        if run is None:
            return

        def watched(q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> Any:
            q, k = run(q, k, *args, **kwargs)
            self.recorder.point(self._layer, "q", _heads(q), raw=q)
            self.recorder.point(self._layer, "k", _heads(k), raw=k)
            return q, k

        self.replace(home, "apply_rotary_pos_emb", watched)

    def _recurrences(self, inner: Any) -> None:
        """A recurrent layer's convolution and scan are functions of the model's module."""
        home = sys.modules[type(inner).__module__]
        if hasattr(home, CONVOLUTION):
            self._function(home, CONVOLUTION, "conv_out", columns=True)
        for name, columns in RECURRENCES.items():
            if hasattr(home, name):
                self._function(home, name, "ssm_out", columns=columns)

    def _function(self, home: Any, name: str, point: str, *, columns: bool) -> None:
        run = getattr(home, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            out = run(*args, **kwargs)
            made: Tensor = first(out)
            shown = _rows(made.transpose(1, 2) if columns else made)
            self.recorder.point(self._layer, point, shown, raw=made)
            return out

        self.replace(home, name, watched)

    def _logprobs(self, home: Any) -> None:
        """In hashing the point `logprob` is what the step reports; here its operators are noted."""
        run = home._logprobs

        def watched(logits: Tensor, row: int, start: int, sequences: Any, index: int) -> Any:
            with self.tracing(AFTER):
                out = run(logits, row, start, sequences, index)
            first = len(sequences.prompt(index)) - 1
            keys = np.stack([np.full(len(out), index), np.arange(first, first + len(out))], axis=1)
            self.recorder.point(AFTER, "logprob", out[:, None], raw=out, keys=keys)
            return out

        self.replace(home, "_logprobs", watched)

    def _run(self, run: Any, batch: Any, sequences: Any, company: set[int], train: bool) -> Any:
        keys = keys_of(batch, sequences, self._company)
        self.recorder.begin(keys.reshape(-1, 2))
        self.recorder.point(BEFORE, "positions", batch.positions.reshape(-1))
        self.recorder.point(BEFORE, "token_ids", batch.tokens.reshape(-1))
        return run(batch, sequences, company, train)


def _rows(value: Any) -> Tensor:
    """[B, T, …] -> [B * T, rest]."""
    tensor: Tensor = first(value)
    if tensor.ndim == 2:
        return tensor
    return tensor.reshape(tensor.shape[0] * tensor.shape[1], -1)


def _heads_last(value: Any) -> Tensor:
    """[B, T, H, D] -> [B * T, H * D]."""
    return _rows(value)


def _heads(tensor: Tensor) -> Tensor:
    """[B, H, T, D] -> [B * T, H * D]."""
    return tensor.transpose(1, 2).reshape(tensor.shape[0] * tensor.shape[2], -1)
