"""The engine's process of one rank: loads the engine, runs the job's steps, writes result.json whatever happens."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from dataclasses import replace
from typing import Any

from .checkpoint import CheckpointError
from .engine import Engine, EngineError
from .files import Reserve, is_disk_full, write_json
from .guard import DUMP_SIGNAL
from .job import Job, Place
from .lease import Lease, LeaseThread
from .logs import without_secrets
from .progress import Progress
from .provenance.records import CODE, code_identity
from .sequences import Sequences, read_sequences
from .steps import Steps
from .table import load_engine
from .weights import architecture_digest, check_checkpoint, digest_of, vocabulary_of

EXIT_ENGINE_FAILED = 1
EXIT_DISK_FULL = 74
LEASE_MARGIN_S = 2.0
"""The guard acts on the lease first; this process only when the guard does not."""
LONGEST_MESSAGE = 4000
DEEPEST_DESCRIPTION = 32
LONGEST_DESCRIPTION = 1 << 20
"""Bytes of JSON: a layer's kernels are about a hundred, and all of it is kept in the ledger for ever."""


def run_engine(path: str, place: Place, folder: str) -> int:
    """Returns the exit code of the rank: 0 when result.json holds no error."""
    _prepare_output()
    job = Job.read(path)
    os.environ.update(place.environment(os.environ))
    LeaseThread(Lease(job.lease, job.lease_max_age_s + LEASE_MARGIN_S)).start()
    reserve = Reserve(os.path.join(folder, "reserve"), 1 << 16)
    result: dict[str, Any] = {"rank": place.rank, "world_size": place.world_size, "error": None}
    try:
        _execute(job, place, folder, result)
    except BaseException as error:  # noqa: BLE001 - whatever an engine raises, SystemExit included, is its result
        traceback.print_exc()
        result["error"] = failure(error)
    reserve.release()
    try:
        write_json(os.path.join(folder, "result.json"), result)
    except (OSError, ValueError, TypeError, RecursionError):
        traceback.print_exc()
        return _last_words(folder, result)
    return _exit_code(result)


def failure(error: BaseException) -> dict[str, str]:
    """`{"code", "message"}` for what an engine raised, without the secrets of this process's environment."""
    text = without_secrets(_short(str(error).strip()) or "no message", os.environ.items())
    kind = type(error).__name__
    if isinstance(error, EngineError):
        return {"code": error.code, "message": text}
    if is_disk_full(error):
        return {"code": "disk_full", "message": f"no space was left while the engine worked: {text}"}
    if isinstance(error, MemoryError) or kind in ("OutOfMemoryError", "OutOfMemory"):
        return {"code": "out_of_memory", "message": f"{kind}: {text}"}
    if isinstance(error, ImportError):
        return {"code": "engine_import", "message": f"{kind}: {text}"}
    if isinstance(error, SystemExit):
        return {"code": "engine_exited", "message": f"the engine left Python with exit status {error.code!r}"}
    return {"code": "engine_failed", "message": f"{kind}: {text}"}


def _short(text: str) -> str:
    """Its beginning and its end: the ledger keeps it for ever, the log has the whole."""
    half = LONGEST_MESSAGE // 2
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} … {text[-half:]} ({len(text)} characters)"


def _execute(job: Job, place: Place, folder: str, result: dict[str, Any]) -> None:
    progress = Progress(os.path.join(folder, "progress.json"))
    phases = 2 + len(job.steps)
    progress.report(0, phases, f"loading {job.engine}")
    sequences = read_sequences(job.sequences)
    job = replace(job, place=place, progress=progress.within)
    _check_inputs(job, sequences)
    engine = load_engine(job)
    try:
        progress.report(1, phases, "digesting the resident weights")
        weights = digest_of(engine.weights())
        result["weights"] = weights.record()
        architecture = _architecture(job.model_path)
        result["model"] = {"architecture_digest": architecture} if architecture else None
        steps = Steps(job, folder, engine, sequences, weights, architecture)
        _run_steps(steps, progress, phases, result)
    except BaseException:
        # What failed first is what is told; what then fails too is in the log.
        try:
            _describe_and_close(engine, result)
        except Exception:  # noqa: BLE001 - whatever an engine raises that is failing already
            traceback.print_exc()
        raise
    _describe_and_close(engine, result)
    check_description(result.pop("describe"), result)
    progress.report(phases, phases, "done")


