"""srun, ssh and docker on this host, with stand-ins for their programs that do to a rank what the real ones do."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync
from killing import until
from tiny_runs import Ended, ended, start

from bitgate.tools.config.project import Project
from bitgate.tools.runs.control import cancel_run, run_folder
from bitgate.tools.runs.processes import marked_run

PROGRAMS = {
    # A remote shell gives the command an environment of its own and closes its input when the client goes.
    "ssh": '#!/bin/sh\nfor last; do :; done\nexec env -i PATH=/usr/bin:/bin HOME=/ sh -c "$last"\n',
    "srun": f"""#!{sys.executable}
import os, signal, subprocess, sys
count = int(next(word.split("=")[1] for word in sys.argv if word.startswith("--ntasks=")))
command = sys.argv[next(i for i, word in enumerate(sys.argv) if i and not word.startswith("-")) :]
places = [dict(os.environ, SLURM_PROCID=str(i), SLURM_LOCALID=str(i)) for i in range(count)]
tasks = [subprocess.Popen(command, env=place) for place in places]
signal.signal(signal.SIGTERM, lambda *_: [task.terminate() for task in tasks])
sys.exit(max(abs(task.wait()) for task in tasks))
""",
    "scancel": '#!/bin/sh\necho "$@" > "$SCANCELLED"\n',
    "docker": f"""#!{sys.executable}
import os, sys
image = sys.argv.index("--entrypoint=") + 1
names = [word.split("=")[1] for word in sys.argv if word.startswith("--env=")]
os.execve(sys.argv[image + 1], sys.argv[image + 1 :], {{name: os.environ[name] for name in names}})
""",
}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, text in PROGRAMS.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


LAUNCHERS: dict[str, dict[str, Any]] = {
    "srun": {"kind": "srun", "nodes": 1, "tasks_per_node": 2},
    "ssh": {"kind": "ssh", "hosts": ["one", "two"]},
    "docker": {"kind": "container", "image": "image"},
}
RANKS = {"srun": 2, "ssh": 2, "docker": 1}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_rank_runs_under_the_sides_environment(
    project: Project, run_tiny: Callable[..., Ended], programs: Path, name: str
) -> None:
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "TINY_SAYS": 'it\'s $HOME; and "more"'}
    done = run_tiny(project, launcher=LAUNCHERS[name], env=env)
    assert done.evidence is not None, done.run.error
    assert done.evidence.summary == f"{RANKS[name]} ranks"
    assert done.evidence.figures["says"] == [env["TINY_SAYS"]] * RANKS[name]
    assert list(done.folder.rglob("env.json")) == []


@pytest.mark.parametrize("name", LAUNCHERS)
def test_cancelling_ends_the_ranks(project: Project, programs: Path, tmp_path: Path, name: str) -> None:
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "SCANCELLED": str(tmp_path / "scancelled")}

    async def scenario() -> Ended:
        run = await start(
            project, launcher=LAUNCHERS[name], env=env, options={"mischief": "forever_with_a_daemon", "when": "step"}
        )
        folder = run_folder(project, run.id)
        await run_sync(until, lambda: "step" in getattr(folder.read_progress(), "message", ""))
        return ended(project, await cancel_run(project, run.id))

    done = anyio.run(scenario)
    assert done.run.state == "cancelled"
    assert marked_run(done.run.id) == []
    assert (tmp_path / "scancelled").exists() == (name == "srun")


def test_a_slurm_job_that_fails_is_also_cancelled_by_name(
    project: Project, run_tiny: Callable[..., Ended], programs: Path, tmp_path: Path
) -> None:
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "SCANCELLED": str(tmp_path / "scancelled")}
    done = run_tiny(project, launcher=LAUNCHERS["srun"], env=env, options={"mischief": "exits"})
    assert done.run.error_code == "engine_exited"
    said = (tmp_path / "scancelled").read_text(encoding="utf-8")
    assert said == f"--name=bitgate-{done.run.id.replace('_', '-')}-0-tiny\n"
