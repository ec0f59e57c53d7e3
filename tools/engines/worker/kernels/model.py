"""Decoder modules with ordinary trainable weights under checkpoint names, whose operators are the table's.

Each module is an example of calling the table from a training framework: weights are plain parameters, packed and
fused forms exist only inside the operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import Batch
from .families import Family, family_of, has_experts
from .guard import ModuleWatch, Watch, check_on_backward
from .table import Operators


class Weights(nn.Module):
    """A named weight (and bias) with no forward of its own: its parent runs the fused operator."""

    def __init__(self, *shape: int, bias: bool = False, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(*shape, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(shape[0], dtype=dtype)) if bias else None


class FusedLinear:
    """Several `Weights` run as the one product that the engine fuses them to."""

    def __init__(self, ops: Operators, prefix: str, parts: Sequence[str], **options: Any) -> None:
        self._run = ops.open("linear", **options)
        self._weights = [f"{prefix}{part}.weight" for part in parts]
        self._biases = [f"{prefix}{part}.bias" for part in parts]
        self._dtype = ops.stack.dtype

    def __call__(self, x: Tensor, *parts: Weights) -> Tensor:
        weights = [part.weight.to(self._dtype) for part in parts]
        biases = [part.bias.to(self._dtype) for part in parts if part.bias is not None]
        names = [*self._weights, *(self._biases if biases else [])]
        return self._run(x, weights, names, biases)


class Norm(Weights):
    def __init__(self, ops: Operators, name: str, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__(size, dtype=dtype)
        nn.init.ones_(self.weight)
        self._run = ops.open("rms_norm", size=size, eps=eps)
        self._name, self._dtype = f"{name}.weight", ops.stack.dtype

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        weight = self.weight.to(self._dtype)
        if residual is None:
            return self._run(x, weight, self._name)
        return self._run.add(x, residual, weight, self._name)


class SelfAttention(nn.Module):
    def __init__(self, ops: Operators, shared: Shared, config: Any, family: Family, prefix: str, dtype: torch.dtype):
        super().__init__()
        hidden, dim = config.hidden_size, shared.head_dim
        q, kv = config.num_attention_heads * dim, config.num_key_value_heads * dim
        bias = bool(getattr(config, "attention_bias", False))
        self.q_proj = Weights(q, hidden, bias=bias, dtype=dtype)
        self.k_proj = Weights(kv, hidden, bias=bias, dtype=dtype)
        self.v_proj = Weights(kv, hidden, bias=bias, dtype=dtype)
        self.o_proj = Weights(hidden, q, bias=bias and family.output_bias, dtype=dtype)
        if family.qk_norm:
            self.q_norm = Norm(ops, f"{prefix}q_norm", dim, config.rms_norm_eps, dtype)
            self.k_norm = Norm(ops, f"{prefix}k_norm", dim, config.rms_norm_eps, dtype)
        self._qkv = FusedLinear(ops, prefix, ["q_proj", "k_proj", "v_proj"])
        self._out = FusedLinear(ops, prefix, ["o_proj"])
        self._sizes, self._dim, self._shared, self._qk_norm = (q, kv, kv), dim, shared, family.qk_norm

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        q, k, v = self._qkv(x, self.q_proj, self.k_proj, self.v_proj).split(self._sizes, dim=-1)
        if self._qk_norm:
            q, k = self._by_head(self.q_norm, q), self._by_head(self.k_norm, k)
        q, k = self._shared.rope(batch.positions, q, k)
        return self._out(self._shared.attention(batch, q, k, v), self.o_proj)

    def _by_head(self, norm: Norm, x: Tensor) -> Tensor:
        return norm(x.view(x.shape[0], -1, self._dim)).reshape(x.shape)


class Mlp(nn.Module):
    def __init__(self, ops: Operators, config: Any, prefix: str, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, size = config.hidden_size, config.intermediate_size
        bias = bool(getattr(config, "mlp_bias", False))
        self.gate_proj = Weights(size, hidden, bias=bias, dtype=dtype)
        self.up_proj = Weights(size, hidden, bias=bias, dtype=dtype)
        self.down_proj = Weights(hidden, size, bias=bias, dtype=dtype)
        self._gate_up = FusedLinear(ops, prefix, ["gate_proj", "up_proj"])
        self._down = FusedLinear(ops, prefix, ["down_proj"])
        self._act = ops.open("silu_and_mul")

    def forward(self, x: Tensor) -> Tensor:
        return self._down(self._act(self._gate_up(x, self.gate_proj, self.up_proj)), self.down_proj)


class Expert(nn.Module):
    def __init__(self, hidden: int, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_proj = Weights(size, hidden, dtype=dtype)
        self.up_proj = Weights(size, hidden, dtype=dtype)
        self.down_proj = Weights(hidden, size, dtype=dtype)


class SparseMlp(nn.Module):
    def __init__(self, ops: Operators, config: Any, prefix: str, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, size, count = config.hidden_size, config.moe_intermediate_size, config.num_experts
        self.gate = Weights(count, hidden, dtype=dtype)
        self.experts = nn.ModuleList([Expert(hidden, size, dtype) for _ in range(count)])
        top_k = config.num_experts_per_tok
        self._logits = FusedLinear(ops, prefix, ["gate"])
        self._route = ops.open("router", experts=count, top_k=top_k, renormalise=config.norm_topk_prob)
        self._run = ops.open("experts", experts=count, top_k=top_k, hidden=hidden, intermediate=size)
        parts = ("gate_proj", "up_proj", "down_proj")
        self._names = [f"{prefix}experts.{i}.{part}.weight" for i in range(count) for part in parts]
        self._dtype = ops.stack.dtype

    def forward(self, x: Tensor) -> Tensor:
        weights, ids = self._route(x, self._logits(x, self.gate))
        # The last forward's choice: a reference that derives the gradient must take the same one.
        self.chosen = ids.detach()
        masters = [m.weight.to(self._dtype) for e in self.experts for m in (e.gate_proj, e.up_proj, e.down_proj)]
        return self._run(x, weights, ids, masters, self._names)


class DecoderLayer(nn.Module):
    def __init__(self, ops: Operators, shared: Shared, config: Any, family: Family, index: int, dtype: torch.dtype):
        super().__init__()
        prefix = f"model.layers.{index}."
        eps = config.rms_norm_eps
        self.input_layernorm = Norm(ops, f"{prefix}input_layernorm", config.hidden_size, eps, dtype)
        self.self_attn = SelfAttention(ops, shared, config, family, f"{prefix}self_attn.", dtype)
        self.post_attention_layernorm = Norm(ops, f"{prefix}post_attention_layernorm", config.hidden_size, eps, dtype)
        sparse = family.experts and has_experts(config, index)
        mlp = SparseMlp if sparse else Mlp
        self.mlp = mlp(ops, config, f"{prefix}mlp.", dtype)

    def forward(self, x: Tensor, residual: Tensor | None, batch: Batch) -> tuple[Tensor, Tensor]:
        if residual is None:
            x, residual = self.input_layernorm(x), x
        else:
            x, residual = self.input_layernorm(x, residual)
        x, residual = self.post_attention_layernorm(self.self_attn(x, batch), residual)
        return self.mlp(x), residual


class Shared:
    """Rope and attention, one for all layers: the rotation table, the private cache and the batch's metadata."""

    def __init__(self, ops: Operators, config: Any) -> None:
        heads = config.num_attention_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.rope = ops.open("rotary_embedding", head_dim=self.head_dim)
        self.attention = ops.open(
            "attention",
            heads=heads,
            kv_heads=config.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
        )


