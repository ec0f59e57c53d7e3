"""Waiting for processes to end without asking again and again: each look would be taken from what is measured."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType

import anyio


class Exits:
    """Wakes whoever waits when one of some child processes ends; each process wakes it once.

    A process is watched by a descriptor (pidfd, Linux 5.3), all of them by one. Where a kernel or a sandbox refuses
    that, `all_watched` is False: then somebody must look.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._epoll = select.epoll()
        self._descriptors: list[int] = []
        self.all_watched = True
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:
                self.all_watched = False
                continue
            self._descriptors.append(descriptor)
            self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def __enter__(self) -> Exits:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._epoll.close()
        for descriptor in self._descriptors:
            os.close(descriptor)

    async def wait(self, seconds: float) -> None:
        """Until a process ends, `seconds` at most."""
        with anyio.move_on_after(seconds):
            await anyio.wait_readable(self._epoll)
            with suppress(OSError):
                self._epoll.poll(0)
