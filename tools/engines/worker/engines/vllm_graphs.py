"""Counting CUDA graph replays in this process: whether the deployed path really ran as a graph."""

from __future__ import annotations

from typing import Any

import torch


class GraphReplays:
    """Wraps `torch.cuda.CUDAGraph.replay` once; `count()` is None where the platform has no graphs."""

    _count = 0
    _wrapped = False

    def __init__(self, platform: str) -> None:
        self._exists = platform == "cuda"
        if self._exists and not GraphReplays._wrapped:
            GraphReplays._wrapped = True
            native = torch.cuda.CUDAGraph.replay

            def replay(graph: Any) -> None:
                GraphReplays._count += 1
                native(graph)

            torch.cuda.CUDAGraph.replay = replay

    def count(self) -> int | None:
        return GraphReplays._count if self._exists else None
