"""Constants that the checkpoint holds: a recorded program names them there, instead of writing their bytes once more.

Fused weights are rows of the checkpoint's own tensors, one after the other; which ones, and that nothing else was done
to them, is found and proved on the bytes. What is not found (sharded, padded, quantised, perturbed) is simply written.
"""

from __future__ import annotations

import glob
import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from .rows import bits, same_bits

LEAST = 1 << 14
"""Bytes from which on a constant is looked for."""


@dataclass
class Checkpoint:
    """`folder`: with safetensors. Nothing is read before something is looked for."""

    folder: str
    _names: dict[int, list[tuple[str, str]]] | None = None
    """Size of the last dimension -> (file, name) of tensors with at least two."""
    _firsts: dict[tuple[int, torch.dtype], dict[bytes, list[tuple[str, str]]]] = field(default_factory=dict)

    def find(self, value: Tensor) -> dict[str, Any] | None:
        """The JSON that `read_held` makes the value from, bit for bit; None when the checkpoint does not hold it."""
        if value.ndim < 2 or not value.is_floating_point() or value.numel() * value.element_size() < LEAST:
            return None
        turned = value.ndim == 2 and not value.is_contiguous()
        plain = value.detach().t() if turned else value.detach()
        if not plain.is_contiguous():
            return None
        rows = plain.cpu().reshape(-1, plain.shape[-1])
        parts = self._parts(rows)
        if parts is None:
            return None
        dtype = str(value.dtype).removeprefix("torch.")
        sha256 = digest(rows)
        return {"parts": parts, "shape": list(plain.shape), "dtype": dtype, "turned": turned, "sha256": sha256}

    def _parts(self, rows: Tensor) -> list[list[str]] | None:
        """(file, name) of tensors whose rows, one after the other, are these."""
        firsts = self._first_rows(rows.shape[1], rows.dtype)
        found: list[list[str]] = []
        at = 0
        while at < len(rows):
            for file, name in firsts.get(_raw(rows[at : at + 1]), ()):
                part = read_rows(file, name, rows.dtype)
                if same_bits(part, rows[at : at + len(part)]):
                    found.append([file, name])
                    at += len(part)
                    break
            else:
                return None
        return found

    def _first_rows(self, width: int, dtype: torch.dtype) -> dict[bytes, list[tuple[str, str]]]:
        if (width, dtype) not in self._firsts:
            made: dict[bytes, list[tuple[str, str]]] = {}
            for file, name in self._named().get(width, ()):
                with safe_open(file, "pt") as opened:
                    first = opened.get_slice(name)[0:1].reshape(-1, width)[:1].to(dtype)
                made.setdefault(_raw(first), []).append((file, name))
            self._firsts[width, dtype] = made
        return self._firsts[width, dtype]

    def _named(self) -> dict[int, list[tuple[str, str]]]:
        if self._names is None:
            self._names = {}
            files = glob.glob(os.path.join(glob.escape(self.folder), "*.safetensors")) if self.folder else []
            for file in sorted(files):
                with safe_open(file, "pt") as opened:
                    for name in opened.keys():  # noqa: SIM118 - no mapping
                        shape = opened.get_slice(name).get_shape()
                        if len(shape) > 1 and math.prod(shape):
                            self._names.setdefault(shape[-1], []).append((file, name))
        return self._names


def read_held(reference: dict[str, Any]) -> Tensor:
    """Raises ValueError when the checkpoint's bytes are no longer those that were recorded."""
    dtype = getattr(torch, reference["dtype"])
    rows = torch.cat([read_rows(file, name, dtype) for file, name in reference["parts"]])
    if digest(rows) != reference["sha256"]:
        raise ValueError(f"{reference['parts'][0][0]}: holds other bytes than when its weights were recorded")
    value = rows.reshape(reference["shape"])
    return value.t() if reference["turned"] else value


def read_rows(file: str, name: str, dtype: torch.dtype) -> Tensor:
    with safe_open(file, "pt") as opened:
        tensor: Tensor = opened.get_tensor(name)
    return tensor.reshape(-1, tensor.shape[-1]).to(dtype)


def digest(tensor: Tensor) -> str:
    """sha256 of the elements' bytes in order."""
    return hashlib.sha256(_raw(tensor.flatten()[None])).hexdigest()


def alike(tensors: Sequence[tuple[str, Tensor]]) -> dict[str, str]:
    """Each name -> the first name whose tensor has the same dtype and, in order, the same bytes, whatever its shape."""
    seen: dict[Any, str] = {}
    return {name: seen.setdefault((value.dtype, digest(value.detach().cpu())), name) for name, value in tensors}


def _raw(row: Tensor) -> bytes:
    return bits(row).numpy().tobytes() if row.numel() else b""
