"""Waiting for processes to end, without looking."""

from __future__ import annotations

import errno
import os
import subprocess
import time

import anyio
import pytest

from bitgate.tools.runs.exits import Exits


def test_the_end_of_one_of_several_processes_wakes_whoever_waits_and_only_once() -> None:
    """Nobody looks meanwhile: the wait for the second one lasts although the first has ended."""

    children = [subprocess.Popen(["cat"], stdin=subprocess.PIPE) for _ in range(2)]

    async def scenario() -> None:
        with Exits(child.pid for child in children) as exits:
            assert exits.all_watched
            for child in children:
                began = time.monotonic()
                await exits.wait(0.05)
                assert time.monotonic() - began >= 0.05, "nobody ended"
                assert child.stdin is not None
                child.stdin.close()
                with anyio.fail_after(20):
                    await exits.wait(60.0)
                assert child.wait() == 0

    anyio.run(scenario)


def test_where_the_kernel_tells_nothing_of_a_process_the_wait_says_so_and_ends_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(pid: int, flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(os, "pidfd_open", refused)
    with Exits([os.getpid()]) as exits:
        assert not exits.all_watched
        anyio.run(exits.wait, 0.01)
