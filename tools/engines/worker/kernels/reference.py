"""The same models in plain float64 torch, written from their published formulas and from nothing in this package.

Only a reference to compare with: slow, dense, no kernels, no packing, no cache. Needs torch alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def reference_logprobs(
    config: Mapping[str, Any], weights: Weights, sequences: Sequence[Tensor], routing: Sequence[Sequence[Tensor]] = ()
) -> Tensor:
    """Logprob of each token but the first of each sequence, float64 [sum(len - 1)].

    config: config.json of a Qwen3, Llama or Qwen3-MoE checkpoint. weights: float64 under checkpoint names.
    routing: per sequence, per sparse layer, the expert ids [len, k] to use; a discrete choice has no derivative, and a
    near-tie that float64 decides otherwise is no error of a gradient.
    """
    found = [_one(config, weights, tokens, list(routing[i]) if routing else []) for i, tokens in enumerate(sequences)]
    return torch.cat(found)


def _one(config: Mapping[str, Any], weights: Weights, tokens: Tensor, routing: list[Tensor]) -> Tensor:
    hidden = weights["model.embed_tokens.weight"][tokens]
    cos, sin = _rotations(config, len(tokens))
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        normed = _norm(hidden, weights[f"{prefix}input_layernorm.weight"], config)
        hidden = hidden + _attention(config, weights, f"{prefix}self_attn.", normed, cos, sin)
        normed = _norm(hidden, weights[f"{prefix}post_attention_layernorm.weight"], config)
        hidden = hidden + _feed_forward(config, weights, f"{prefix}mlp.", normed, routing)
    hidden = _norm(hidden, weights["model.norm.weight"], config)
    head = "model.embed_tokens.weight" if config.get("tie_word_embeddings") else "lm_head.weight"
    logits = hidden[:-1] @ weights[head].T
    chosen = logits[torch.arange(len(tokens) - 1), tokens[1:]]
    return chosen - torch.logsumexp(logits, dim=-1)


def _norm(x: Tensor, weight: Tensor, config: Mapping[str, Any]) -> Tensor:
    size = x.shape[-1]
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) / size + config["rms_norm_eps"]) * weight


def _project(weights: Weights, name: str, x: Tensor) -> Tensor:
    y = x @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _attention(config: Mapping[str, Any], weights: Weights, prefix: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    dim, length = _head_dim(config), len(x)
    q, k, v = (_project(weights, f"{prefix}{part}_proj", x).view(length, -1, dim) for part in "qkv")
    if f"{prefix}q_norm.weight" in weights:
        q, k = (_norm(t, weights[f"{prefix}{n}_norm.weight"], config) for t, n in ((q, "q"), (k, "k")))
    q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    group = q.shape[1] // k.shape[1]
    outputs = []
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head // group].T / math.sqrt(dim)
        scores = scores + torch.full((length, length), -math.inf, dtype=scores.dtype).triu(1)
        outputs.append(torch.softmax(scores, -1) @ v[:, head // group])
    return _project(weights, f"{prefix}o_proj", torch.stack(outputs, 1).reshape(length, -1))


def _feed_forward(config: Mapping[str, Any], weights: Weights, prefix: str, x: Tensor, routing: list[Tensor]) -> Tensor:
    if f"{prefix}gate.weight" not in weights:
        return _swiglu(weights, prefix, x)
    logits = x @ weights[f"{prefix}gate.weight"].T
    ids = routing.pop(0).long() if routing else logits.topk(config["num_experts_per_tok"], -1).indices
    shares = torch.softmax(logits, -1).gather(-1, ids)
    if config.get("norm_topk_prob", False):
        shares = shares / shares.sum(-1, keepdim=True)
    rows = []
    for token in range(len(x)):
        parts = [
            shares[token, slot] * _swiglu(weights, f"{prefix}experts.{int(expert)}.", x[token])
            for slot, expert in enumerate(ids[token])
        ]
        rows.append(torch.stack(parts).sum(0))
    return torch.stack(rows)


def _swiglu(weights: Weights, prefix: str, x: Tensor) -> Tensor:
    gate, up = _project(weights, f"{prefix}gate_proj", x), _project(weights, f"{prefix}up_proj", x)
    return _project(weights, f"{prefix}down_proj", gate / (1 + torch.exp(-gate)) * up)


def _rotations(config: Mapping[str, Any], length: int) -> tuple[Tensor, Tensor]:
    given = config.get("rope_parameters") or {}
    kind = given.get("rope_type", "default")
    dim = _head_dim(config)
    theta = float(given.get("rope_theta", config.get("rope_theta", 10000.0)))
    frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if kind == "llama3":
        frequencies = _llama3(frequencies, given)
    elif kind != "default":
        raise ValueError(f"rope_type: got {kind!r}; the reference has default and llama3; add its formula here")
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return angles.cos()[:, None], angles.sin()[:, None]


def _llama3(frequencies: Tensor, given: Mapping[str, Any]) -> Tensor:
    """Long wavelengths divided by `factor`, short ones kept, linear in between (Llama 3.1's rope scaling)."""
    turns = given["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (share + (1 - share) / given["factor"])


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
