from __future__ import annotations

import os
import random
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO

from bitgate.store import Store, verify_ledger

KILLS = 40


def ready(stream: IO[str], seconds: float) -> bool:
    """Not select(), which knows no descriptor above 1023."""
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def wait_for_line(stream: IO[str]) -> str:
    assert ready(stream, 30), "the writer does not answer"
    return stream.readline()


def test_a_writer_killed_at_any_moment_leaves_a_ledger_that_verifies(
    path: Path, writers: Callable[..., subprocess.Popen[str]]
) -> None:
    chance = random.Random(20261130)
    process = writers("fork", path)
    assert process.stdin is not None
    assert process.stdout is not None
    rows = 0
    for kill in range(KILLS):
        process.stdin.write("go\n")
        process.stdin.flush()
        child = int(wait_for_line(process.stdout))
        # The writer says nothing until it is gone: this ends somewhere in its work, from the first microsecond on.
        ready(process.stdout, chance.random() ** 2 * 0.2)
        os.kill(child, signal.SIGKILL)
        assert wait_for_line(process.stdout) == "gone\n"
        if path.exists() and kill % 4 == 3:
            report = verify_ledger(path)
            assert report.ok, report
            assert report.rows >= rows
            rows = report.rows
    assert rows > KILLS, "the writers were killed before they wrote"
    with Store.open(path) as store:
        assert list((path.parent / "artifacts" / "incoming").iterdir()) == [], "leftovers are swept at opening"
        assert store.running_runs(), "no writer was killed inside a run"
        for run in store.running_runs():
            store.finish_run(run.id, "lost", error_code="run_lost")
        assert all(run.state in ("finished", "lost") for run in store.list_runs(limit=1000))
        assert {run.evidence_id is None for run in store.list_runs("lost", limit=1000)} <= {True}
    assert verify_ledger(path).ok


def test_a_finished_run_survives_the_death_of_its_writer(
    path: Path, writers: Callable[..., subprocess.Popen[str]]
) -> None:
    process = writers("append", path, 3)
    assert process.stdout is not None
    process.stdout.readline()
    process.communicate("go\n", timeout=30)
    head = Store.open(path).head()
    for name in ("ledger.db-shm",):  # what a power cut may lose
        path.with_name(name).unlink(missing_ok=True)
    report = verify_ledger(path, head=head.hash)
    assert (report.ok, report.rows) == (True, 9)
