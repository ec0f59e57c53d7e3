"""What is wrong with a capture, as an error that carries a row of the reason table."""

from __future__ import annotations

from bitgate.store.records import Reason
from bitgate.tools.errors import BitgateError
from bitgate.tools.reasons import reason


class CaptureError(BitgateError):
    """A capture that cannot be compared. `reason` is what a finding lists: its code, and which file said what."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.reason: Reason = reason(code, detail)
        super().__init__(self.reason.detail)
