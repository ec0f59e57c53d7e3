"""What a side produced for some tokens, on disk: format and fail-closed reading."""

from bitgate.tools.captures.errors import CaptureError
from bitgate.tools.captures.format import CaptureMeta
from bitgate.tools.captures.read import Capture, open_capture, open_captures

__all__ = ["Capture", "CaptureError", "CaptureMeta", "open_capture", "open_captures"]
