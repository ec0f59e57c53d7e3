from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

import anyio
import pytest
from anyio.to_thread import run_sync
from killing import until
from tiny_runs import Ended, ended, start

from bitgate.store import NotFound, Store, verify_ledger
from bitgate.tools.config.project import Project
from bitgate.tools.errors import RequestError
from bitgate.tools.runs import control
from bitgate.tools.runs.control import cancel_run, mark_lost_runs, run_folder, wait_run
from bitgate.tools.runs.lease import HeldLease, holder
from bitgate.tools.runs.logs import run_log
from bitgate.tools.runs.processes import marked_run

Run = Callable[..., Ended]
FOREVER: dict[str, Any] = {"options": {"mischief": "forever", "when": "step"}}


def test_a_run_ends_in_evidence_and_leaves_its_files(project: Project, run_tiny: Run) -> None:
    done = run_tiny(project)
    assert done.run.state == "finished"
    assert done.evidence is not None
    assert (done.evidence.verdict, done.evidence.tool, done.evidence.run_id) == ("pass", "tiny", done.run.id)
    rank = done.folder / "jobs/0-tiny/out/rank00000"
    assert sorted(path.name for path in (rank / "captures").iterdir()) == ["decode", "generate", "prefill"]
    assert verify_ledger(project.ledger).ok
    assert done.folder.stat().st_mode & 0o077 == 0


def test_sampled_tokens_become_the_responses_of_later_steps(project: Project, run_tiny: Run) -> None:
    from safetensors.numpy import load_file

    captures = run_tiny(project).folder / "jobs/0-tiny/out/rank00000/captures"
    rows = {name: load_file(captures / name / "rows.safetensors") for name in ("generate", "decode", "prefill")}
    assert rows["prefill"]["token_id"].tolist() == rows["generate"]["token_id"].tolist()
    assert rows["prefill"]["logprob"].tobytes() == rows["generate"]["logprob"].tobytes()
    assert sorted(set(rows["decode"]["sequence"].tolist())) == [0, 1], "company leaves no rows"


def test_a_request_that_cannot_run_writes_nothing(project: Project) -> None:
    with pytest.raises(RequestError, match=r"timeout_s: got -1\.0; allowed: a number above 0"):
        anyio.run(lambda: start(project, timeout_s=-1))
    assert not project.ledger.exists()
    assert not project.runs_dir.exists()


def test_giving_up_a_wait_does_not_end_the_run(project: Project) -> None:
    async def scenario() -> None:
        run = await start(project, **FOREVER)
        assert (await wait_run(project, run.id, 0)).state == "running"
        assert (await wait_run(project, run.id, 0.3)).state == "running"
        assert (await cancel_run(project, run.id)).state == "cancelled"

    anyio.run(scenario)


def test_cancelling_ends_every_process_and_says_who_did_it(project: Project) -> None:
    async def scenario() -> Ended:
        run = await start(project, **FOREVER)
        await until_scoring(project, run.id)
        assert marked_run(run.id) != []
        return ended(project, await cancel_run(project, run.id, actor="somebody else"))

    done = anyio.run(scenario)
    assert (done.run.state, done.run.error_code, done.evidence) == ("cancelled", "cancelled", None)
    assert marked_run(done.run.id) == []
    with Store.open(project.ledger) as store:
        assert [entry.actor for entry in store.entries(kind="run_finished")] == ["somebody else"]


def test_cancelling_a_run_that_has_ended_changes_nothing(project: Project, run_tiny: Run) -> None:
    done = run_tiny(project)
    assert anyio.run(cancel_run, project, done.run.id) == done.run


def test_a_tool_that_blocks_its_process_can_be_cancelled(project: Project) -> None:
    async def scenario() -> str:
        run = await start(project, block="spin")
        await until_held(project, run.id)
        return (await cancel_run(project, run.id)).state

    assert anyio.run(scenario) == "cancelled"


def test_waiting_for_an_unknown_run_names_it(project: Project) -> None:
    with pytest.raises(NotFound, match="run_doesnotexist"):
        anyio.run(wait_run, project, "run_doesnotexist", 1)


def test_progress_moves_inside_a_job_and_never_back(project: Project) -> None:
    notes: list[tuple[float, float | None, str]] = []

    async def scenario() -> None:
        async def note(done: float, total: float | None, message: str) -> None:
            notes.append((done, total, message))

        run = await start(project, jobs=2, options={"mischief": "floods", "when": "step"})
        assert (await wait_run(project, run.id, 60, note)).state == "finished"

    anyio.run(scenario)
    values = [done for done, total, _ in notes if total == 2]
    assert values == sorted(values)
    assert any(value % 1 for value in values)


@pytest.mark.parametrize(("block", "words"), [("raise", "ZeroDivisionError: tiny tool"), ("exit", "SystemExit")])
def test_a_tool_that_breaks_is_an_internal_error(project: Project, run_tiny: Run, block: str, words: str) -> None:
    done = run_tiny(project, block=block)
    assert (done.run.state, done.run.error_code, done.evidence) == ("failed", "internal", None)
    assert words in done.error


def test_a_run_that_takes_longer_than_the_policy_allows_is_ended(
    make_project: Callable[..., Project], run_tiny: Run
) -> None:
    done = run_tiny(make_project(run_timeout=1.5), block="sleep")
    assert (done.run.state, done.run.error_code) == ("timed_out", "timed_out")


def test_a_running_row_without_a_supervisor_is_marked_lost(project: Project) -> None:
    with Store.open(project.ledger) as store:
        run = store.start_run(tool="tiny", request={}, actor="tester")
    folder = run_folder(project, run.id).path
    folder.mkdir(parents=True)
    (folder / "lease").write_text("7 999999999\n", encoding="ascii")
    assert [lost.id for lost in mark_lost_runs(project)] == [run.id]
    assert mark_lost_runs(project) == []
    with Store.open(project.ledger) as store:
        assert (store.get_run(run.id).state, store.get_run(run.id).error_code) == ("lost", "lost")


