"""The server's log on standard error. It never blocks: a client that does not read its pipe loses lines, not calls."""

from __future__ import annotations

import logging
import os
import select
import stat
from typing import Final

from bitgate.server.sanitise import clean_text
from bitgate.tools.redaction import redact_text

CHUNK: Final = 4000
"""Below PIPE_BUF: a pipe that polls writable takes this much without blocking."""


class NonBlockingStderr(logging.Handler):
    """Writes a record when standard error can take it, and drops it otherwise."""

    dropped: int = 0

    def emit(self, record: logging.LogRecord) -> None:
        line = redact_text(clean_text(self.format(record)))
        data = (f"({self.dropped} lines lost)\n{line}" if self.dropped else line).encode()[:CHUNK] + b"\n"
        if not _takes(2):
            self.dropped += 1
            return
        try:
            os.write(2, data)
            self.dropped = 0
        except OSError:
            self.dropped += 1


def _takes(fd: int) -> bool:
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode) and not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return True
        poller = select.poll()
        poller.register(fd, select.POLLOUT)
        return any(event & select.POLLOUT for _, event in poller.poll(0))
    except OSError:
        return False


def configure_logging(level: int = logging.WARNING) -> None:
    """Replaces every root handler, before the SDK sets up its own."""
    handler = NonBlockingStderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    # Tracebacks of a handler that fails would go to a blocking standard error.
    logging.raiseExceptions = False
