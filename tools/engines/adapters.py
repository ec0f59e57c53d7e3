"""The engines by name. To add one: a module with an `Adapter`, one row here, and one row in worker/table.py."""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import Final

from bitgate.tools.engines.base import Adapter
from bitgate.tools.errors import unknown_name

ADAPTERS: Final = MappingProxyType(
    {
        "vllm": "bitgate.tools.engines.vllm",
        "vllm_kernels": "bitgate.tools.engines.vllm_kernels",
        "transformers": "bitgate.tools.engines.transformers",
        "megatron": "bitgate.tools.engines.megatron",
        "python": "bitgate.tools.engines.python",
        "capture": "bitgate.tools.engines.capture",
        "server": "bitgate.tools.engines.server",
    }
)
"""Engine name -> module, whose `ADAPTER` it is."""


def adapter_of(engine: str) -> Adapter:
    """Raises RequestError for an engine that bitgate has no adapter for."""
    if engine not in ADAPTERS:
        raise unknown_name("engine", engine, ADAPTERS)
    adapter: Adapter = importlib.import_module(ADAPTERS[engine]).ADAPTER
    return adapter
