"""What a cut writes: which tensor goes where under which name, and the configuration beside it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from bitgate.tools.slice.census import place, quantisation
from bitgate.tools.slice.checkpoint import Checkpoint
from bitgate.tools.slice.family import LAYER, Model, Strided, rewritten
from bitgate.tools.slice.header import DTYPE_BITS, TensorEntry
from bitgate.tools.slice.keys import Json, Selection
from bitgate.tools.slice.quant.rewrite import module_paths, rewrite_rules
from bitgate.tools.slice.refusal import CONFIG_BROKEN, DEPTH_DEPENDENT, Refusal

SHARD_BYTES: Final = 5_000_000_000


@dataclass(frozen=True)
class Piece:
    """One tensor of the slice. Bytes: `rows` times, from each `row_size` bytes of the source, the `runs` in it."""

    name: str
    source: TensorEntry
    shape: tuple[int, ...]
    rows: int
    row_size: int
    runs: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        return self.rows * sum(length for _, length in self.runs)

    @property
    def whole(self) -> bool:
        return self.size == self.source.size


@dataclass(frozen=True)
class Layout:
    """`shards` in order; `mapping` old tensor name to new; `config` and `hf_quant_config` as they will be written."""

    shards: tuple[tuple[Piece, ...], ...]
    mapping: dict[str, str]
    config: Json
    hf_quant_config: Json | None
    selection: Selection

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(piece for shard in self.shards for piece in shard)

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    def shard_name(self, number: int) -> str:
        total = len(self.shards)
        return "model.safetensors" if total == 1 else f"model-{number + 1:05d}-of-{total:05d}.safetensors"


def lay_out(
    checkpoint: Checkpoint, model: Model, sel: Selection, keep_mtp: bool = True, shard_bytes: int = SHARD_BYTES
) -> Layout:
    """Everything that the cut will write.

    Raises:
        Refusal: maths that depends on depth without its buffers, or rules that cannot be carried over.
    """
    _check_depth(checkpoint, model, sel)
    names = ((name, renamed(model, name, sel, keep_mtp)) for name in checkpoint.tensors)
    mapping = {old: new for old, new in names if new is not None}
    _check_distinct(mapping)
    pieces = [_piece(model, checkpoint.tensors[old], new, sel) for old, new in mapping.items()]
    config, paths = rewritten(model, sel, keep_mtp), module_paths(mapping)
    _requantise(config, paths, sel)
    extra = checkpoint.hf_quant_config
    quant = rewrite_rules(extra, paths, sel) if extra is not None else None
    return Layout(tuple(_shards(pieces, shard_bytes)), mapping, config, quant, sel)


def _check_distinct(mapping: Mapping[str, str]) -> None:
    origin: dict[str, str] = {}
    for old, new in mapping.items():
        if new in origin:
            raise Refusal(CONFIG_BROKEN, f"{origin[new][:200]!r} and {old[:200]!r} would both become {new[:200]!r}")
        origin[new] = old


def renamed(model: Model, name: str, sel: Selection, keep_mtp: bool) -> str | None:
    """The tensor's name in the slice, or None where it is not kept."""
    if model.family.rename is not None and (special := model.family.rename(model.text, name, sel)) != "":
        return special
    where = place(model, name)
    if where.part == "model" or (where.part == "mtp" and where.layer is None):
        return name if where.part == "model" or keep_mtp else None
    new = sel.new(where.layer) if where.part == "layer" and where.layer is not None else None
    if where.part == "mtp" and keep_mtp and where.layer is not None:
        new = where.layer - sel.total + len(sel.kept)
    found = LAYER.fullmatch(name)
    return f"{found['head']}layers.{new}.{found['rest']}" if found is not None and new is not None else None


def _piece(model: Model, entry: TensorEntry, new: str, sel: Selection) -> Piece:
    strided = next((item for item in model.family.strided if re.fullmatch(item.pattern, entry.name)), None)
    if strided is None:
        return Piece(new, entry, entry.shape, 1, entry.size, ((0, entry.size),))
    return _strided_piece(strided, entry, new, sel)


def _strided_piece(strided: Strided, entry: TensorEntry, new: str, sel: Selection) -> Piece:
    axis, shape = strided.axis, entry.shape
    if len(shape) <= axis or shape[axis] % sel.total or DTYPE_BITS[entry.dtype] % 8:
        raise Refusal(CONFIG_BROKEN, f"{entry.name} of shape {shape} has no equal block for each of {sel.total} layers")
    rows = prod(shape[:axis])
    row_size = entry.size // max(rows, 1)
    block = row_size // sel.total
    kept_shape = (*shape[:axis], shape[axis] // sel.total * len(sel.kept), *shape[axis + 1 :])
    return Piece(new, entry, kept_shape, rows, row_size, tuple(_runs(sel.kept, block)))


def _runs(kept: Iterable[int], block: int) -> Iterable[tuple[int, int]]:
    """(start, length) in bytes of the blocks of the kept layers, neighbours joined."""
    start, length = 0, 0
    for layer in kept:
        if length and layer * block == start + length:
            length += block
            continue
        if length:
            yield start, length
        start, length = layer * block, block
    if length:
        yield start, length


def _shards(pieces: list[Piece], limit: int) -> Iterable[tuple[Piece, ...]]:
    """Source order, so that reading is sequential; within a shard wide dtypes first, so that tensors are aligned."""
    shard: list[Piece] = []
    size = 0
    for piece in sorted(pieces, key=lambda item: (item.source.file.name, item.source.offset)):
        if shard and size + piece.size > limit:
            yield tuple(sorted(shard, key=_alignment))
            shard, size = [], 0
        shard.append(piece)
        size += piece.size
    if shard:
        yield tuple(sorted(shard, key=_alignment))


def _alignment(piece: Piece) -> int:
    return -DTYPE_BITS[piece.source.dtype]


def _requantise(config: Json, paths: Mapping[str, str], sel: Selection) -> None:
    if quantisation(config) is None:
        return
    nested = [value for key, value in config.items() if key.endswith("_config") and isinstance(value, dict)]
    for holder in (config, *nested):
        for key in ("quantization_config", "compression_config"):
            if isinstance(holder.get(key), dict):
                holder[key] = rewrite_rules(holder[key], paths, sel)


def _check_depth(checkpoint: Checkpoint, model: Model, sel: Selection) -> None:
    """Refuse layers whose maths follows from their depth, unless the files carry what it gives."""
    if model.family.depth_buffers is None:
        return
    wanted = model.family.depth_buffers(model.text)
    have = {
        (where.layer, name.rsplit(".", 1)[-1])
        for name in checkpoint.tensors
        if (where := place(model, name)).layer is not None
    }
    lost = [
        f"layers.{layer} {buffer}"
        for layer in sel.kept
        for buffer in wanted.get(layer, ())
        if (layer, buffer) not in have
    ]
    if lost:
        raise Refusal(
            DEPTH_DEPENDENT,
            f"the decay of {model.family.names[0]} follows from layer number and depth, and the files "
            f"lack its buffers ({lost[0]} and {len(lost) - 1} more)",
        )
