"""The last lines of a log, fit for an error message: no secrets, no terminal control, no lone surrogate, not long."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from bitgate.tools.engines.worker.logs import log_tail
from bitgate.tools.redaction import redact_text

LINES: Final = 30
CHARACTERS: Final = 2500
_STACKS: Final = ("Fatal Python error: ", "bitgate: ended: ")
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")


def tail_of(path: Path, lines: int = LINES, characters: int = CHARACTERS) -> str:
    """The end of a bounded log, whole lines where possible; of a crash or a hang the stacks, innermost frame first."""
    text = plain_text(log_tail(path, 8 * characters)).strip("\n")
    stack = max(text.rfind(start) for start in _STACKS)
    if stack >= 0:
        return text[stack:] if len(text) - stack <= characters else text[stack : stack + characters] + "…"
    kept = "\n".join(text.split("\n")[-lines:])
    return kept if len(kept) <= characters else "…" + kept[-characters:]


def plain_text(data: bytes) -> str:
    """Bytes of any program's output as text that may be shown."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    # A progress bar rewrites its line: only what it said last remains.
    text = "\n".join(line.rsplit("\r", 1)[-1] for line in text.split("\n"))
    return redact_text(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", _ESCAPE.sub("", text)))
