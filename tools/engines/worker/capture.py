"""Write a capture: what one side computed for some tokens (bitgate capture format 1, docs/captures.md).

This file stands alone. Copy it next to a trainer; it needs numpy and safetensors, and torch only for tensors.

    with CaptureWriter("captures/step0/recompute", engine="my_trainer", role="recompute",
                       weights=weights_digest(model.named_parameters(), version=0)) as capture, capture.watch(model):
        logprobs = token_logprobs(model, input_ids)             # float32, one per response token
        capture.add(sequence=0, positions=positions, token_ids=tokens, logprobs=logprobs)

Nothing appears in the folder unless the block ends without an exception: both files are written under a temporary
name, synced and renamed, `capture.json` last.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import socket
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from safetensors.numpy import save_file

FORMAT = "bitgate.capture"
VERSION = 1
ROWS_FILE = "rows.safetensors"
META_FILE = "capture.json"

REQUIRED = {"sequence": "int64", "position": "int64", "token_id": "int64", "mask": "uint8", "logprob": "float32"}
OPTIONAL = {"turn": "int32", "weight_version": "int64", "phase": "uint8", "chunk": "int32", "batch": "int32"}
COLUMNS = {**REQUIRED, **OPTIONAL}
PHASES = {"prefill": 0, "decode": 1}
BUFFERS_RECORDED = 256
BUFFERS_KNOWN = 4096
GRAPH_DEPTH = 4

PROCESS = uuid.uuid4().hex
"""Names this process in `computation`: buffer addresses are comparable only within one process."""

_known: dict[tuple[str, int], tuple[int, Any]] = {}
"""(device, address) -> (serial, weak reference) of buffers handed in before. An address whose buffer has died may be
reused by the allocator, so a buffer's identity is its serial."""
_serials = itertools.count()


class CaptureWriteError(ValueError):
    """What was handed to a CaptureWriter cannot become a capture; the text says which value and why."""


