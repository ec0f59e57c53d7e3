"""A workload's tokens: from a seeded generator, the same on every machine, or from a JSONL or parquet file."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bitgate.tools.config.digests import canonical_digest
from bitgate.tools.config.model import GeneratorConfig, WorkloadConfig
from bitgate.tools.engines.jobs import Sampling
from bitgate.tools.errors import ConfigError, shown

MAX_TOKEN: Final = 2**31 - 1
MAX_PROMPTS: Final = 1_000_000


@dataclass(frozen=True)
class TokenSequence:
    """A prompt, and the response to force after it where the workload has one."""

    prompt: tuple[int, ...]
    response: tuple[int, ...] = ()


@dataclass(frozen=True)
class Workload:
    name: str
    config: WorkloadConfig
    file: Path | None

    @property
    def sampling(self) -> Sampling:
        return self.config.sampling

    @property
    def max_tokens(self) -> int:
        return self.config.max_tokens

    def check(self) -> None:
        """Whether its file can be read and begins with a prompt; cheap, also where the file is large.

        Raises:
            ConfigError: the text names file, row and key.
        """
        if self.file is not None:
            read_sequences(self.file, self.config.model_copy(update={"limit": 1}))

    def sequences(self) -> list[TokenSequence]:
        """The sequences, in order.

        Raises:
            ConfigError: the file cannot be read, or a row is not a prompt; the text names file, row and key.
        """
        if self.config.generator is not None:
            prompts = generate_prompts(self.config.generator)[: self.config.limit]
            return [TokenSequence(prompt) for prompt in prompts]
        assert self.file is not None  # the configuration demands one of the two
        return read_sequences(self.file, self.config)


def sequences_digest(sequences: Sequence[TokenSequence]) -> str:
    """SHA-256 of the tokens; 64 hex digits."""
    return canonical_digest({"sequences": [[list(s.prompt), list(s.response)] for s in sequences]})


def generate_prompts(generator: GeneratorConfig) -> list[tuple[int, ...]]:
    """Random prompts of token ids. A function of its argument alone, on every platform and Python.

    Lengths are uniform in `lengths`, ids in `token_range`; the first `shared_prefix` ids are equal inside a group, and
    prompt i is in group i modulo `prefix_groups`.
    """
    shortest, longest = generator.lengths
    drawn = seeded_numbers(generator.seed, "length", generator.count)
    lengths = [shortest + n % (longest - shortest + 1) for n in drawn]
    prefixes = [_ids(generator, f"prefix {g}", generator.shared_prefix) for g in range(generator.prefix_groups)]
    return [
        prefixes[i % generator.prefix_groups] + _ids(generator, f"prompt {i}", length - generator.shared_prefix)
        for i, length in enumerate(lengths)
    ]


def _ids(generator: GeneratorConfig, label: str, count: int) -> tuple[int, ...]:
    first, end = generator.token_range
    return tuple(first + n % (end - first) for n in seeded_numbers(generator.seed, label, count))


def seeded_numbers(seed: int, label: str, count: int) -> Iterator[int]:
    """`count` uniform 64-bit numbers. SHAKE-256 rather than `random`, whose streams Python does not promise to keep."""
    stream = hashlib.shake_256(f"bitgate workload 1\0{seed}\0{label}".encode()).digest(8 * count)
    return (int.from_bytes(stream[i : i + 8], "little") for i in range(0, len(stream), 8))


def read_sequences(path: Path, config: WorkloadConfig) -> list[TokenSequence]:
    """The sequences of a JSONL or parquet file, token ids in `config.column`."""
    readers = {".jsonl": _jsonl_rows, ".ndjson": _jsonl_rows, ".parquet": _parquet_rows}
    if path.suffix not in readers:
        raise ConfigError(f"{path}: prompts must be one of {', '.join(readers)}")
    rows = itertools.islice(readers[path.suffix](path, config), config.limit or MAX_PROMPTS)
    sequences = [_sequence(row, f"{path}: row {n}", config) for n, row in enumerate(rows, 1)]
    if not sequences:
        raise ConfigError(f"{path}: holds no prompt")
    return sequences


def _sequence(row: object, where: str, config: WorkloadConfig) -> TokenSequence:
    prompt = _token_ids(row, config.column, where)
    if not prompt:
        raise ConfigError(f"{where}: {config.column} is empty")
    return TokenSequence(prompt, _token_ids(row, config.response_column, where) if config.response_column else ())


def _token_ids(row: object, column: str, where: str) -> tuple[int, ...]:
    if not isinstance(row, dict) or column not in row:
        keys = ", ".join(map(str, list(row)[:10])) if isinstance(row, dict) else f"no object but {shown(row, 40)}"
        raise ConfigError(f"{where}: has no {column!r} (found: {keys}); name the key with `column`")
    ids = row[column]
    if not isinstance(ids, list):
        raise ConfigError(
            f"{where}: {column} is {shown(ids, 60)}; allowed: a list of token ids. "
            "Text is not tokenised here, so that both sides get the same tokens: tokenise it once and store the ids."
        )
    bad = next((i for i in ids if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i <= MAX_TOKEN), None)
    if bad is not None:
        raise ConfigError(f"{where}: {column} holds {shown(bad, 40)}; allowed: token ids from 0 to {MAX_TOKEN}")
    return tuple(ids)


def _jsonl_rows(path: Path, config: WorkloadConfig) -> Iterator[object]:
    try:
        with path.open(encoding="utf-8") as lines:
            for n, line in enumerate(lines, 1):
                if line.strip():
                    yield _json_row(line, f"{path}: line {n}")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8: {error}") from error


def _json_row(line: str, where: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error


def _parquet_rows(path: Path, config: WorkloadConfig) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow  # type: ignore[import-not-found,unused-ignore]
        import pyarrow.parquet  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise ConfigError(
            f"{path}: parquet needs pyarrow: pip install pyarrow, or store the prompts as JSONL"
        ) from error
    wanted = [config.column, *([config.response_column] if config.response_column else [])]
    try:
        file = pyarrow.parquet.ParquetFile(path)
        present = [column for column in wanted if column in file.schema_arrow.names]
        for batch in file.iter_batches(columns=present or None):
            yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"{path}: cannot be read as parquet: {error}") from error