def _check_inputs(job: Job, sequences: Sequences) -> None:
    """What an engine would refuse late, or in words about its own inside. A user's module may read what it likes."""
    if job.engine == "python" or not os.path.isdir(job.model_path):
        return
    try:
        check_checkpoint(job.model_path)
    except CheckpointError as error:
        raise EngineError("checkpoint_damaged", str(error)) from error
    vocabulary = vocabulary_of(job.model_path)
    bad = None if vocabulary is None else sequences.first_token_from(vocabulary)
    if bad is not None:
        raise EngineError(
            "request_refused",
            f"sequence {bad[0]} has the token id {bad[1]}; allowed are ids below {vocabulary}, the vocab_size of "
            f"{os.path.join(job.model_path, 'config.json')}",
        )


def _architecture(path: str) -> str | None:
    return architecture_digest(path) if os.path.isfile(os.path.join(path, "config.json")) else None


def _run_steps(steps: Steps, progress: Progress, phases: int, result: dict[str, Any]) -> None:
    done = result["steps"] = {}
    for number, step in enumerate(steps.job.steps):
        progress.report(2 + number, phases, f"step {step['name']} ({number + 1} of {len(steps.job.steps)})")
        done[step["name"]] = steps.run(step)


def _describe_and_close(engine: Engine, result: dict[str, Any]) -> None:
    try:
        result["describe"] = _with_code(engine.describe())
    finally:
        engine.close()


def _with_code(described: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Adds which wheels or commits run: two installations of one version number need not be the same code."""
    code = code_identity(sys.path, CODE)
    return {**described, "stable": {**described["stable"], **({"code": code} if code else {})}}


def check_description(described: dict[str, dict[str, Any]], result: dict[str, Any]) -> None:
    """Puts it into `result`, unless no reader of result.json would take it: then fails in words about it."""
    try:
        size = len(json.dumps(described, allow_nan=False, ensure_ascii=False).encode())
        depth = _depth(described)
    except (ValueError, TypeError, RecursionError) as error:
        raise EngineError("bad_result", f"describe() is no JSON: {type(error).__name__}: {error}") from error
    if size > LONGEST_DESCRIPTION or depth > DEEPEST_DESCRIPTION:
        allowed = f"{LONGEST_DESCRIPTION} bytes, {DEEPEST_DESCRIPTION} levels"
        raise EngineError("bad_result", f"describe() is {size} bytes of JSON, {depth} levels deep; allowed: {allowed}")
    result["describe"] = described


def _depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return 1 + max(map(_depth, inner), default=0)


def _prepare_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    # fd 2 and not sys.stderr: engines replace that, and a crash must still say where it was.
    faulthandler.enable(file=2)
    faulthandler.register(DUMP_SIGNAL, file=2, all_threads=True)


def _last_words(folder: str, result: dict[str, Any]) -> int:
    """The full result cannot be written: the disk is full, or the engine's words are no JSON. Say so in a small one."""
    error = result["error"] or failure(sys.exc_info()[1] or RuntimeError())
    if error["code"] == "engine_failed" and result["error"] is None:
        error = {"code": "bad_result", "message": f"what the engine reported is no JSON: {error['message']}"}
    small = {"rank": result["rank"], "world_size": result["world_size"], "error": error}
    try:
        write_json(os.path.join(folder, "result.json"), small)
    except OSError:
        return EXIT_DISK_FULL
    return _exit_code(small)


def _exit_code(result: dict[str, Any]) -> int:
    if result["error"] is None:
        return 0
    return EXIT_DISK_FULL if result["error"]["code"] == "disk_full" else EXIT_ENGINE_FAILED
