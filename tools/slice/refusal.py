"""Why a checkpoint is not cut. Each refusal is a reason code of `bitgate.tools.reasons` with what was seen."""

from __future__ import annotations

from typing import Final

from bitgate.tools.errors import VerdictError

DEPTH_DEPENDENT: Final = "slice_depth_dependent"
FAMILY_UNKNOWN: Final = "slice_family_unknown"
FORMAT: Final = "slice_format"
SHARD_MISSING: Final = "slice_shard_missing"
TENSOR_MISSING: Final = "slice_tensor_missing"
SHARD_BROKEN: Final = "slice_shard_broken"
PATH_ESCAPES: Final = "slice_path_escapes"
NO_ROOM: Final = "slice_no_room"

NEEDS_MORE_LAYERS: Final = "slice_needs_more_layers"
NOT_EXPRESSIBLE: Final = "slice_not_expressible"
CONFIG_BROKEN: Final = "slice_config_broken"
QUANT_DIFFERS: Final = "slice_quant_differs"


class Refusal(VerdictError):
    """The model is not cut; nothing was written. `code` is a key of the reason table."""
