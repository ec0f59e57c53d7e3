"""A real, small engine for tests (numpy only), and every way in which engines misbehave. Staged beside the others."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from typing import Any

import numpy as np

# Staged into the worker package, where `engine` is its neighbour.
from ..engine import EngineError, Perturbation, StepRows  # noqa: TID252

VOCAB, WIDTH = 64, 8


def forever() -> None:
    threading.Event().wait()


def exits() -> None:
    sys.stderr.write("tiny: giving up\n")
    os._exit(3)


def leaves_python() -> None:
    raise SystemExit("tiny: usage")


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crashes() -> None:
    ctypes.string_at(0)


def prints_garbage() -> None:
    os.write(1, bytes(range(256)) * 64 + b"\xff\xfe\x1b[31m\x1b]0;title\x07\n")
    os.write(2, "\ud800 lone".encode("utf-8", "surrogatepass"))


def floods() -> None:
    line = b"x" * 1023 + b"\n"
    for _ in range(256):
        os.write(1, line * 128)  # 32 MiB in all
    os.write(1, b"the last line\n")


def hangs_with_the_gil() -> None:
    ctypes.PyDLL(None).pause()
    while True:
        ctypes.PyDLL(None).sleep(3600)


def leaves_a_daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            forever()
        os._exit(0)
    os.wait()


def forever_with_a_daemon() -> None:
    leaves_a_daemon()
    forever()


def fills_the_disk() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open("filler", "wb") as file:
        file.write(b"\0" * (2 << 20))


def fills_to_the_brim() -> None:
    with open("filler", "wb", buffering=0) as file:
        while True:
            file.write(b"\0" * (1 << 16))


def grows() -> None:
    with open("filler", "wb") as file:
        file.write(b"\0" * (8 << 20))
        file.flush()
        forever()


def says_its_secret() -> None:
    for part in os.environ["TINY_API_KEY"][:5], os.environ["TINY_API_KEY"][5:], "\n":
        os.write(1, part.encode())
        threading.Event().wait(0.05)
    raise EngineError("told", f"the key is {os.environ['TINY_API_KEY']} TINY_API_KEY={os.environ['TINY_API_KEY']}")


def writes_a_bad_result() -> None:
    with open("out/rank00000/result.json", "w", encoding="utf-8") as file:
        file.write('{"rank": 0, "world_size": 1, "steps": {"a": ')
    os._exit(0)


def writes_no_result() -> None:
    os._exit(0)


def is_missing() -> None:
    if int(os.environ.get("RANK", "0")) == 1:
        os._exit(0)


def reports_nan() -> None:
    pass


MISCHIEF = {
    f.__name__: f
    for f in (
        forever, exits, leaves_python, is_killed, crashes, prints_garbage, floods, hangs_with_the_gil, leaves_a_daemon,
        fills_the_disk, grows, says_its_secret, writes_a_bad_result, writes_no_result, is_missing, reports_nan,
        forever_with_a_daemon, fills_to_the_brim,
    )
}  # fmt: skip


class TinyEngine:
    """logprob(token | previous token) of a random bigram model, float32."""

    def __init__(self, model_path: str, options: dict[str, Any], job: Any) -> None:
        self._options, self._job = options, job
        random = np.random.default_rng(int(options.get("seed", 0)))
        self._embedding = random.standard_normal((VOCAB, WIDTH)).astype(np.float32)
        self._head = random.standard_normal((WIDTH, VOCAB)).astype(np.float32)
        if options.get("when", "load") == "load":
            self._misbehave()

    def _misbehave(self) -> None:
        name = self._options.get("mischief")
        if name == "raises":
            raise RuntimeError("tiny: cannot load")
        if name == "uses_gloo":
            self._ranks = gloo_sum()
        elif name is not None:
            MISCHIEF[name]()

    def describe(self) -> dict[str, Any]:
        nan = float("nan") if self._options.get("mischief") == "reports_nan" else 0.0
        return {
            "stable": {"dtype": "float32", "nan": nan, "ranks": getattr(self, "_ranks", 1)},
            "volatile": {"pid": os.getpid(), "says": os.environ.get("TINY_SAYS")},
        }

    def weights(self) -> Any:
        yield "embedding", self._embedding
        yield "head", self._head

    def run(self, step: Any, sequences: Any) -> StepRows:
        if self._options.get("when") == "step":
            self._misbehave()
        if step["kind"] == "generate":
            sequences = sequences.with_responses(self._sample(step, sequences))
        columns: dict[str, list[Any]] = {name: [] for name in ("sequence", "position", "token_id", "mask", "logprob")}
        for done, index in enumerate(index for group in step["groups"] for index in group):
            self._job.progress(done / 10, f"sequence {index}")
            self._score(columns, index, sequences)
        arrays = {
            name: np.array(values, np.float32 if name == "logprob" else np.int64) for name, values in columns.items()
        }
        return StepRows(arrays, {"groups": len(step["groups"])}, {"kind": "tiny", "passes": len(step["groups"])})

    def _logprobs(self, token: int) -> np.ndarray[Any, Any]:
        logits = self._embedding[token] @ self._head
        shifted = logits - logits.max()
        return np.asarray(shifted - np.log(np.exp(shifted).sum()), np.float32)

    def _sample(self, step: Any, sequences: Any) -> dict[int, list[int]]:
        found = {}
        for index in (index for group in step["groups"] for index in group):
            tokens = sequences.prompt(index)
            for _ in range(step["max_tokens"]):
                tokens.append(int(self._logprobs(tokens[-1]).argmax()))
            found[index] = tokens[len(sequences.prompt(index)) :]
        return found

    def _score(self, columns: dict[str, list[Any]], index: int, sequences: Any) -> None:
        whole, start = sequences.whole(index), len(sequences.prompt(index))
        for position in range(start, len(whole)):
            row = (index, position, whole[position], 1, self._logprobs(whole[position - 1])[whole[position]])
            for name, value in zip(columns, row, strict=True):
                columns[name].append(value)

    def perturb(self, ulps: int) -> Perturbation:
        before = self._embedding.copy()
        if self._options.get("blind") or ulps < self._options.get("least_ulps", 1):
            return Perturbation("embedding", 0, 0.0, 0.0, lambda: None)
        self._embedding[:] = np.nextafter(self._embedding, np.float32(np.inf))
        return Perturbation(
            "embedding", 0, float(before[0, 0]), float(self._embedding[0, 0]), lambda: self._restore(before), ulps
        )

    def _restore(self, before: np.ndarray[Any, Any]) -> None:
        self._embedding[:] = before

    def close(self) -> None:
        if self._options.get("mischief") == "hangs_at_close":
            forever()


def gloo_sum() -> int:
    """Ranks plus one summed over all of them, through torch.distributed."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(value)
    dist.destroy_process_group()
    return int(value)


ENGINE = TinyEngine
