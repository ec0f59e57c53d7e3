"""Megatron-Core's parameters and the checkpoint's tensors: names, fusing and its inverse, the proof on the bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..engine import EngineError
from ..weights import CheckpointReader
from .megatron_config import Architecture

Join = Callable[[Sequence[Tensor]], Tensor]
Split = Callable[[Tensor], Sequence[Tensor]]

_SINGLE = {
    "input_layernorm": "input_layernorm",
    "self_attention.q_layernorm": "self_attn.q_norm",
    "self_attention.k_layernorm": "self_attn.k_norm",
    "self_attention.linear_proj": "self_attn.o_proj",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "mlp.linear_fc2": "mlp.down_proj",
    "mlp.router": "mlp.gate",
}
_FUSED_NORMS = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
}
"""Transformer Engine's linears hold the norm before them."""
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.(?:local_experts\.(\d+)\.(linear_fc[12])\.weight|(linear_fc[12])\.weight(\d+))")
_NO_WEIGHT = "rotary_emb.inv_freq"


@dataclass(frozen=True)
class Rule:
    """One parameter: the checkpoint's names of its parts, and the way there and back."""

    names: tuple[str, ...]
    join: Join
    split: Split


def rule_of(name: str, sizes: Architecture, padded: int) -> Rule | None:
    """The rule of a GPTModel parameter; None for one that the checkpoint has nothing for.

    padded: rows of the embedding and the head, of which the checkpoint has the first `sizes.vocabulary`.
    """
    outside = {
        "embedding.word_embeddings.weight": "model.embed_tokens.weight",
        "output_layer.weight": "lm_head.weight",
    }
    if name in outside:
        return Rule((outside[name],), lambda t: _grown(t[0], padded), lambda t: [t[: sizes.vocabulary]])
    if name == "decoder.final_layernorm.weight":
        return _same("model.norm.weight")
    layer = _LAYER.fullmatch(name)
    return _layer_rule(f"model.layers.{layer[1]}.", layer[2], sizes) if layer else None


def _layer_rule(prefix: str, name: str, sizes: Architecture) -> Rule | None:
    expert = _EXPERT.fullmatch(name)
    if expert:
        home = f"{prefix}mlp.experts.{expert[1] or expert[4]}"
        if (expert[2] or expert[3]) == "linear_fc2":
            return _same(f"{home}.down_proj.weight")
        return _halves(f"{home}.gate_proj.weight", f"{home}.up_proj.weight")
    if name in _FUSED_NORMS:
        return _same(prefix + _FUSED_NORMS[name])
    stem, _, leaf = name.rpartition(".")
    if stem in _SINGLE:
        return _same(f"{prefix}{_SINGLE[stem]}.{leaf}")
    if stem == "mlp.linear_fc1":
        return _halves(f"{prefix}mlp.gate_proj.{leaf}", f"{prefix}mlp.up_proj.{leaf}")
    if stem == "self_attention.linear_qkv":
        names = tuple(f"{prefix}self_attn.{part}_proj.{leaf}" for part in "qkv")
        return Rule(names, lambda t: joined_heads(t, sizes), lambda t: split_heads(t, sizes))
    return None


def _same(name: str) -> Rule:
    return Rule((name,), lambda tensors: tensors[0], lambda tensor: [tensor])


def _halves(gate: str, up: str) -> Rule:
    return Rule((gate, up), torch.cat, lambda tensor: tensor.chunk(2))


def _grown(tensor: Tensor, rows: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(rows - tensor.shape[0], *tensor.shape[1:])])


def joined_heads(tensors: Sequence[Tensor], sizes: Architecture) -> Tensor:
    """q [H * D, …], k and v [G * D, …] -> [G * (H / G + 2) * D, …]: a group's queries, its key, its value, per group.

    Source: SelfAttention.get_query_key_value_tensors, megatron/core/transformer/attention.py.
    """
    parts = [t.reshape(sizes.groups, -1, *t.shape[1:]) for t in tensors]
    whole = torch.cat(parts, dim=1)
    return whole.reshape(-1, *whole.shape[2:])


