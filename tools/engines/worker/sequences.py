"""The job's sequences: prompt and response tokens of each, in one safetensors file. numpy and safetensors only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from safetensors.numpy import load_file, save_file


@dataclass(frozen=True)
class Sequences:
    """tokens int64 [T], offsets int64 [S + 1] into it, response_start int64 [S] relative to each sequence's start."""

    tokens: np.ndarray
    offsets: np.ndarray
    response_start: np.ndarray

    @classmethod
    def of(cls, pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Sequences:
        """From (prompt, response) pairs."""
        listed = list(pairs)
        lengths = [len(prompt) + len(response) for prompt, response in listed]
        flat = [token for prompt, response in listed for part in (prompt, response) for token in part]
        return cls(
            np.asarray(flat, np.int64),
            np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
            np.asarray([len(prompt) for prompt, _ in listed], np.int64),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sequences:
        stored = load_file(path)
        return cls(stored["tokens"], stored["offsets"], stored["response_start"])

    def save(self, path: str | os.PathLike[str]) -> None:
        arrays = {"tokens": self.tokens, "offsets": self.offsets, "response_start": self.response_start}
        save_file({name: np.ascontiguousarray(array, np.int64) for name, array in arrays.items()}, path)

    def __len__(self) -> int:
        return len(self.response_start)

    def whole(self, index: int) -> list[int]:
        """Prompt and response tokens."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]].tolist()  # type: ignore[no-any-return]

    def prompt(self, index: int) -> list[int]:
        return self.whole(index)[: self.response_start[index]]

    def response(self, index: int) -> list[int]:
        return self.whole(index)[self.response_start[index] :]

    def first_token_from(self, limit: int) -> tuple[int, int] | None:
        """(sequence, token) of the first token id that is `limit` or above."""
        above = np.flatnonzero(self.tokens >= limit)
        if len(above) == 0:
            return None
        sequence = int(np.searchsorted(self.offsets, above[0], side="right")) - 1
        return sequence, int(self.tokens[above[0]])

    def with_responses(self, responses: Mapping[int, Sequence[int]]) -> Sequences:
        """The same prompts; the responses of the sequences named are replaced."""
        return Sequences.of((self.prompt(i), responses.get(i, self.response(i))) for i in range(len(self)))


def write_sequences(
    path: str | os.PathLike[str], prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
) -> None:
    """The job's file, from one response a prompt."""
    Sequences.of(zip(prompts, responses, strict=True)).save(path)


def read_sequences(path: str | os.PathLike[str]) -> Sequences:
    """Raises ValueError when the file's columns do not describe sequences."""
    columns = load_file(path)
    wanted = {"tokens", "offsets", "response_start"}
    if set(columns) != wanted:
        raise ValueError(f"{path}: has columns {sorted(columns)}; allowed are exactly {sorted(wanted)}")
    for name, column in columns.items():
        if column.dtype != np.int64 or column.ndim != 1:
            raise ValueError(
                f"{path}: {name} is {column.dtype}{list(column.shape)}; allowed is int64 with one dimension"
            )
    sequences = Sequences(**columns)
    _check(path, sequences)
    return sequences


def _check(path: str | os.PathLike[str], sequences: Sequences) -> None:
    offsets, starts, size = sequences.offsets, sequences.response_start, len(sequences.tokens)
    if len(offsets) != len(starts) + 1 or offsets[0] != 0 or offsets[-1] != size or (np.diff(offsets) < 0).any():
        raise ValueError(f"{path}: offsets do not cut the {size} tokens into {len(starts)} sequences")
    if (starts < 0).any() or (starts > np.diff(offsets)).any():
        raise ValueError(f"{path}: response_start lies outside its sequence")
    if (sequences.tokens < 0).any():
        raise ValueError(f"{path}: a token id is negative")