class CaptureWriter:
    """Collects rows and writes one shard: `capture.json` and `rows.safetensors`.

    folder: written to as it is when `world_size` is 1, otherwise each rank writes `folder/rank00000`.
    engine, role: free names; a comparison of three legs wants the roles rollout, recompute, first_train_forward.
    weights: `{"digest": 64 hex digits, "version": int}`, as `weights_digest` returns it.
    sampling: the parameters really used for sampling; None when the tokens were given (forced).
    logprobs_mode: "raw_logprobs", or what else the engine calls the logprobs that it recorded.
    temperature: what logits were divided by before the recorded log_softmax.
    model: `{"name", "architecture_digest", "vocab_size"}`, all optional.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        engine: str,
        role: str,
        weights: Mapping[str, Any],
        sampling: Mapping[str, Any] | None = None,
        logprobs_mode: str = "raw_logprobs",
        temperature: float = 1.0,
        model: Mapping[str, Any] | None = None,
        tokenizer_digest: str | None = None,
        rank: int = 0,
        world_size: int = 1,
        parallel: Mapping[str, int] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise CaptureWriteError(f"rank: got {rank}; allowed: 0 to {world_size - 1} (world_size is {world_size})")
        self.folder = os.path.join(folder, f"rank{rank:05d}") if world_size > 1 else os.fspath(folder)
        self._meta: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "engine": engine,
            "role": role,
            "shard": {"index": rank, "count": world_size},
            "model": dict(model or {}),
            "weights": dict(weights),
            "tokenizer_digest": tokenizer_digest,
            "sampling": None if sampling is None else dict(sampling),
            "logprobs": {"mode": logprobs_mode, "temperature": temperature, "dtype": "float32"},
            "parallel": dict(parallel or {}),
            "provenance": dict(provenance or {}),
        }
        self._parts: list[dict[str, np.ndarray]] = []
        self._computation: dict[str, Any] | None = None
        self._evidence = _Evidence()

    def __enter__(self) -> CaptureWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.close()

    def add(
        self,
        *,
        sequence: int,
        positions: Any,
        token_ids: Any,
        logprobs: Any,
        mask: Any = None,
        turn: Any = 0,
        weight_version: Any = None,
        phase: Any = None,
        chunk: Any = None,
        batch: Any = None,
    ) -> None:
        """Add the rows of one sequence (or of its next part), in the order of its tokens.

        All arrays are one-dimensional, torch or numpy, with one value per row. `positions` is the index of each token
        in prompt + response; `logprobs` are the values the loss or the sampler uses, not a detached copy of them;
        `mask` is 1 where the loss looks (default: everywhere). `phase` is "prefill", "decode" or one value per row.
        """
        self._evidence.see(logprobs)
        count = len(positions)
        optional = {"turn": turn, "weight_version": weight_version, "chunk": chunk, "batch": batch}
        optional["phase"] = PHASES.get(phase, phase) if isinstance(phase, str) else phase
        columns = {
            "sequence": np.full(count, sequence, np.int64),
            "position": positions,
            "token_id": token_ids,
            "mask": np.ones(count, np.uint8) if mask is None else mask,
            "logprob": logprobs,
            **{name: _broadcast(value, count) for name, value in optional.items() if value is not None},
        }
        self.add_columns(columns)

    def add_columns(self, columns: Mapping[str, Any]) -> None:
        """Add rows of many sequences at once: one array per column, rows of a sequence together and in order."""
        self._evidence.see(columns.get("logprob"))
        unknown = sorted(set(columns) - set(COLUMNS))
        missing = sorted(set(REQUIRED) - set(columns))
        if unknown or missing:
            raise CaptureWriteError(f"columns: unknown {unknown}, missing {missing}; allowed: {sorted(COLUMNS)}")
        part = {name: self._column(name, value) for name, value in columns.items()}
        lengths = {name: len(value) for name, value in part.items()}
        if len(set(lengths.values())) != 1:
            raise CaptureWriteError(f"columns have different lengths: {lengths}; give one value per row in each")
        if self._parts and set(part) != set(self._parts[0]):
            raise CaptureWriteError(f"columns: got {sorted(part)}, but earlier rows had {sorted(self._parts[0])}")
        self._parts.append(part)

    def computed(
        self,
        *,
        kind: str,
        passes: int,
        mode: str = "unknown",
        grad: bool = False,
        backward: bool = False,
        seconds: float | None = None,
        tokens: int | None = None,
    ) -> None:
        """State how the logprobs were computed, where `watch` cannot see it (an engine without a torch module)."""
        self._computation = {
            "kind": kind,
            "passes": passes,
            "watched": False,
            "mode": mode,
            "grad": grad,
            "backward": backward,
            "seconds": self._evidence.age() if seconds is None else seconds,
            "tokens": tokens,
        }

    @contextlib.contextmanager
    def watch(self, model: Any, kind: str = "forward") -> Iterator[None]:
        """Count the forward passes of a torch module while the block runs, and note its mode and gradients."""
        seen: dict[str, Any] = {"passes": 0, "mode": "unknown", "grad": False}

        def count(module: Any, _inputs: Any, _outputs: Any) -> None:
            import torch

            seen["passes"] += 1
            seen["mode"] = "train" if module.training else "eval"
            seen["grad"] = seen["grad"] or torch.is_grad_enabled()

        handle, started = model.register_forward_hook(count), time.monotonic()
        try:
            yield
        finally:
            handle.remove()
            seconds = time.monotonic() - started
            self._computation = {**seen, "kind": kind, "watched": True, "backward": False, "seconds": seconds}

    def close(self) -> str:
        """Write the shard and return its folder."""
        rows = self._rows()
        self._meta["logprobs"]["dtype"] = self._evidence.dtype
        self._meta["rows"] = {
            "file": ROWS_FILE,
            "count": len(rows["sequence"]),
            "masked": int(np.count_nonzero(rows["mask"])),
            "sequences": len(np.unique(rows["sequence"])),
        }
        self._meta["computation"] = self._evidence.record(self._computation)
        text = _strict_json(self._meta)
        os.makedirs(self.folder, exist_ok=True)
        _atomically(os.path.join(self.folder, ROWS_FILE), lambda path: save_file(rows, path))
        _atomically(os.path.join(self.folder, META_FILE), lambda path: _write_text(path, text))
        self._parts = []
        return self.folder

    def _column(self, name: str, value: Any) -> np.ndarray:
        if name == "logprob":
            self._evidence.narrowest(value)
        array = _array(value)
        if array.ndim != 1:
            raise CaptureWriteError(f"{name}: got shape {array.shape}; allowed: one dimension, one value per row")
        wanted = np.dtype(COLUMNS[name])
        if wanted.kind in "iu" and array.dtype.kind not in "iub":
            raise CaptureWriteError(f"{name}: got dtype {array.dtype}; allowed: integers (stored as {wanted})")
        if wanted.kind in "iu" and len(array) and not _fits(array, wanted):
            raise CaptureWriteError(f"{name}: got {array.min()} to {array.max()}, which does not fit {wanted}")
        return np.ascontiguousarray(array, wanted)

    def _rows(self) -> dict[str, np.ndarray]:
        if not self._parts:
            return {name: np.empty(0, dtype) for name, dtype in REQUIRED.items()}
        rows = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        if len(rows["sequence"]):
            _refuse_bad_order(rows)
        return rows


class _Evidence:
    """What shows that the logprobs were computed here: buffers, dtype, gradients, a backward pass."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._buffers: dict[int, dict[str, Any]] = {}
        self._backward = False
        self.dtype = "float32"

    def age(self) -> float:
        return time.monotonic() - self._started

    def narrowest(self, logprobs: Any) -> None:
        name = str(getattr(logprobs, "dtype", "float32")).removeprefix("torch.")
        if name not in ("float32", "float64"):
            self.dtype = name

    def see(self, logprobs: Any) -> None:
        buffer = _buffer(logprobs)
        if buffer is not None and len(self._buffers) < BUFFERS_RECORDED:
            self._buffers.setdefault(buffer["serial"], buffer)
        self._expect_backward(logprobs)

    def record(self, computation: dict[str, Any] | None) -> dict[str, Any] | None:
        """None when neither `watch` nor `computed` said anything: then nothing is known about the computation."""
        if computation is None:
            return None
        return {
            "tokens": None,
            **computation,
            "backward": computation["backward"] or self._backward,
            "id": uuid.uuid4().hex,
            "host": socket.gethostname(),
            "process": f"{PROCESS}-{os.getpid()}",
            "buffers": list(self._buffers.values()),
        }

    def _expect_backward(self, logprobs: Any) -> None:
        # The rows handed in are often a slice of the tensor that the loss uses, so the gradient arrives at a node
        # behind the slice: hooks sit on a few nodes upstream.
        node = getattr(logprobs, "grad_fn", None)
        for _ in range(GRAPH_DEPTH):
            if node is None:
                return
            node.register_hook(self._saw_backward)
            node = next((upstream for upstream, _ in node.next_functions if upstream is not None), None)

    def _saw_backward(self, *_: Any) -> None:
        self._backward = True


