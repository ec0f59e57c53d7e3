"""The one table: operator -> what makes it, with what this platform dispatches, and a backward.

A new operator, platform or model family is one row here. `Operators` opens the rows for one model under one
configuration; any module (this package's, FSDP2's, Megatron's) calls what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from .attention import Attention, Rope
from .dense import Embedding, Linear, RmsNorm, SiluMul
from .errors import OperatorWithoutEntry
from .logprob import Logprob
from .moe import Experts, Router
from .stack import Stack

Build = Callable[..., Any]
"""`build(stack, **sizes)` makes the callable, whose `identity` names the function that it runs at that moment."""

TABLE: Final[Mapping[str, Build]] = MappingProxyType(
    {
        "embedding": Embedding,
        "rms_norm": RmsNorm,
        "linear": Linear,
        "rotary_embedding": Rope,
        "attention": Attention,
        "silu_and_mul": SiluMul,
        "router": Router,
        "experts": Experts,
        "logprob": Logprob,
    }
)
"""docs/trainer.md says of each what must be true, what is dispatched, and how it is differentiated."""


class Operators:
    """The table's rows opened for one stack. Keeps what it handed out, for `describe`."""

    def __init__(self, stack: Stack, table: Mapping[str, Build] = TABLE) -> None:
        self.stack = stack
        self._table = table
        self._opened: dict[str, list[Any]] = {}

    def open(self, operator: str, **sizes: Any) -> Any:
        """The callable for `operator`.

        Raises: OperatorWithoutEntry.
        """
        if operator not in self._table:
            raise OperatorWithoutEntry(operator, "it", f"add a row; there are {', '.join(self._table)}")
        made = self._table[operator](self.stack, **sizes)
        self._opened.setdefault(operator, []).append(made)
        return made

    def describe(self) -> dict[str, list[str]]:
        """operator -> the identities of the kernels it resolved to, sorted and without repetition."""
        found = {name: sorted({made.identity for made in opened}) for name, opened in self._opened.items()}
        norms = self._opened.get("rms_norm", [])
        if norms:
            found["fused_add_rms_norm"] = sorted({norm.fused_identity for norm in norms})
        return dict(sorted(found.items()))
