"""`python -m bitgate.tools.slice.cutter ORDER`: cuts in a process of its own, which cleans up when told to end.

A run ends at once when it is cancelled, whatever its tool is doing; this process then gets SIGTERM, or notices that
its parent died, and removes what it had written. Progress goes to stdout as one JSON object a line, the result to the
file that the order names.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from bitgate.tools.engines.worker.processes import signal_when_parent_dies
from bitgate.tools.errors import RequestError
from bitgate.tools.slice.checkpoint import open_checkpoint
from bitgate.tools.slice.cut import CopiedTensor, CutResult, cut
from bitgate.tools.slice.family import read_model
from bitgate.tools.slice.keys import Selection
from bitgate.tools.slice.layout import lay_out
from bitgate.tools.slice.refusal import Refusal

EVERY_S: Final = 0.2
EXIT_CANCELLED: Final = 130


class Cancelled(BaseException):
    """Told to end; raised wherever the cut is, so that it unwinds and removes its folder."""


@dataclass(frozen=True)
class Order:
    """`order.json`: what to cut and where the result goes."""

    source: str
    out: str
    kept: list[int]
    keep_mtp: bool
    provenance: dict[str, Any]
    result: str


def main(path: str) -> int:
    signal.signal(signal.SIGTERM, _cancel)
    signal.signal(signal.SIGINT, _cancel)
    signal_when_parent_dies(signal.SIGTERM)
    order = Order(**json.loads(Path(path).read_text(encoding="utf-8")))
    try:
        answer: dict[str, Any] = {"result": _answer(_cut(order))}
    except Cancelled:
        return EXIT_CANCELLED
    except Refusal as refusal:
        answer = {"refused": {"code": refusal.code, "detail": refusal.detail}}
    except (RequestError, OSError) as error:
        answer = {"failed": str(error)}
    Path(order.result).write_text(json.dumps(answer, allow_nan=False), encoding="utf-8")
    return 0


def _cancel(_: int, __: FrameType | None) -> None:
    # Once only: a second signal must not interrupt the removal.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Cancelled


def _cut(order: Order) -> CutResult:
    checkpoint = open_checkpoint(Path(order.source))
    model = read_model(checkpoint.config)
    layout = lay_out(checkpoint, model, Selection(tuple(order.kept), model.total), order.keep_mtp)
    return cut(checkpoint, layout, Path(order.out), order.provenance, teller())


def teller() -> Callable[[int, int], None]:
    """Progress lines with bytes and rate, at most five a second; the last one always."""
    started = last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY_S or done == total:
            last = now
            rate = done / max(now - started, 1e-9)
            sys.stdout.write(json.dumps({"done": done, "total": total, "rate": rate}, allow_nan=False) + "\n")
            sys.stdout.flush()

    return tell


def _answer(result: CutResult) -> dict[str, Any]:
    return {**asdict(result), "path": str(result.path)}


def result_of(document: dict[str, Any]) -> CutResult:
    """The result as the parent reads it back."""
    tensors = tuple(CopiedTensor(**item) for item in document.pop("tensors"))
    path, files = Path(document.pop("path")), tuple(document.pop("files"))
    return CutResult(path=path, tensors=tensors, files=files, **document)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else os.EX_USAGE)
