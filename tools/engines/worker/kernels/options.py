"""The options of a `vllm_kernels` side: the rollout side's engine options, and the trainer's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

import torch

from ..engine import EngineError

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class Options:
    """`engine` goes to vLLM's configuration as it is: give what the rollout side has, so that dispatch agrees."""

    batch_invariant: bool
    recompute: bool
    master_dtype: torch.dtype | None
    engine: Mapping[str, Any]


def read_options(given: Mapping[str, Any]) -> Options:
    """Raises: EngineError `unsupported_option`, naming the option, what came and what is allowed."""
    engine = {"enable_prefix_caching": False, **given}
    batch_invariant = _flag(engine, "batch_invariant", True)
    recompute = _flag(engine, "recompute", False)
    master = engine.pop("master_dtype", None)
    if master is not None and master not in DTYPES:
        raise EngineError("unsupported_option", f"option master_dtype: got {master!r}; allowed are {', '.join(DTYPES)}")
    _refuse_unknown(engine)
    return Options(batch_invariant, recompute, DTYPES[master] if master else None, engine)


def _flag(options: dict[str, Any], name: str, default: bool) -> bool:
    value = options.pop(name, default)
    if not isinstance(value, bool):
        raise EngineError("unsupported_option", f"option {name}: got {value!r}; allowed are true and false")
    return value


def _refuse_unknown(engine: Mapping[str, Any]) -> None:
    from vllm.engine.arg_utils import EngineArgs

    known = [f.name for f in fields(EngineArgs)]
    for name in engine:
        if name not in known:
            near = get_close_matches(name, [*known, "batch_invariant", "recompute", "master_dtype"], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise EngineError("unsupported_option", f"option {name}: vLLM's engine has no such argument{hint}")