class Decoder(nn.Module):
    def __init__(self, ops: Operators, shared: Shared, config: Any, family: Family, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed_tokens = Weights(config.vocab_size, config.hidden_size, dtype=dtype)
        layers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList([DecoderLayer(ops, shared, config, family, i, dtype) for i in layers])
        self.norm = Norm(ops, "model.norm", config.hidden_size, config.rms_norm_eps, dtype)


class CausalLM(nn.Module):
    """Logprobs of the tokens of packed sequences. Parameters carry the checkpoint's own names."""

    def __init__(self, ops: Operators, *, master_dtype: torch.dtype | None = None, recompute: bool = False) -> None:
        """`master_dtype`: of the trainable weights (default: the engine's); a forward rounds them to the engine's."""
        super().__init__()
        config = ops.stack.model_config
        family = family_of(config)
        dtype = self.master_dtype = master_dtype or ops.stack.dtype
        self.recompute = recompute
        self._shared = Shared(ops, config)
        self.model = Decoder(ops, self._shared, config, family, dtype)
        self.tied = bool(config.tie_word_embeddings)
        untied = None if self.tied else Weights(config.vocab_size, config.hidden_size, dtype=dtype)
        self.lm_head = untied or self.model.embed_tokens
        self._embed = ops.open("embedding")
        head = "model.embed_tokens" if self.tied else "lm_head"
        self._head = FusedLinear(ops, "", [head], padded_rows=_vocab_padding(config.vocab_size), embedding=True)
        self._logprob = ops.open("logprob")
        self.dtype = ops.stack.dtype

    def named_masters(self) -> list[tuple[str, nn.Parameter]]:
        """Every trainable weight once, under the checkpoint's name (a tied head only as the embedding)."""
        skip = "lm_head." if self.tied else "\0"
        return [(n, p) for n, p in self.named_parameters(remove_duplicate=False) if not n.startswith(skip)]

    def forward(self, sequences: Sequence[Tensor], *, masters: Watch | None = None) -> Tensor:
        """Logprob of each token but the first of each sequence, float32 [sum(len - 1)], in order.

        `masters`: what to compare the weights with in the backward; by default all parameters as they are now.
        """
        if masters is None and torch.is_grad_enabled():
            masters = ModuleWatch(self.named_masters)
        batch = self._shared.attention.pack([len(sequence) for sequence in sequences])
        hidden = self._hidden(torch.cat(list(sequences)), batch)
        rows = torch.cat([h[:-1] for h in hidden.split(list(batch.lengths))])
        targets = torch.cat([sequence[1:] for sequence in sequences])
        logprobs: Tensor = self._logprob(self._head(rows, self.lm_head), targets)
        return logprobs if masters is None else check_on_backward(logprobs, masters)

    def _hidden(self, tokens: Tensor, batch: Batch) -> Tensor:
        x = self._embed(tokens, self.model.embed_tokens.weight.to(self.dtype), "model.embed_tokens.weight")
        residual = None
        for layer in self.model.layers:
            if self.recompute and torch.is_grad_enabled():
                x, residual = checkpoint(layer, x, residual, batch, use_reentrant=False)
            else:
                x, residual = layer(x, residual, batch)
        normed, _ = self.model.norm(x, residual)
        return normed


def _vocab_padding(size: int) -> int:
    """Zero rows that the engine appends to the head, which change the product's shape and so its kernel."""
    from vllm.model_executor.layers.vocab_parallel_embedding import pad_vocab_size

    return int(pad_vocab_size(size)) - size