def weights_digest(named_tensors: Iterable[tuple[str, Any]], version: int = 0) -> dict[str, Any]:
    """`{"digest", "version", "tensors"}` of weights under the checkpoint's own (unfused) names.

    Per tensor SHA-256 over name, dtype, shape and bytes; the root is SHA-256 over the sorted `name:digest` lines: the
    trainer's, the exported and the engine's weights have one digest when their bytes are equal.
    """
    lines = sorted(f"{name}:{tensor_digest(name, tensor)}" for name, tensor in named_tensors)
    root = hashlib.sha256("\n".join(lines).encode("utf-8"))
    return {"digest": root.hexdigest(), "version": version, "tensors": len(lines)}


def tensor_digest(name: str, tensor: Any) -> str:
    """SHA-256 over `name|dtype|shape|` and the little-endian bytes."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = ",".join(str(size) for size in tensor.shape)
    digest = hashlib.sha256(f"{name}|{dtype}|{shape}|".encode())
    digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Any) -> memoryview:
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
    import torch

    return memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if value.dtype.is_floating_point else value
    return np.asarray(value)


def _broadcast(value: Any, count: int) -> Any:
    return np.full(count, value, np.int64) if np.ndim(_array(value)) == 0 else value


def _fits(array: np.ndarray, wanted: np.dtype[Any]) -> bool:
    limits = np.iinfo(wanted)
    return int(array.min()) >= limits.min and int(array.max()) <= limits.max


def _buffer(logprobs: Any) -> dict[str, Any] | None:
    """Which memory the values live in: the storage of a torch tensor, the root of a numpy view; None for a list."""
    owner = _owner(logprobs)
    if owner is None:
        return None
    if isinstance(owner, np.ndarray):
        pointer, size, device, dead = owner.ctypes.data, owner.nbytes, "cpu", weakref.ref(owner)
    else:
        from torch.multiprocessing.reductions import StorageWeakRef

        pointer, size, device, dead = owner.data_ptr(), owner.nbytes(), str(owner.device), StorageWeakRef(owner)
    graph = getattr(logprobs, "grad_fn", None)
    return {
        "serial": _serial(device, pointer, dead),
        "pointer": pointer,
        "bytes": size,
        "device": device,
        "grad_fn": None if graph is None else type(graph).__name__,
    }


def _owner(logprobs: Any) -> Any:
    while isinstance(logprobs, np.ndarray) and logprobs.base is not None and _owns(logprobs.base):
        logprobs = logprobs.base
    return logprobs.untyped_storage() if hasattr(logprobs, "untyped_storage") else logprobs if _owns(logprobs) else None


def _owns(value: Any) -> bool:
    return isinstance(value, np.ndarray) or hasattr(value, "untyped_storage")


def _serial(device: str, pointer: int, reference: Any) -> int:
    known = _known.get((device, pointer))
    if known is not None and not _dead(known[1]):
        return known[0]
    if len(_known) >= BUFFERS_KNOWN:
        for key in [key for key, (_, other) in _known.items() if _dead(other)]:
            del _known[key]
    serial = next(_serials)
    _known[device, pointer] = (serial, reference)
    return serial


def _dead(reference: Any) -> bool:
    return reference() is None if isinstance(reference, weakref.ref) else bool(reference.expired())


def _refuse_bad_order(rows: Mapping[str, np.ndarray]) -> None:
    sequence, position = rows["sequence"], rows["position"]
    turn = rows.get("turn", np.zeros(len(sequence), np.int32))
    same, same_turn = sequence[1:] == sequence[:-1], turn[1:] == turn[:-1]
    grows = (turn[1:] > turn[:-1]) | (same_turn & (position[1:] > position[:-1]))
    bad = np.flatnonzero(same & ~grows)
    if len(bad):
        row = int(bad[0]) + 1
        raise CaptureWriteError(
            f"sequence {sequence[row]}: position {position[row]} follows {position[row - 1]}; "
            "positions of a sequence must grow"
        )
    groups = sequence[np.flatnonzero(np.concatenate([[True], ~same]))]
    if len(groups) != len(np.unique(groups)):
        raise CaptureWriteError("the rows of a sequence are not together; add each sequence at once")


def _atomically(path: str, write: Any) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _strict_json(meta: Mapping[str, Any]) -> str:
    """The text of capture.json; a value that JSON cannot hold is named before anything is written."""
    for key, value in meta.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CaptureWriteError(
                f"{key}: got {value!r:.200}, which JSON cannot hold ({error}); allowed: text, finite numbers, "
                "true, false, null, and lists and objects of these"
            ) from None
    return json.dumps(meta, indent=1, allow_nan=False)


def _write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
