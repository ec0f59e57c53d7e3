"""A transformers model made equal to Megatron-Core's local layers, one operator at a time, as a `python` side.

`norm`: torch's rms_norm, which multiplies by the weight before it rounds. `attention`: scores, scale and softmax as
Megatron-Core's DotProductAttention orders and rounds them.
`experts`: weights multiplied in before the second product, as its MLP does with `per_token_scale`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch.nn import functional as F
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

Record = Callable[[int, str, torch.Tensor], None]
RECORD: list[Record] = []
STOCK = ALL_ATTENTION_FUNCTIONS["sdpa"]


def load(path: str, options: dict[str, Any]) -> Any:
    net = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
    if options["norm"]:
        for module in net.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = normed(module)
    ALL_EXPERTS_FUNCTIONS["megatron"] = experts
    net.config._experts_implementation = "megatron" if options.get("experts") else "eager"
    run = as_megatron if options["attention"] else STOCK
    ALL_ATTENTION_FUNCTIONS["sdpa"] = lambda module, q, k, v, *args, **kwargs: watched(
        run, module, q, k, v, *args, **kwargs
    )
    return net


def normed(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: F.rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)


def experts(module: Any, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x)
    for number in range(module.num_experts):
        tokens, slots = torch.where(chosen == number)
        gate, up = F.linear(x[tokens], module.gate_up_proj[number]).chunk(2, dim=-1)
        act = (F.silu(gate) * up * weights[tokens, slots, None]).to(x.dtype)
        total.index_add_(0, tokens, F.linear(act, module.down_proj[number]))
    return total


def watched(run: Any, module: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
    for record in RECORD:
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            record(module.layer_idx, name, tensor.transpose(1, 2).flatten(2))
    return run(module, q, k, v, *args, **kwargs)


def as_megatron(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, **_: Any) -> tuple[torch.Tensor, None]:
    """q [B, H, T, D], k and v [B, G, T, D] -> [B, T, H, D]."""
    count, heads, size, width = q.shape
    q, k, v = (t.permute(2, 0, 1, 3).contiguous() for t in (q, k, v))
    k, v = (t.repeat_interleave(module.num_key_value_groups, dim=2) for t in (k, v))
    q, k, v = (t.reshape(size, count * heads, width).transpose(0, 1) for t in (q, k, v))
    scores = torch.baddbmm(q.new_empty(len(q), size, size), q, k.transpose(1, 2), beta=0.0, alpha=scaling).float()
    later = torch.ones(size, size, dtype=torch.bool).triu(1)
    probabilities = scores.masked_fill(later, -10000.0).softmax(-1).to(q.dtype)
    return torch.bmm(probabilities, v).view(count, heads, size, width).transpose(1, 2).contiguous(), None


def model(state: Any) -> torch.nn.Module:
    net: torch.nn.Module = state
    return net


def watch(state: Any, record: Record) -> Callable[[], None]:
    RECORD.append(record)
    return RECORD.clear


def score(state: Any, sequences: Any, mode: str) -> list[torch.Tensor]:
    found = []
    with torch.set_grad_enabled(mode == "train_forward"):
        for s in sequences:
            logits = state(input_ids=torch.tensor([s.tokens]), use_cache=False).logits[0]
            chosen = torch.tensor(s.tokens[s.response_start :])
            own = logits[s.response_start - 1 : len(s.tokens) - 1].float().log_softmax(-1)
            found.append(own.gather(-1, chosen[:, None])[:, 0])
    return found


def weights(state: Any) -> Any:
    return state.state_dict().items()
