"""Run the cutter as a child and hand on its progress."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.text import TextReceiveStream

from bitgate.tools.errors import WorkerError
from bitgate.tools.slice.cut import CutResult
from bitgate.tools.slice.cutter import Order, result_of
from bitgate.tools.slice.refusal import Refusal

GRACE_S: Final = 20.0
OnBytes = Callable[[int, int, float], Awaitable[None]]
"""Called with bytes done, bytes in all, and bytes a second."""


async def cut_in_child(order: Order, folder: Path, on_bytes: OnBytes) -> CutResult:
    """Cut, in a child that cleans up when this is cancelled or its parent dies.

    Raises:
        Refusal: as the cut refused. WorkerError: the child ended without a result.
    """
    order_file = folder / "order.json"
    order_file.write_text(json.dumps(asdict(order), allow_nan=False), encoding="utf-8")
    log = folder / "cutter.log"
    with log.open("wb") as errors:
        command = [sys.executable, "-P", "-m", "bitgate.tools.slice.cutter", str(order_file)]
        process = await anyio.open_process(command, stdin=subprocess.DEVNULL, stderr=errors)
        try:
            assert process.stdout is not None
            await _follow(process.stdout, on_bytes)
            await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)
    return _concluded(Path(order.result), process.returncode, log)


async def _follow(stream: ByteReceiveStream, on_bytes: OnBytes) -> None:
    buffer = ""
    async for text in TextReceiveStream(stream):
        *lines, buffer = (buffer + text).split("\n")
        for line in lines:
            note = json.loads(line)
            await on_bytes(note["done"], note["total"], note["rate"])


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
        with anyio.move_on_after(GRACE_S):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    await process.aclose()


def _concluded(path: Path, code: int | None, log: Path) -> CutResult:
    if not path.is_file():
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise WorkerError("engine_exited", f"the cutting process ended with exit status {code} and no result.", tail)
    answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "refused" in answer:
        raise Refusal(answer["refused"]["code"], answer["refused"]["detail"])
    if "failed" in answer:
        raise WorkerError("bad_result", answer["failed"])
    return result_of(answer["result"])
