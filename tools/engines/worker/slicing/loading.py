"""Load report of transformers: which keys of the slice are missing, unexpected or of another shape.

Where a quantisation library is missing or has no CPU kernel, the report is about names and shapes: tensors of the
weights' logical shapes stand in for the packed ones, and the report's mode says so.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from safetensors import safe_open

from .models import UnknownClass, load, model_class, read_config

COMPANIONS = re.compile(
    r".*(weight_scale_inv|weight_scale|weight_scale_2|weight_global_scale|input_scale|input_global_scale|"
    r"weight_zero_point|weight_g_idx|weight_shape|qzeros|scales|g_idx|_scales|k_scale|v_scale|q_scale|_scale_inv|"
    r"(?<!hc_attn_)(?<!hc_ffn_)(?<!hc_head_)\bscale)"
)
SHOWN = 20


def transformers_report(options: Mapping[str, Any]) -> dict[str, Any]:
    """`{"mode", "why", "missing", "unexpected", "mismatched", "errors", "mtp_not_built", "version"}`."""
    path, version = options["slice"], importlib.metadata.version("transformers")
    try:
        kind = model_class(path)
    except UnknownClass as error:
        return {"mode": "not run", "why": str(error), "version": version}
    if options["size"] > options["memory_bytes"]:
        why = f"the slice of {options['size']} bytes does not fit the {options['memory_bytes']} bytes of memory"
        return {"mode": "not run", "why": why, "version": version}
    mode, why, info = _loaded(path, kind)
    return {"mode": mode, "why": why, "version": version, **_sorted_out(info, options["mtp_prefixes"])}


def _loaded(path: str, kind: Any) -> tuple[str, str, dict[str, Any]]:
    quantisation = read_config(path).get("quantization_config")
    why = "" if quantisation is None else _unusable(quantisation)
    if not why:
        try:
            return "loaded", "", load(path, kind, ignore_mismatched_sizes=True)[1]
        except (ImportError, RuntimeError, ValueError, NotImplementedError) as error:
            if quantisation is None:
                return "loaded", "", {"error_msgs": [f"{type(error).__name__}: {error}"]}
            why = f"{type(error).__name__}: {str(error)[:300]}"
    return "names and shapes", why, _stood_in(path, kind)


def _unusable(quantisation: Mapping[str, Any]) -> str:
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    method = quantisation.get("quant_method")
    return "" if method in AUTO_QUANTIZER_MAPPING else f"transformers has no quantiser {method!r}"


def _stood_in(path: str, kind: Any) -> dict[str, Any]:
    """Load tensors without memory behind them, of the shapes that the weights have before packing."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path, local_files_only=True)
    for part in (config, config.get_text_config()):
        if hasattr(part, "quantization_config"):
            del part.quantization_config
    state = {name: torch.zeros(1, dtype=torch.bfloat16).expand(shape) for name, shape in logical_shapes(path)}
    _, info = kind.from_pretrained(
        None,
        config=config,
        state_dict=state,
        output_loading_info=True,
        dtype=torch.bfloat16,
        attn_implementation="eager",
        ignore_mismatched_sizes=True,
    )
    found: dict[str, Any] = info
    return found


def logical_shapes(path: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each weight as if it were not quantised."""
    for file in sorted(name for name in os.listdir(path) if name.endswith(".safetensors")):
        with safe_open(os.path.join(path, file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                part = tensors.get_slice(name)
                if not COMPANIONS.fullmatch(name):
                    yield logical(name, tuple(part.get_shape()), part.get_dtype(), read_config(path))


def logical(name: str, shape: tuple[int, ...], dtype: str, config: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """AWQ and GPTQ pack 4-bit values into int32 (outputs or inputs); NVFP4 two into a byte; MXFP4 in blocks of 32."""
    if name.endswith(".qweight"):
        bits = 32 // int(config["quantization_config"].get("bits", 4))
        gptq = config["quantization_config"].get("quant_method") == "gptq"
        inputs, outputs = (shape[0] * bits, shape[1]) if gptq else (shape[0], shape[1] * bits)
        return f"{name.removesuffix('.qweight')}.weight", (outputs, inputs)
    if name.endswith("_blocks"):
        return name.removesuffix("_blocks"), (shape[0], shape[2] * 32, shape[1])
    if name.endswith("weight_packed"):
        return name.replace("weight_packed", "weight"), (shape[0], shape[1] * (8 if dtype == "I32" else 2))
    if name.endswith(".weight") and dtype in ("U8", "I8") and len(shape) == 2:
        return name, (shape[0], shape[1] * 2)
    return name, shape


def _sorted_out(info: Mapping[str, Any], mtp_prefixes: list[str]) -> dict[str, Any]:
    """transformers builds no MTP block: it skips those at the full model's layer number, and names the others."""
    unexpected = sorted(map(str, info.get("unexpected_keys", ())))
    mtp = [name for name in unexpected if name.startswith(tuple(mtp_prefixes))] if mtp_prefixes else []
    other = [name for name in unexpected if name not in set(mtp)]
    return {
        "missing": _shown(info.get("missing_keys", ())),
        "unexpected": _shown(other),
        "mismatched": _shown(info.get("mismatched_keys", ())),
        "errors": _shown(info.get("error_msgs", ())),
        "mtp_not_built": len(mtp),
    }


def _shown(names: Any) -> list[str]:
    listed = sorted(map(str, names))
    return listed[:SHOWN] + ([f"… {len(listed) - SHOWN} more"] if len(listed) > SHOWN else [])
