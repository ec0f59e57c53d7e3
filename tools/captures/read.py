"""Open a capture, fail-closed: every shard there, every header sound, every column of the right dtype and length.

What the rows themselves hold is checked while they are compared (`validate.py`), so that each byte is read once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bitgate.store.records import Reason
from bitgate.tools.captures.errors import CaptureError
from bitgate.tools.captures.format import FORMAT, VERSION, CaptureMeta
from bitgate.tools.captures.rows import DTYPES, REQUIRED, FileRows, RowSource
from bitgate.tools.captures.safetensors_layout import Layout, open_regular, read_layout
from bitgate.tools.captures.strict_json import MAX_BYTES, StrictJsonError, parse
from bitgate.tools.errors import shown

META_FILE = "capture.json"
SAME_IN_ALL_SHARDS = (
    "engine", "role", "model", "weights", "tokenizer_digest", "sampling", "logprobs",
)  # fmt: skip


@dataclass(frozen=True)
class Capture:
    """One capture: what its shards say, in rank order, and where its rows are. `name` is how messages call it."""

    name: str
    metas: tuple[CaptureMeta, ...]
    rows: RowSource

    @property
    def meta(self) -> CaptureMeta:
        """What is the same in every shard: engine, role, model, weights, sampling, logprobs."""
        return self.metas[0]

    @property
    def masked(self) -> int:
        return sum(meta.rows.masked for meta in self.metas)

    @property
    def sequences(self) -> int:
        """Sequences as the shards count them; one that spans shards is counted in each."""
        return sum(meta.rows.sequences for meta in self.metas)

    def coverage(self) -> dict[str, int]:
        return {
            "shards": len(self.metas),
            "rows": self.rows.count,
            "masked": self.masked,
            "sequences": self.sequences,
        }


def open_capture(folders: str | Path | Sequence[str | Path], *, name: str | None = None) -> Capture:
    """Open the shards of one capture: a folder with capture.json, one with rank folders, or a list of either.

    Shards say which of how many they are. A list of folders that each call themselves the only one is taken as
    the complete list of ranks: whoever started them has counted them.

    Raises:
        CaptureError: any reason of the table's group "Broken capture".
    """
    listed = [Path(folders)] if isinstance(folders, str | Path) else [Path(folder) for folder in folders]
    shards = [_open_shard(shard) for folder in listed for shard in _shard_folders(folder)]
    called = name or (shards[0][0].role if shards else "capture")
    if len(listed) == 1 or any(meta.shard.count != 1 for meta, _ in shards):
        _refuse_missing_shards(called, [meta for meta, _ in shards])
    _refuse_other_captures(called, [meta for meta, _ in shards])
    shards.sort(key=lambda shard: shard[0].shard.index)
    metas = tuple(meta for meta, _ in shards)
    _refuse_other_columns(called, [layout for meta, layout in shards if meta.rows.count])
    if sum(meta.rows.count for meta in metas) == 0:
        raise CaptureError("empty_mask", f"{called} has no rows")
    if sum(meta.rows.masked for meta in metas) == 0:
        raise CaptureError("empty_mask", f"{called}: no row is under the mask")
    return Capture(called, metas, FileRows(tuple(layout for meta, layout in shards if meta.rows.count)))


def open_captures(
    folders: Mapping[str, str | Path | Sequence[str | Path]],
) -> tuple[dict[str, Capture], tuple[Reason, ...]]:
    """Open several by name; what cannot be opened becomes a reason instead."""
    captures: dict[str, Capture] = {}
    reasons: list[Reason] = []
    for name, folder in folders.items():
        try:
            captures[name] = open_capture(folder, name=name)
        except CaptureError as error:
            reasons.append(error.reason)
    return captures, tuple(reasons)


def read_meta(path: Path) -> CaptureMeta:
    """capture.json alone.

    Raises:
        CaptureError: capture_missing, capture_json, capture_version.
    """
    descriptor = open_regular(path)
    try:
        data = os.pread(descriptor, MAX_BYTES + 1, 0)
    finally:
        os.close(descriptor)
    try:
        value = parse(data)
        _refuse_other_format(path, value)
        return CaptureMeta.model_validate_json(data)
    except StrictJsonError as error:
        raise CaptureError("capture_json", f"{path}: {error}") from None
    except ValidationError as error:
        raise CaptureError("capture_json", f"{path}: {_first_errors(error)}") from None


def _refuse_other_format(path: Path, value: Any) -> None:
    if not isinstance(value, dict):
        raise CaptureError("capture_json", f"{path} holds a {type(value).__name__}; allowed: an object")
    if value.get("format") != FORMAT:
        raise CaptureError("capture_json", f"{path}: format is {value.get('format')!r:.80}; allowed: {FORMAT!r}")
    version = value.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CaptureError("capture_json", f"{path}: version is {version!r:.80}; allowed: {VERSION}")
    if version != VERSION:
        raise CaptureError("capture_version", f"{path}: format version {version}; this bitgate reads version {VERSION}")


def _first_errors(error: ValidationError, limit: int = 3) -> str:
    found = error.errors(include_url=False)
    said = [
        f"{'.'.join(map(str, item['loc']))}: {item['msg']} (got {shown(item['input'], 60)})" for item in found[:limit]
    ]
    more = f"; and {len(found) - limit} more" if len(found) > limit else ""
    return "; ".join(said) + more


def _shard_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise CaptureError("capture_missing", f"{folder} is not a folder")
    if (folder / META_FILE).exists():
        return [folder]
    ranks = sorted(path.parent for path in folder.glob(f"rank[0-9]*/{META_FILE}"))
    if not ranks:
        raise CaptureError("capture_missing", f"{folder} holds neither {META_FILE} nor rank folders with one")
    return ranks


def _open_shard(folder: Path) -> tuple[CaptureMeta, Layout]:
    root = folder.resolve()
    meta = read_meta(_inside(root, META_FILE))
    layout = read_layout(_inside(root, meta.rows.file))
    _refuse_bad_columns(layout, meta)
    return meta, layout


def _inside(root: Path, name: str) -> Path:
    if Path(name).name != name or name in ("", ".", "..") or "\0" in name:
        raise CaptureError("capture_path", f"{root}: file {name[:120]!r}; allowed: a plain file name")
    path = root / name
    if path.resolve().parent != root:
        raise CaptureError("capture_path", f"{path} leads outside its folder, to {path.resolve()}")
    return path


def _refuse_bad_columns(layout: Layout, meta: CaptureMeta) -> None:
    held, path = layout.tensors, layout.path
    missing, unknown = sorted(set(REQUIRED) - set(held)), sorted(set(held) - set(DTYPES))
    if missing or unknown:
        raise CaptureError(
            "columns_disagree", f"{path}: missing {missing}, unknown {unknown[:5]}; known: {sorted(DTYPES)}"
        )
    for name, stored in held.items():
        if stored.dtype != DTYPES[name].name:
            narrow = name == "logprob" and stored.dtype in ("float16", "bfloat16")
            code = "logprob_precision" if narrow else "dtype_wrong"
            raise CaptureError(code, f"{path}: column {name} is {stored.dtype}; allowed: {DTYPES[name].name}")
        if len(stored.shape) != 1:
            raise CaptureError(
                "columns_disagree", f"{path}: column {name} has shape {list(stored.shape)}; allowed: [rows]"
            )
    lengths = {name: stored.shape[0] for name, stored in held.items()}
    if len(set(lengths.values())) != 1:
        raise CaptureError("columns_disagree", f"{path}: columns have different lengths: {lengths}")
    if lengths["sequence"] != meta.rows.count:
        raise CaptureError(
            "counts_disagree", f"{path} has {lengths['sequence']} rows, capture.json says {meta.rows.count}"
        )


def _refuse_missing_shards(name: str, metas: Sequence[CaptureMeta]) -> None:
    count = metas[0].shard.count
    indices = [meta.shard.index for meta in metas]
    if {meta.shard.count for meta in metas} != {count} or sorted(indices) != list(range(count)):
        missing = _ranges(sorted(set(range(count)) - set(indices)))
        repeated = sorted({index for index in indices if indices.count(index) > 1}) if len(indices) < 1000 else []
        raise CaptureError(
            "rank_missing",
            f"{name}: {len(metas)} shards of {count}: missing {missing}, twice {repeated}",
        )


def _refuse_other_captures(name: str, metas: Sequence[CaptureMeta]) -> None:
    for field in SAME_IN_ALL_SHARDS:
        values = {getattr(meta, field) if field != "sampling" else repr(meta.sampling) for meta in metas}
        if len(values) > 1:
            raise CaptureError("rank_missing", f"{name}: its shards disagree on {field}, so they are not one capture")


def _refuse_other_columns(name: str, layouts: Iterable[Layout]) -> None:
    kinds = {frozenset(layout.tensors) for layout in layouts}
    if len(kinds) > 1:
        raise CaptureError(
            "columns_disagree", f"{name}: its shards hold different columns: {[sorted(kind) for kind in kinds]}"
        )


def _ranges(numbers: Sequence[int]) -> str:
    if not numbers:
        return "none"
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return ", ".join(str(number) for number in numbers[:8]) + more
