"""Programs that need another environment than this process has: each is run by a process of its own, step by step.

Kernels look variables up once in a process, and vLLM's batch-invariant mode stays on once it is: two sides that differ
in these cannot be run by one process, whatever the order.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .gpu import follow_mode, home
from .setting import environment_apart, environment_of

if TYPE_CHECKING:
    from .program import Op, Program

Hook = Callable[[int, "Op", dict[str, Any]], None]
END_S = 10.0
_MINE: list[str] = []
"""In such a process, what it is; there is no third."""
_OTHERS: dict[str, list[_Other]] = {}


def elsewhere(notes: Mapping[str, Any]) -> bool:
    """Whether a program cannot be run by this process. Raises: RuntimeError where it should be this very process."""
    why = environment_apart(notes)
    if why is None:
        try:
            follow_mode(notes)
        except RuntimeError as error:
            why = str(error)
    if why is not None and _MINE:
        raise RuntimeError(why)
    return why is not None


def run_elsewhere(program: Program, overrides: Mapping[str, Tensor] | None, hook: Hook | None) -> dict[str, Any]:
    """As Program.run. Raises: RuntimeError, with what the other process said."""
    key = json.dumps([environment_of(program.notes), bool(program.notes.get("batch_invariant"))], sort_keys=True)
    others = _OTHERS.setdefault(key, [])
    free = next((other for other in others if not other.busy), None)
    if free is None:
        # A hook in the middle of one run may start another.
        free = _Other(environment_of(program.notes))
        others.append(free)
    free.busy = True
    try:
        return free.run(program, overrides, hook)
    finally:
        free.busy = False


class _Other:
    def __init__(self, environment: Mapping[str, str | None]) -> None:
        self.busy = False
        self._ours, theirs = Pipe()
        package = __package__ or ""
        root = os.path.abspath(__file__)
        for _ in range(package.count(".") + 2):
            root = os.path.dirname(root)
        given = {**os.environ, **{n: v for n, v in environment.items() if v is not None}}
        given = {n: v for n, v in given.items() if environment.get(n, v) is not None}
        start = f"import sys; sys.path.insert(0, {root!r}); from {package}.apart import serve; serve({theirs.fileno()})"
        self._child = subprocess.Popen([sys.executable, "-c", start], env=given, pass_fds=[theirs.fileno()])
        theirs.close()
        atexit.register(self.close)

    def close(self) -> None:
        """Its pipe is at an end, and so is it."""
        self._ours.close()
        try:
            self._child.wait(END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def run(self, program: Program, overrides: Mapping[str, Tensor] | None, hook: Hook | None) -> dict[str, Any]:
        _send(self._ours, {"program": program, "overrides": dict(overrides or {}), "hooked": hook is not None})
        env: dict[str, Any] = {}
        while True:
            try:
                said = _received(self._ours)
            except EOFError:
                raise RuntimeError(f"the process of its own ended with {self._child.wait()}") from None
            if "failed" in said:
                raise RuntimeError(said["failed"])
            if "env" in said:
                found: dict[str, Any] = said["env"]
                return found
            assert hook is not None
            env |= said["changed"]
            before = {name: value.clone() for name, value in said["changed"].items()}
            try:
                hook(said["at"], program.ops[said["at"]], env)
            except BaseException:
                # It waits for what the hook changed: told that there is nothing more, it is ready for the next run.
                _send(self._ours, {"stopped": True})
                _received(self._ours)
                raise
            changed = {name: env[name] for name, value in before.items() if not _alike(env[name], value)}
            _send(self._ours, {"changed": changed})


def serve(descriptor: int) -> None:
    """The process of its own: runs what comes until the pipe ends."""
    connection = Connection(descriptor)
    _MINE.append("apart")
    while True:
        try:
            given = _received(connection)
        except EOFError:
            return
        try:
            _send(connection, {"env": _run(connection, given)})
        except Exception as error:  # noqa: BLE001 - told to the process that asked
            _send(connection, {"failed": f"{type(error).__name__}: {error}"})


def _run(connection: Connection, given: dict[str, Any]) -> dict[str, Any]:
    def hook(number: int, op: Op, env: dict[str, Any]) -> None:
        names = {n for n in (*op.outs, *op.writes) if n is not None and isinstance(env.get(n), Tensor)}
        memory = {env[n].untyped_storage().data_ptr() for n in op.writes if n in names}
        names |= {n for n, t in env.items() if isinstance(t, Tensor) and t.untyped_storage().data_ptr() in memory}
        # At the first operator the values that it and the later ones read go with it.
        names |= {n for n, t in env.items() if isinstance(t, Tensor)} if number == 0 else set()
        _send(connection, {"at": number, "changed": {n: home(env[n]) for n in names}})
        answer = _received(connection)
        if "stopped" in answer:
            raise RuntimeError("stopped by its hook")
        for name, value in answer["changed"].items():
            env[name].copy_(value)

    env: dict[str, Any] = given["program"].run(given["overrides"], hook if given["hooked"] else None)
    return {name: value for name, value in env.items() if isinstance(value, Tensor)}


def _alike(a: Tensor, b: Tensor) -> bool:
    bits = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return a is b or torch.equal(*bits)


def _send(connection: Connection, value: Any) -> None:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    connection.send_bytes(buffer.getbuffer())


def _received(connection: Connection) -> Any:
    # Only our own process is at the other end.
    return torch.load(io.BytesIO(connection.recv_bytes()), weights_only=False)
