"""What a comparison leaves beside its figures: everything as JSON, the differing rows, the histogram, the plot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bitgate.store.records import ArtifactRef
from bitgate.tools.checks.conclude import whole
from bitgate.tools.compare.artifacts import write_artifacts
from bitgate.tools.compare.result import Comparison

if TYPE_CHECKING:
    from bitgate.tools.runs.context import RunContext


def keep_artifacts(context: RunContext, comparison: Comparison) -> tuple[ArtifactRef, ...]:
    text = json.dumps(whole(comparison), indent=1, allow_nan=False)
    everything = context.artifacts.put_bytes(
        text.encode("utf-8"), name="comparison.json", media_type="application/json"
    )
    written = write_artifacts(comparison, context.folder / "artifacts")
    return (
        everything,
        *(context.artifacts.put_file(item.path, name=item.name, media_type=item.media_type) for item in written),
    )
