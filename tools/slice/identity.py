"""What a checkpoint is: its layout (names, dtypes, shapes, files) cheaply, its weights by reading them."""

from __future__ import annotations

import json
from typing import Final

from blake3 import blake3

from bitgate.store.records import ModelRecord
from bitgate.tools.engines.worker.weights import architecture_digest, checkpoint_digest
from bitgate.tools.slice.checkpoint import Checkpoint

READ_UP_TO: Final = 64 << 30
"""A larger checkpoint is not read to the end only to name it; its layout digest names it."""


def layout_digest(checkpoint: Checkpoint) -> str:
    """BLAKE3 over the configuration and every tensor's name, dtype, shape, file and place: reads no weight."""
    rows = [
        [entry.name, entry.dtype, list(entry.shape), entry.file.name, entry.offset, entry.size]
        for entry in sorted(checkpoint.tensors.values(), key=lambda item: item.name)
    ]
    text = json.dumps([checkpoint.config, rows], sort_keys=True, allow_nan=False)
    return blake3(text.encode("utf-8")).hexdigest()


def record_of(name: str, path: str, slice_of: str | None = None) -> ModelRecord:
    """The identity by which evidence is matched: reads every byte."""
    return ModelRecord(
        name=name,
        architecture_digest=architecture_digest(path),
        weights_digest=checkpoint_digest(path).root(),
        slice_of=slice_of,
    )
