"""Taps of Megatron-Core's GPTModel: its tensors are [tokens, sequences, …], its queries, keys and values one product.

A module that Transformer Engine has fused into its neighbour is an IdentityOp: what it hands on is no norm, and is not
taken for one; the points around it still are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..engines.megatron_weights import split_heads
from .tap_experts import dispatched
from .taps import AFTER, BEFORE, Taps, first, keys_of, layers_of

OUTPUTS = {
    "": "resid_post",
    "input_layernorm": "attn_norm",
    "self_attention.q_layernorm": "q_norm",
    "self_attention.k_layernorm": "k_norm",
    "self_attention.core_attention": "attn_out",
    "self_attention.linear_proj": "o_proj",
    "pre_mlp_layernorm": "mlp_norm",
    "mlp": "mlp_out",
}
INPUTS = {"": "resid_pre", "pre_mlp_layernorm": "resid_mid", "mlp.linear_fc2": "act"}
SPLIT = {"self_attention.linear_qkv": ("q_proj", "k_proj", "v_proj"), "mlp.linear_fc1": ("gate", "up")}


class MegatronTaps(Taps):
    def __init__(self, recorder: Any, engine: Any, company: set[int]) -> None:
        super().__init__(recorder)
        self._engine, self._company = engine, company
        self._sizes = engine._sizes

    def install(self) -> None:
        model = self._engine._model
        run = self._engine._forward
        self.replace(self._engine, "_forward", lambda batch, *rest: self._run(run, batch, *rest))
        self.traced(model.embedding, BEFORE)
        self.output(model.embedding, BEFORE, "embed", self._rows)
        for layer, name, module in layers_of(model):
            if type(module).__name__ == "IdentityOp":
                self._inputs(layer, name, module)
            else:
                self._module(layer, name, module)
        self.traced(model.decoder.final_layernorm, AFTER)
        self.output(model.decoder.final_layernorm, AFTER, "final_norm", self._rows)
        self.traced(model.output_layer, AFTER)
        self.output(model.output_layer, AFTER, "logits", lambda out: self._rows(out)[:, : self._sizes.vocabulary])

    def _module(self, layer: int, name: str, module: Any) -> None:
        if name == "":
            self.traced(module, layer)
        self._inputs(layer, name, module)
        if name in OUTPUTS:
            self.output(module, layer, OUTPUTS[name], self._rows)
        if name in SPLIT:
            self.after(module, lambda out: self._split(layer, name, first(out)))
        if name == "self_attention.core_attention":
            self.before(module, lambda a, k: self._attention(layer, a))
        if name == "mlp.router":
            self._router(layer, module)
        if name == "mlp" and hasattr(module, "experts"):
            self._experts(layer, module)

    def _inputs(self, layer: int, name: str, module: Any) -> None:
        if name in INPUTS:
            self.before(
                module, lambda a, k: self._given(layer, INPUTS[name], k.get("hidden_states", a[0] if a else None))
            )

    def _given(self, layer: int, point: str, tensor: Tensor) -> None:
        self.recorder.point(layer, point, self._rows(tensor), raw=tensor)

    def _split(self, layer: int, name: str, out: Tensor) -> None:
        """As the weights were joined, but on the columns of their product (engines/megatron_weights.py proves it)."""
        parts = split_heads(out, self._sizes, dim=-1) if name == "self_attention.linear_qkv" else out.chunk(2, dim=-1)
        for point, part in zip(SPLIT[name], parts, strict=True):
            self.recorder.point(layer, point, self._rows(part), raw=out)

    def _attention(self, layer: int, args: tuple[Any, ...]) -> None:
        for point, tensor in zip(("q", "k", "v"), args, strict=False):
            self.recorder.point(layer, point, self._rows(tensor), raw=tensor)

    def _router(self, layer: int, router: Any) -> None:
        run = router.gating
        logits: list[Tensor] = []

        def gating(*args: Any) -> Tensor:
            made: Tensor = run(*args)
            logits[:] = [self._rows(made)]
            self.recorder.point(layer, "router_logits", logits[0], raw=made)
            return made

        self.replace(router, "gating", gating)
        self.after(router, lambda out: self._routed(layer, logits[0], *out))

    def _experts(self, layer: int, moe: Any) -> None:
        count, run = int(self._engine._built.config.moe_router_topk), moe.experts.forward
        watched = dispatched(self.sink(), layer, run, moe, lambda: (len(self.recorder.keys), count))
        self.replace(moe.experts, "forward", watched)

    def _routed(self, layer: int, logits: Tensor, probs: Tensor, chosen: Tensor) -> None:
        """Megatron has a map [R, experts]: its experts in the order of their logits, as the other engines list them."""
        count = int(self._engine._built.config.moe_router_topk)
        ids = logits.masked_fill(~chosen, float("-inf")).topk(count, dim=-1).indices
        self.recorder.point(layer, "topk_ids", ids, raw=chosen)
        self.recorder.point(layer, "topk_weights", probs.gather(1, ids).to(torch.float32), raw=probs)

    def _rows(self, value: Any) -> Tensor:
        """[tokens, sequences, …], or [tokens, …] of a packed row -> [R, rest], in the order of the forward's keys."""
        tensor: Tensor = first(value)
        return tensor.reshape(len(self.recorder.keys), -1)

    def _run(self, run: Any, batch: Any, sequences: Any, company: set[int], train: bool) -> Any:
        keys = keys_of(batch, sequences, self._company)
        self.recorder.begin(keys.transpose(1, 0, 2).reshape(-1, 2))
        self.recorder.point(BEFORE, "positions", batch.positions.t().reshape(-1))
        self.recorder.point(BEFORE, "token_ids", batch.tokens.t().reshape(-1))
        return run(batch, sequences, company, train)
