"""The parts of a run that need no process: leases, logs, results, folders, environments."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitgate.tools.engines.jobs import Job
from bitgate.tools.engines.worker.lease import Lease
from bitgate.tools.engines.worker.logs import BoundedLog, log_tail
from bitgate.tools.errors import VerdictError, WorkerError
from bitgate.tools.runs.codes import ADVICE, render
from bitgate.tools.runs.diagnosis import RankEnd, conclude, rank_end
from bitgate.tools.runs.ending import outcome_of
from bitgate.tools.runs.interpreter import side_environment
from bitgate.tools.runs.job import Deadlines, RankNote
from bitgate.tools.runs.lease import HeldLease, holder
from bitgate.tools.runs.logs import run_log
from bitgate.tools.runs.results import RankResult
from bitgate.tools.runs.tails import plain_text, tail_of


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def lease_file(tmp_path: Path) -> Path:
    path = tmp_path / "lease"
    path.write_text("0 starting\n", encoding="ascii")
    return path


def test_a_lease_is_old_when_it_has_not_changed_for_its_age(lease_file: Path) -> None:
    clock = Clock()
    seen = Lease(str(lease_file), 5.0, clock)
    clock.now = 5.0
    assert seen.fresh()
    clock.now = 5.1
    assert not seen.fresh()
    held = HeldLease.take(lease_file)
    assert held is not None
    held.renew()
    assert seen.fresh()
    held.release()


def test_a_lease_from_another_hosts_future_is_as_good_as_any(lease_file: Path) -> None:
    clock = Clock()
    os.utime(lease_file, (4e9, 4e9))
    seen = Lease(str(lease_file), 5.0, clock)
    clock.now = 6.0
    assert not seen.fresh()


def test_a_lease_that_is_removed_is_old_after_its_age(lease_file: Path) -> None:
    clock = Clock()
    seen = Lease(str(lease_file), 5.0, clock)
    lease_file.unlink()
    clock.now = 4.0
    assert seen.fresh()
    clock.now = 6.0
    assert not seen.fresh()


def test_a_lease_is_held_by_one_and_names_it(lease_file: Path) -> None:
    assert holder(lease_file) is None
    first = HeldLease.take(lease_file)
    assert first is not None
    assert HeldLease.take(lease_file) is None
    first.renew()
    assert holder(lease_file) == os.getpid()
    first.release()
    second = HeldLease.take(lease_file)
    assert second is not None
    second.release()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(min_value=4, max_value=400))
def test_a_bounded_log_keeps_head_and_tail_and_counts_the_rest(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], limit: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.txt"
    log = BoundedLog(path, limit)
    for part in parts:
        log.write(part)
    log.close()
    whole = b"".join(parts)
    files = [Path(f"{path}{end}") for end in ("", ".0", ".1")]
    kept = [file.read_bytes() if file.exists() else b"" for file in files]
    assert sum(map(len, kept)) <= limit + 4
    assert len(whole) == sum(map(len, kept)) + log.dropped
    assert whole.startswith(kept[0])
    assert whole.endswith(kept[1] + kept[2])
    missing = f"\n[... {log.dropped} bytes dropped here: the log is limited ...]\n".encode() if log.dropped else b""
    assert log_tail(path, len(whole) + 1) == kept[0] + missing + kept[1] + kept[2]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_secret_is_never_written_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    secret = b"abcabcabd"
    text = data.draw(st.lists(st.sampled_from([secret, b"abc", b"a", b"ab", b"\n", b"d"]), max_size=20).map(b"".join))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    path = tmp_path_factory.mktemp("log") / "log.txt"
    log = BoundedLog(path, 1 << 20, [secret])
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        log.write(text[start:end])
    log.close()
    assert path.read_bytes() == text.replace(secret, b"[redacted]")


def test_the_tail_spans_the_segments(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log.txt", 400)
    for number in range(200):
        log.write(f"{number:03d} line\n".encode())
    log.close()
    assert log_tail(tmp_path / "log.txt", 27) == b"197 line\n198 line\n199 line\n"


def test_the_log_of_many_ranks_is_the_tail_of_each_and_says_what_is_left_out(tmp_path: Path) -> None:
    for rank in range(8):
        folder = tmp_path / "jobs" / "0-side" / "out" / f"rank{rank:05d}"
        folder.mkdir(parents=True)
        lines = "".join(f"rank {rank} line {n}\n" for n in range(10_000))
        (folder / "log.txt").write_text(f"{lines}HF_TOKEN=hf_{'x' * 30}\nlast of {rank}\n", encoding="utf-8")

    text = run_log(tmp_path, 12_000)

    assert len(text) < 14_000
    assert [rank for rank in range(8) if f"\nlast of {rank}" in text] == [0, 1, 2, 3, 4, 5]
    assert text.endswith(f"== 2 more files in {tmp_path}")
    assert "hf_x" not in text and "line 0\n" not in text
    assert run_log(tmp_path / "jobs") == f"no log in {tmp_path / 'jobs'} yet"


def test_a_log_on_a_full_disk_counts_and_goes_on(tmp_path: Path) -> None:
    log = BoundedLog("/dev/full", 1 << 20)
    log.write(b"x" * 1000)
    log.close()
    assert log.dropped == 1000


def test_text_of_a_log_has_no_control_and_no_secret(tmp_path: Path) -> None:
    text = plain_text(b"10%\r50%\r100%\n\x1b[1mbold\x1b[0m \x07\xff API_KEY=abcdef\n")
    assert text == "100%\nbold \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} API_KEY=[redacted]\n"


def test_a_long_line_is_shown_as_fast_as_a_short_one() -> None:
    started = time.process_time()
    assert plain_text(b"y" * 200_000 + b"\n") == "y" * 200_000 + "\n"
    assert time.process_time() - started < 2  # a quadratic pattern takes minutes


def test_the_tail_of_a_crash_begins_with_it(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("noise\n" * 50 + "Fatal Python error: Segmentation fault\n" + "  File x\n" * 100, encoding="utf-8")
    assert tail_of(path).startswith("Fatal Python error: Segmentation fault\n")


def rank(number: int, folder: Path, **what: Any) -> RankEnd:
    values: dict[str, Any] = {
        "result": None,
        "damaged": None,
        "code": None,
        "signal": 0,
        "ending": None,
        "written": number,
    }
    return RankEnd(rank=number, folder=folder, **{**values, **what})


def good(number: int, world: int) -> RankResult:
    return RankResult(rank=number, world_size=world)


def test_the_rank_that_failed_first_is_the_cause(tmp_path: Path) -> None:
    ranks = [rank(0, tmp_path, code=1, written=20), rank(1, tmp_path, signal=9, written=10)]
    with pytest.raises(WorkerError, match=r"rank 1: the engine was killed by signal 9 \(SIGKILL\)"):
        conclude("s", ranks, [1], tmp_path / "launcher.log")


@pytest.mark.parametrize("code", ["unsupported_option", "operator_without_entry"])
def test_what_an_engine_cannot_do_ends_the_run_inconclusive_with_its_words(code: str) -> None:
    outcome = outcome_of(WorkerError(code, "no such kernel here"))
    assert outcome.state == "finished" and outcome.finding is not None
    assert (outcome.finding.verdict, outcome.finding.reasons[0].code) == ("inconclusive", "engine_unsupported")
    assert f"{code}: no such kernel here" in outcome.finding.summary


def test_what_went_wrong_in_an_engine_has_no_verdict() -> None:
    outcome = outcome_of(WorkerError("engine_crashed", "it fell over"))
    assert (outcome.state, outcome.code, outcome.finding) == ("failed", "engine_crashed", None)


def test_a_missing_rank_of_a_job_that_ended_well_is_invalid(tmp_path: Path) -> None:
    ranks = [rank(0, tmp_path, result=good(0, 2), code=0), rank(1, tmp_path)]
    with pytest.raises(VerdictError) as caught:
        conclude("s", ranks, [0], tmp_path / "launcher.log")
    assert caught.value.code == "rank_missing"


def test_a_launcher_that_fails_after_every_result_is_not_trusted(tmp_path: Path) -> None:
    with pytest.raises(WorkerError) as caught:
        conclude("s", [rank(0, tmp_path, result=good(0, 1), code=0)], [1], tmp_path / "launcher.log")
    assert caught.value.code == "launcher_failed"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"rank": 0}',
        '{"rank": 1, "world_size": 1}',
        '{"rank": 0, "world_size": 1, "more": 1}',
        "\x00" * 10,
    ],
)
def test_a_result_that_is_not_one_is_damage(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "rank00000"
    folder.mkdir()
    (folder / "result.json").write_text(text, encoding="utf-8")
    end = rank_end(tmp_path, 0, 1)
    assert end.result is None
    assert end.damaged is not None


def test_a_result_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "rank00000"
    folder.mkdir()
    with (folder / "result.json").open("wb") as file:
        file.truncate(8 << 30)
    assert "8589934592 bytes" in str(rank_end(tmp_path, 0, 1).damaged)


def test_a_side_does_not_inherit_the_servers_python_nor_its_rank() -> None:
    server = {
        "PATH": "/usr/bin", "PYTHONPATH": "/x", "VIRTUAL_ENV": "/v", "BITGATE_TOKEN": "t", "RANK": "3", "HOME": "/h",
        "WORLD_SIZE": "8", "OMP_NUM_THREADS": "4",
    }  # fmt: skip
    assert side_environment("/e/bin/python", {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}, server) == {
        "PATH": "/e/bin:/usr/bin",
        "HOME": "/h",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
    }


def test_the_worker_reads_every_field_of_a_job(tmp_path: Path) -> None:
    from dataclasses import fields

    from bitgate.tools.engines.worker.job import Job as WorkerJob

    assert {field.name for field in fields(WorkerJob)} - {"place", "progress"} == set(Job.model_fields)
    job = Job(
        run_id="r", side="s", engine="e", model_path="/m", sequences="/q", steps=[], out="/o", lease="/l", module="/u"
    )
    path = tmp_path / "job.json"
    path.write_text(job.model_dump_json(), encoding="utf-8")
    read = WorkerJob.read(str(path))
    assert {name: getattr(read, name) for name in Job.model_fields} == job.model_dump()


def test_every_error_code_says_what_to_do() -> None:
    assert [code for code, words in ADVICE.items() if not words.endswith(".")] == []


def test_the_page_of_error_codes_is_the_table() -> None:
    page = Path(__file__).parents[3] / "docs" / "run-errors.md"
    assert page.read_text(encoding="utf-8") == render()


def test_an_engine_that_is_not_up_in_time_is_told_from_one_that_is_slow() -> None:
    clock = Clock()
    deadlines = Deadlines(timeout_s=100, start_s=10, ranks=2, clock=clock)
    loading, scoring = (RankNote(phase=phase, share=0.1, message="") for phase in (0, 1))
    assert deadlines.missed(9, []) is None
    assert deadlines.missed(11, [scoring, loading]) == (
        "start_timed_out",
        "only 1 of 2 ranks had an engine after 10 s.",
    )
    assert deadlines.missed(11, [scoring, scoring]) is None
    assert deadlines.missed(101, [scoring, scoring]) == ("timed_out", "not done after 100 s.")
