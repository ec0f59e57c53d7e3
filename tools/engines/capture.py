"""Adapter of captures that are already on disk: nothing is run, and what they show is `attested`."""

from __future__ import annotations

from bitgate.tools.config.sides import Side
from bitgate.tools.engines.base import Adapter, refuse_options


class CaptureAdapter(Adapter):
    def check_options(self, side: Side) -> None:
        refuse_options(side, "A capture is read as it is; nothing is run.")

    def default_axes(self, side: Side) -> tuple[str, ...]:
        return ()


ADAPTER = CaptureAdapter("capture", decodes=False, trains=False, packings=("engine",), grade="attested")
