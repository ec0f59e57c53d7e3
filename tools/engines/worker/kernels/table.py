"""The one table: operator -> what this platform dispatches -> how it is differentiated.

A new operator, platform or model family is one row here. `Operators` opens the rows for one model under one
configuration; any module (this package's, FSDP2's, Megatron's) calls what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from .attention import Attention, Rope
from .dense import Embedding, Linear, RmsNorm, SiluMul
from .errors import OperatorWithoutEntry
from .logprob import Logprob
from .moe import Experts, Router
from .stack import Stack


@dataclass(frozen=True)
class Row:
    """`build(stack, **sizes)` makes the callable, whose `identity` names the function that it runs at that moment."""

    build: Callable[..., Any]
    points: tuple[str, ...]
    dispatch: str
    backward: str


TABLE: Final[Mapping[str, Row]] = MappingProxyType(
    {
        "embedding": Row(
            Embedding, ("embed",), "UnquantizedEmbeddingMethod.embedding", "rows summed in float32 per token id"
        ),
        "rms_norm": Row(
            RmsNorm,
            ("attn_norm", "mlp_norm", "q", "k", "final_norm"),
            "RMSNorm's chosen forward and its IR implementation",
            "float32 graph at the master weight",
        ),
        "linear": Row(
            Linear,
            ("q", "k", "v", "o_proj", "gate_up", "mlp_out", "router_logits", "logits"),
            "UnquantizedLinearMethod.apply on the packed fused weight, in fixed row tiles when batch-invariant",
            "grad @ W and grad^T @ x at the unfused master weights",
        ),
        "rotary_embedding": Row(
            Rope, ("q", "k"), "the forward chosen by get_rope's layer", "float32 graph of the native form"
        ),
        "attention": Row(
            Attention,
            ("attn_out",),
            "the platform backend's cache update and attention over a private cache",
            "float32 causal softmax graph, cache rounding as identity",
        ),
        "silu_and_mul": Row(SiluMul, ("act",), "SiluAndMul's chosen forward", "float32 graph"),
        "router": Row(
            Router,
            ("topk_ids", "topk_weights"),
            "create_fused_moe_router's routing",
            "float32 graph of the weights at the chosen experts",
        ),
        "experts": Row(
            Experts,
            ("expert_out", "mlp_out"),
            "the unquantised backend that select_unquantized_moe_backend picks",
            "float32 graph, expert by expert, at the master weights",
        ),
        "logprob": Row(Logprob, ("logprob",), "Sampler.compute_logprobs", "onehot - softmax in float32"),
    }
)


class Operators:
    """The table's rows opened for one stack. Keeps what it handed out, for `describe`."""

    def __init__(self, stack: Stack, table: Mapping[str, Row] = TABLE) -> None:
        self.stack = stack
        self._table = table
        self._opened: dict[str, list[Any]] = {}

    def open(self, operator: str, **sizes: Any) -> Any:
        """The callable for `operator`.

        Raises: OperatorWithoutEntry.
        """
        if operator not in self._table:
            raise OperatorWithoutEntry(operator, "it", f"add a row; there are {', '.join(self._table)}")
        made = self._table[operator].build(self.stack, **sizes)
        self._opened.setdefault(operator, []).append(made)
        return made

    def describe(self) -> dict[str, list[str]]:
        """operator -> the identities of the kernels it resolved to, sorted and without repetition."""
        found = {name: sorted({made.identity for made in opened}) for name, opened in self._opened.items()}
        norms = self._opened.get("rms_norm", [])
        if norms:
            found["fused_add_rms_norm"] = sorted({norm.fused_identity for norm in norms})
        return dict(sorted(found.items()))
