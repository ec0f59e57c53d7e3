"""What a comparison leaves beside its figures: everything as JSON, the differing rows, the histogram, the plot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bitgate.store.records import ArtifactRef
from bitgate.tools.checks.conclude import whole
from bitgate.tools.compare.result import Comparison

if TYPE_CHECKING:
    from bitgate.tools.runs.context import RunContext


def keep_artifacts(context: RunContext, comparison: Comparison) -> tuple[ArtifactRef, ...]:
    text = json.dumps(whole(comparison), indent=1, allow_nan=False)
    return (context.artifacts.put_bytes(text.encode("utf-8"), name="comparison.json", media_type="application/json"),)
