"""Each way in which an engine can go wrong has its own code, no verdict, and leaves nothing behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import Ended

from bitgate.tools.config.project import Project
from bitgate.tools.engines.worker.logs import log_tail
from bitgate.tools.runs.logs import run_log
from bitgate.tools.runs.processes import marked_run

Run = Callable[..., Ended]


def mischief(name: str, **more: object) -> dict[str, Any]:
    return {"options": {"mischief": name, **more}}


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("exits", "engine_exited", "exit status 3"),
        ("leaves_python", "engine_exited", "exit status 'tiny: usage'"),
        ("raises", "engine_failed", "RuntimeError: tiny: cannot load"),
        ("is_killed", "engine_killed", "signal 9 (SIGKILL)"),
        ("crashes", "engine_killed", "signal 11 (SIGSEGV)"),
        ("fills_the_disk", "disk_full", "no space was left"),
        ("writes_a_bad_result", "bad_result", "result.json"),
        ("writes_no_result", "no_result", "no rank left a result"),
        ("reports_nan", "bad_result", "no JSON"),
    ],
)
def test_an_engine_that_fails_ends_its_run_with_a_code_of_its_own(
    project: Project, run_tiny: Run, name: str, code: str, words: str
) -> None:
    ended = run_tiny(project, **mischief(name))
    assert (ended.run.state, ended.run.error_code, ended.evidence) == ("failed", code, None)
    assert words in ended.error
    assert marked_run(ended.run.id) == []


def test_the_last_lines_of_its_log_come_with_the_error(project: Project, run_tiny: Run) -> None:
    assert "tiny: giving up" in run_tiny(project, **mischief("exits")).error


def test_a_crash_says_where_it_was(project: Project, run_tiny: Run) -> None:
    assert re.search(r"Fatal Python error.*in crashes", run_tiny(project, **mischief("crashes")).error, re.DOTALL)


def test_being_killed_suggests_memory(project: Project, run_tiny: Run) -> None:
    assert "memory ran out" in run_tiny(project, **mischief("is_killed")).error


def test_garbage_on_its_output_changes_nothing(project: Project, run_tiny: Run) -> None:
    ended = run_tiny(project, **mischief("prints_garbage"))
    assert ended.evidence is not None
    assert ended.evidence.verdict == "pass"


def test_garbage_is_fit_to_be_shown_when_the_engine_then_fails(project: Project, run_tiny: Run) -> None:
    ended = run_tiny(project, **mischief("prints_garbage"))
    text = run_log(ended.folder)
    assert "\x1b" not in text
    assert text.encode("utf-8").decode("utf-8") == text


def test_a_flood_of_output_keeps_its_head_and_its_tail(make_project: Callable[..., Project], run_tiny: Run) -> None:
    ended = run_tiny(make_project(log_limit=1 << 20), **mischief("floods"))
    assert ended.evidence is not None
    folder = ended.folder / "jobs" / "0-tiny" / "out" / "rank00000"
    assert sum(path.stat().st_size for path in folder.glob("log.txt*")) <= (1 << 20) + 100
    kept = log_tail(folder / "log.txt", 2 << 20)
    assert kept.endswith(b"the last line\n")
    assert run_log(ended.folder).endswith("the last line")
    dropped = int((folder / "log.txt.dropped").read_text(encoding="ascii"))
    assert dropped + sum((folder / f"log.txt{end}").stat().st_size for end in ("", ".0", ".1")) == (32 << 20) + 14
    assert f"{dropped} bytes dropped".encode() in kept


@pytest.mark.parametrize("name", ["forever", "hangs_with_the_gil"])
def test_an_engine_that_hangs_is_timed_out_and_says_where(project: Project, run_tiny: Run, name: str) -> None:
    ended = run_tiny(project, **mischief(name), timeout_s=2)
    assert (ended.run.state, ended.run.error_code) == ("timed_out", "timed_out")
    assert f"in {name}" in ended.error
    assert marked_run(ended.run.id) == []


def test_an_engine_that_hangs_when_closed_is_timed_out(project: Project, run_tiny: Run) -> None:
    assert run_tiny(project, **mischief("hangs_at_close", when="never"), timeout_s=2).run.state == "timed_out"


def test_a_daemon_that_left_its_session_ends_with_the_job(project: Project, run_tiny: Run) -> None:
    ended = run_tiny(project, **mischief("leaves_a_daemon"))
    assert ended.evidence is not None
    assert marked_run(ended.run.id) == []


def test_a_run_folder_that_outgrows_its_limit_ends_the_run(make_project: Callable[..., Project], run_tiny: Run) -> None:
    ended = run_tiny(make_project(run_disk=4 << 20), **mischief("grows"))
    assert (ended.run.state, ended.run.error_code) == ("failed", "disk_limit")
    assert "raise [policy] run_disk" in ended.error


def test_a_disk_that_is_nearly_full_ends_the_run(make_project: Callable[..., Project], run_tiny: Run) -> None:
    ended = run_tiny(make_project(disk_reserve=1 << 60), **mischief("forever"))
    assert (ended.run.state, ended.run.error_code) == ("failed", "disk_full")


def test_an_unknown_engine_names_the_known_ones(project: Project, run_tiny: Run) -> None:
    ended = run_tiny(project, engine="vlm")
    assert ended.run.error_code == "unknown_engine"
    assert "'vlm'" in ended.error
    assert "vllm" in ended.error


def test_a_secret_is_in_no_log_and_no_error(project: Project, run_tiny: Run) -> None:
    ended = run_tiny(project, **mischief("says_its_secret"), env={"TINY_API_KEY": "opensesame42"})
    assert ended.run.error_code == "told"
    assert "opensesame42" not in ended.error
    files = [path for path in ended.folder.rglob("*") if path.is_file() and path.name != "request.json"]
    assert [path for path in files if b"opensesame42" in path.read_bytes()] == []


def test_a_canary_that_changes_nothing_is_seen(project: Project, run_tiny: Run) -> None:
    ended = run_tiny(project, options={"blind": True})
    assert ended.evidence is not None
    assert ended.evidence.verdict == "inconclusive"


def test_a_canary_that_rounding_swallows_takes_more_ulps_and_says_how_many(project: Project, run_tiny: Run) -> None:
    ended = run_tiny(project, options={"least_ulps": 64})
    assert ended.evidence is not None
    assert ended.evidence.verdict == "pass"
    results = [path.read_text(encoding="utf-8") for path in ended.folder.rglob("*.json")]
    assert [found for text in results for found in re.findall(r'"ulps": ?(\d+)', text)] == ["64"]


@pytest.mark.parametrize(
    ("python", "code", "words"),
    [
        ("/nowhere/python", "interpreter_not_found", "does not exist"),
        ("{folder}", "interpreter_not_found", "is a folder"),
        ("{folder}/bitgate.toml", "interpreter_not_found", "may not be executed"),
        ("/bin/true", "interpreter_not_python", "does not answer like a Python"),
    ],
)
def test_an_interpreter_that_is_none_is_named(
    project: Project, run_tiny: Run, python: str, code: str, words: str
) -> None:
    ended = run_tiny(project, python=python.format(folder=project.root))
    assert (ended.run.state, ended.run.error_code) == ("failed", code)
    assert words in ended.error


def test_a_launcher_that_is_not_installed_is_named(project: Project, run_tiny: Run) -> None:
    ended = run_tiny(project, launcher={"kind": "srun"}, env={"PATH": str(Path(project.root))})
    assert ended.run.error_code == "launcher_not_found"
    assert "'srun'" in ended.error
