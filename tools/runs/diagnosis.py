"""What happened to a job, from what its ranks and its launcher left behind. Values in, an error or a result out."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from bitgate.tools.engines.worker.lease import EXIT_LEASE_LOST
from bitgate.tools.engines.worker.main import EXIT_DISK_FULL
from bitgate.tools.errors import VerdictError, WorkerError
from bitgate.tools.runs.codes import advice
from bitgate.tools.runs.folder import read_object
from bitgate.tools.runs.results import RankResult, rank_name
from bitgate.tools.runs.tails import plain_text, tail_of

LARGEST_RESULT: Final = 64 * 1024**2
"""Bytes: a digest for each of a hundred thousand tensors is about 20 MB."""
LONGEST_MESSAGE: Final = 10_000


@dataclass(frozen=True)
class RankEnd:
    """One rank's remains. `written` orders the ranks: the one that failed first is the cause."""

    rank: int
    folder: Path
    result: RankResult | None
    damaged: str | None
    code: int | None
    signal: int
    ending: str | None
    written: int

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"


def rank_end(out: Path, rank: int, world_size: int) -> RankEnd:
    """Reads a rank's folder, fail-closed."""
    folder = out / rank_name(rank)
    result, damaged = _result(folder / "result.json", rank, world_size)
    exit_body = read_object(folder / "exit.json") or {}
    code, number, ending = exit_body.get("code"), exit_body.get("signal"), exit_body.get("ending")
    return RankEnd(
        rank=rank,
        folder=folder,
        result=result,
        damaged=damaged,
        code=code if isinstance(code, int) else None,
        signal=number if isinstance(number, int) else 0,
        ending=ending if isinstance(ending, str) else None,
        written=_written(folder),
    )


def conclude(side: str, ranks: Sequence[RankEnd], exits: Sequence[int], launcher_log: Path) -> tuple[RankResult, ...]:
    """Every rank's result, when all are there and nothing failed.

    Raises:
        WorkerError: the job did not do its work; the code says how.
        VerdictError: `rank_missing`, when the job ended well but not every rank left a result.
    """
    for end in sorted(ranks, key=lambda end: end.written):
        _raise_for_rank(side, end)
    results = tuple(end.result for end in ranks if end.result is not None)
    if any(code != 0 for code in exits):
        raise _launcher_error(side, exits, launcher_log, ranks)
    if not results:
        raise _error("no_result", f"side {side}: the job ended well, but no rank left a result.", ranks[0].log)
    missing = [end.rank for end in ranks if end.result is None]
    if missing:
        raise VerdictError(
            "rank_missing", f"side {side}: of {len(ranks)} ranks, {missing[:8]} left no result ({len(missing)} missing)"
        )
    return results


def _raise_for_rank(side: str, end: RankEnd) -> None:
    who = f"side {side}, rank {end.rank}"
    if end.result is not None and end.result.error is not None:
        failed = end.result.error
        raise _error(
            failed.code, f"{who}: {plain_text(failed.message[:LONGEST_MESSAGE].encode('utf-8', 'replace'))}", end.log
        )
    if end.damaged is not None:
        raise _error("bad_result", f"{who}: result.json is not usable: {end.damaged}", end.log)
    if end.result is not None:
        return
    if end.ending == "lease_lost" or end.code == EXIT_LEASE_LOST:
        raise _error("lease_lost", f"{who}: ended itself because the lease was old.", end.log)
    if end.signal and end.ending is None:
        raise _error("engine_killed", f"{who}: the engine was killed by {signal_name(end.signal)}.", end.log)
    if end.code == EXIT_DISK_FULL:
        raise _error("disk_full", f"{who}: no space was left on the disk.", end.log)
    if end.code:
        raise _error("engine_exited", f"{who}: the engine ended with exit status {end.code} and no result.", end.log)


def _launcher_error(side: str, exits: Sequence[int], log: Path, ranks: Sequence[RankEnd]) -> WorkerError:
    code = next(code for code in exits if code != 0)
    started = [end for end in ranks if end.log.exists()]
    last = log if not started or log_has_words(log) else started[0].log
    if code < 0:
        return _error("engine_killed", f"side {side}: the launcher was killed by {signal_name(-code)}.", last)
    return _error("launcher_failed", f"side {side}: the launcher ended with exit status {code}.", last)


def log_has_words(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _error(code: str, message: str, log: Path) -> WorkerError:
    todo = advice(code)
    sentence = message if message.endswith((".", "!", "?")) else f"{message}."
    return WorkerError(code, f"{sentence} {todo}".rstrip(), tail_of(log))


def signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _result(path: Path, rank: int, world_size: int) -> tuple[RankResult | None, str | None]:
    try:
        size = path.stat().st_size
        if size > LARGEST_RESULT:
            return None, f"it has {size} bytes; a rank writes at most {LARGEST_RESULT}"
        data = path.read_bytes()
    except OSError:
        return None, None
    try:
        result = RankResult.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return None, f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
    if (result.rank, result.world_size) != (rank, world_size):
        return None, f"it is of rank {result.rank} of {result.world_size}, expected {rank} of {world_size}"
    return result, None


def _written(folder: Path) -> int:
    times = [path.stat().st_mtime_ns for name in ("result.json", "exit.json") if (path := folder / name).exists()]
    return min(times, default=1 << 63)