def test_a_run_whose_lease_is_held_is_not_lost(project: Project) -> None:
    with Store.open(project.ledger) as store:
        run = store.start_run(tool="tiny", request={}, actor="tester")
    folder = run_folder(project, run.id).path
    folder.mkdir(parents=True)
    (folder / "lease").write_text("7 999999999\n", encoding="ascii")
    os.utime(folder / "lease", (0, 0))
    lease = HeldLease.take(folder / "lease")
    assert lease is not None
    assert mark_lost_runs(project) == []
    lease.release()
    assert len(mark_lost_runs(project)) == 1


def test_a_run_that_was_just_started_is_not_lost(project: Project) -> None:
    with Store.open(project.ledger) as store:
        store.start_run(tool="tiny", request={}, actor="tester")
    assert mark_lost_runs(project) == []


@pytest.mark.parametrize("with_folder", [False, True])
def test_a_clock_that_was_set_back_keeps_no_dead_run_alive(
    project: Project, monkeypatch: pytest.MonkeyPatch, with_folder: bool
) -> None:
    with Store.open(project.ledger) as store:
        run = store.start_run(tool="tiny", request={}, actor="tester")
    if with_folder:
        run_folder(project, run.id).path.mkdir(parents=True)
        run_folder(project, run.id).lease.write_text("0 starting\n", encoding="ascii")
    assert mark_lost_runs(project) == []

    class SetBack(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) - timedelta(days=1)

    now = time.time()
    monkeypatch.setattr(control, "datetime", SetBack)
    monkeypatch.setattr(time, "time", lambda: now - 86_400)
    assert [lost.id for lost in mark_lost_runs(project)] == [run.id]


def test_a_supervisor_that_cannot_start_loses_its_run_at_once(
    project: Project, monkeypatch: pytest.MonkeyPatch, run_tiny: Run
) -> None:
    from bitgate.tools.runs import control

    monkeypatch.setattr(control, "supervisor_command", lambda folder: [sys.executable, "-c", "import nothing_like_it"])
    done = run_tiny(project, wait_s=20)
    assert (done.run.state, done.run.error_code) == ("lost", "lost")
    assert "nothing_like_it" in done.error


def test_a_second_supervisor_leaves_the_run_alone(project: Project) -> None:
    async def scenario() -> None:
        run = await start(project, **FOREVER)
        await until_held(project, run.id)
        command = [
            sys.executable,
            "-m",
            "bitgate.tools.runs.supervisor",
            str(run_folder(project, run.id).path),
            str(os.getpid()),
        ]
        second = await anyio.run_process(command, check=False)
        assert second.returncode == 3
        assert (await wait_run(project, run.id, 0)).state == "running"
        await cancel_run(project, run.id)

    anyio.run(scenario)


def test_sigterm_to_the_supervisor_cancels_the_run(project: Project) -> None:
    async def scenario() -> Ended:
        run = await start(project, **FOREVER)
        os.kill(await until_scoring(project, run.id), signal.SIGTERM)
        return ended(project, await wait_run(project, run.id, 20))

    done = anyio.run(scenario)
    assert done.run.state == "cancelled"
    assert "SIGTERM" in done.error
    assert marked_run(done.run.id) == []


def test_a_run_dies_with_the_process_that_started_it(project: Project) -> None:
    tiny = Path(__file__).parent / "tiny"
    command = [sys.executable, str(tiny / "tiny_server.py"), str(project.root), json.dumps(FOREVER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as server:
        assert server.stdout is not None
        run_id = server.stdout.readline().strip()
        anyio.run(until_scoring, project, run_id)
        server.kill()
    done = ended(project, anyio.run(wait_run, project, run_id, 20))
    assert (done.run.state, done.run.error_code, done.evidence) == ("lost", "parent_gone", None)
    assert marked_run(run_id) == []


def test_ranks_end_themselves_when_the_lease_is_no_longer_renewed(project: Project) -> None:
    async def scenario() -> Ended:
        run = await start(project, options={"mischief": "hangs_with_the_gil", "when": "step"})
        supervisor = await until_scoring(project, run.id)
        os.kill(supervisor, signal.SIGSTOP)
        await run_sync(until, lambda: marked_run(run.id) == [], 12.0)
        assert marked_run(run.id) == []
        os.kill(supervisor, signal.SIGCONT)
        return ended(project, await wait_run(project, run.id, 20))

    done = anyio.run(scenario)
    assert (done.run.state, done.run.error_code) == ("failed", "lease_lost")


def test_the_log_of_a_run_names_its_files_and_ends_with_their_last_words(project: Project, run_tiny: Run) -> None:
    text = run_log(run_tiny(project, options={"mischief": "exits"}).folder)
    assert [line for line in text.splitlines() if line.startswith("== ")][0] == "== supervisor.log"
    assert "== jobs/0-tiny/out/rank00000/log.txt" in text
    assert "tiny: giving up" in text


async def until_held(project: Project, run_id: str) -> int:
    """The supervisor's pid, once it has the lease."""
    lease = run_folder(project, run_id).lease
    await run_sync(until, lambda: holder(lease) is not None)
    pid = holder(lease)
    assert pid is not None
    return pid


async def until_scoring(project: Project, run_id: str) -> int:
    """The supervisor's pid, once its engine is in a step."""
    folder = run_folder(project, run_id)
    await run_sync(until, lambda: "step" in getattr(folder.read_progress(), "message", ""))
    return await until_held(project, run_id)