def split_heads(tensor: Tensor, sizes: Architecture, dim: int = 0) -> list[Tensor]:
    """The inverse of `joined_heads`, along dimension `dim`."""
    dim %= tensor.ndim
    queries = sizes.heads // sizes.groups * sizes.head_dim
    grouped = tensor.unflatten(dim, (sizes.groups, -1))
    parts = grouped.split([queries, sizes.head_dim, sizes.head_dim], dim=dim + 1)
    return [part.flatten(dim, dim + 1) for part in parts]


def load(model: torch.nn.Module, path: str, sizes: Architecture, padded: int) -> int:
    """Fill every parameter from the checkpoint, and prove it: read back through the inverse, the bytes are the same.

    Returns the number of checkpoint tensors that were proved.

    Raises: EngineError `checkpoint_mismatch`: a tensor missing, left over, of another shape, or other when read back.
    """
    reader = CheckpointReader(path)
    used: set[str] = set()
    for name, parameter in model.named_parameters():
        rule = rule_of(name, sizes, padded)
        if rule is None:
            raise EngineError("checkpoint_mismatch", f"{path}: has nothing for Megatron-Core's parameter {name}")
        _fill(name, parameter, rule, reader, path)
        used |= set(rule.names)
    _refuse_left_over(reader, used, sizes, path)
    return len(used)


def _fill(name: str, parameter: Tensor, rule: Rule, reader: CheckpointReader, path: str) -> None:
    missing = [part for part in rule.names if part not in reader]
    if missing:
        raise EngineError(
            "checkpoint_mismatch", f"{path}: has no {missing[0]}, of which Megatron-Core's {name} is made"
        )
    parts = [reader.tensor(part) for part in rule.names]
    whole = rule.join(parts)
    if whole.shape != parameter.shape:
        raise EngineError(
            "checkpoint_mismatch",
            f"{path}: {' + '.join(rule.names)} make {list(whole.shape)}; Megatron-Core's {name} is "
            f"{list(parameter.shape)}",
        )
    with torch.no_grad():
        parameter.copy_(whole)
    for part, stored, resident in zip(rule.names, parts, rule.split(parameter.detach()), strict=True):
        if not _same_bytes(stored.to(parameter.dtype), resident.cpu()):
            raise EngineError("checkpoint_mismatch", f"{path}: {part} read back out of {name} has other bytes")


def _same_bytes(a: Tensor, b: Tensor) -> bool:
    """Not `equal`, which takes zeros of either sign for the same and NaN for different."""
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b)]
    return a.shape == b.shape and bool(torch.equal(*flat))


def _refuse_left_over(reader: CheckpointReader, used: set[str], sizes: Architecture, path: str) -> None:
    left = sorted(n for n in set(reader) - used if not n.endswith(_NO_WEIGHT))
    if sizes.tied and "lm_head.weight" in left:
        left.remove("lm_head.weight")
        if not _same_bytes(reader.tensor("lm_head.weight"), reader.tensor("model.embed_tokens.weight")):
            raise EngineError("checkpoint_mismatch", f"{path}: lm_head.weight is tied, but not the embedding's bytes")
    if left:
        raise EngineError("checkpoint_mismatch", f"{path}: Megatron-Core has no parameter for {', '.join(left[:5])}")


def exported(model: torch.nn.Module, path: str, sizes: Architecture, padded: int) -> Iterator[tuple[str, Any]]:
    """Resident weights under the checkpoint's names; a text for what Megatron-Core holds no weight for."""
    seen: set[str] = set()
    names = set(CheckpointReader(path))
    for name, parameter in model.named_parameters():
        rule = rule_of(name, sizes, padded)
        if rule is None:
            continue
        for own, piece in zip(rule.names, rule.split(parameter.detach()), strict=True):
            seen.add(own)
            yield own, piece
            if own == "model.embed_tokens.weight" and sizes.tied and "lm_head.weight" in names:
                seen.add("lm_head.weight")
                yield "lm_head.weight", piece
    for name in sorted(names - seen):
        yield name, "Megatron-Core holds no parameter for this tensor"
