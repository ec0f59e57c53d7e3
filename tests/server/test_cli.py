"""The command line as CI and people use it, as a real process."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bitgate.server.cli_call import arguments_from
from bitgate.store.store import Store


def test_words_become_arguments() -> None:
    words = (
        "check=batch",
        "options.rollout.batch_invariant=true",
        "options.rollout.n=3",
        "sizes=[1,2]",
        "text=a=b",
        "x=",
    )

    assert arguments_from(words) == {
        "check": "batch",
        "options": {"rollout": {"batch_invariant": True, "n": 3}},
        "sizes": [1, 2],
        "text": "a=b",
        "x": "",
    }


@pytest.mark.parametrize("words", [("check",), ("=x",), ("a=1", "a=2"), ("a=1", "a.b=2")])
def test_words_that_are_no_arguments_are_wrong_usage(bitgate: Any, words: tuple[str, ...]) -> None:
    done = bitgate("call", "run_probe", *words)

    assert done.returncode == 2 and words[-1] in done.stderr


@pytest.mark.parametrize(("verdict", "code"), [("pass", 0), ("fail", 10), ("invalid", 11), ("inconclusive", 12)])
def test_the_verdict_is_the_exit_code(bitgate: Any, verdict: str, code: int) -> None:
    done = bitgate("call", "run_probe", f"verdict={verdict}", "figures.rows=3")

    assert done.returncode == code
    assert done.stdout.startswith(verdict.upper()) and "rows: 3" in done.stdout


def test_a_run_without_a_verdict_is_exit_13(bitgate: Any) -> None:
    done = bitgate("call", "run_probe", "ends=crash")

    assert done.returncode == 13 and "bitgate://runs/run_" in done.stdout


def test_json_is_the_whole_answer(bitgate: Any, project: Path) -> None:
    answer = json.loads(bitgate("call", "run_probe", "items=5000", "--json").stdout)

    assert len(answer["figures"]["list"]) == 5000
    with Store.open(project / ".bitgate" / "ledger.db") as store:
        assert store.get_run(answer["run_id"]).actor.startswith("consistency:cli:")


def test_wrong_arguments_and_tools_are_exit_2_and_write_nothing(bitgate: Any, project: Path) -> None:
    for words in (["run_prob"], ["run_probe", "verdct=pass"], ["run_probe", "side=nobody"], ["get_run", "run_id=x"]):
        done = bitgate("call", *words)
        assert done.returncode == 2 and "allowed" in done.stderr, words
        assert "Traceback" not in done.stderr
    with Store.open(project / ".bitgate" / "ledger.db") as store:
        assert store.head().seq == 0


def test_an_interrupt_cancels_the_run(spawn: Any, project: Path) -> None:
    process = spawn("call", "run_probe", "seconds=100")
    run_id = process.stderr.readline().split()[-1].decode()
    process.send_signal(signal.SIGINT)

    assert process.wait(30) == 130
    with Store.open(project / ".bitgate" / "ledger.db") as store:
        assert store.get_run(run_id).state == "cancelled"


def test_the_ledger_is_listed_shown_and_verified(bitgate: Any) -> None:
    made = json.loads(bitgate("call", "run_probe", "verdict=fail", "--json").stdout)

    assert made["run_id"] in bitgate("runs").stdout
    assert made["evidence_id"] in bitgate("evidence", "--verdict", "fail").stdout
    assert made["evidence_id"] not in bitgate("evidence", "--verdict", "pass").stdout
    assert bitgate("evidence", made["evidence_id"]).stdout.startswith("FAIL")
    assert json.loads(bitgate("evidence", made["evidence_id"], "--json").stdout)["run_id"] == made["run_id"]
    head = json.loads(bitgate("verify", "--json").stdout)["head"]
    assert bitgate("verify", "--head", head).returncode == 0
    wrong = bitgate("verify", "--head", "f" * 64)
    assert wrong.returncode == 1 and "NOT OK" in wrong.stdout


def test_evidence_that_does_not_exist_is_exit_2(bitgate: Any) -> None:
    done = bitgate("evidence", "ev_00000000000000000000")

    assert done.returncode == 2 and "no evidence" in done.stderr


def test_no_project_is_exit_2_and_says_what_to_do(bitgate: Any, project: Path) -> None:
    (project / "bitgate.toml").unlink()
    done = bitgate("runs")

    assert done.returncode == 2 and "bitgate init" in done.stderr


def test_version_and_help_need_no_project(bitgate: Any) -> None:
    assert bitgate("--version").stdout.startswith("bitgate, version ")
    assert "doctor" in bitgate("--help").stdout
    assert bitgate("no_such_command").returncode == 2


def test_init_writes_a_configuration_that_loads(bitgate: Any, project: Path) -> None:
    from bitgate.tools.config.project import Project

    (project / "bitgate.toml").unlink()
    (project / "ckpt").mkdir()
    (project / "ckpt" / "config.json").write_text('{"vocab_size": 151936}', encoding="utf-8")
    (project / ".git").mkdir()

    done = bitgate("init", "--model", "ckpt", "--rollout-python", sys.executable, "--trainer-python", sys.executable)

    assert done.returncode == 0, done.stderr
    made = Project.load(project)
    assert made.workload(None).config.generator.vocab == 151936  # type: ignore[union-attr]
    assert made.side("rollout").python == sys.executable and made.side("trainer").engine == "transformers"
    assert (project / ".gitignore").read_text(encoding="utf-8") == "/.bitgate/\n"


def test_init_asks_for_nothing_without_a_terminal_and_replaces_nothing(bitgate: Any, project: Path) -> None:
    before = (project / "bitgate.toml").read_text(encoding="utf-8")
    exists = bitgate("init", "--model", "x")
    (project / "bitgate.toml").rename(project / "kept")
    no_model = bitgate("init", "--rollout-python", sys.executable, "--trainer-python", sys.executable)

    assert exists.returncode == 2 and "--force" in exists.stderr
    assert no_model.returncode == 2 and "--model" in no_model.stderr
    assert (project / "kept").read_text(encoding="utf-8") == before


@pytest.mark.parametrize("words", [("--help",), ("verify",), ("no-such-command",)])
def test_the_module_of_the_command_is_the_command(
    bitgate: Any, server_env: dict[str, str], project: Path, words: tuple[str, ...]
) -> None:
    line = [sys.executable, "-m", "bitgate.server.cli", "--project", str(project), *words]
    done = subprocess.run(line, env=server_env, capture_output=True, encoding="utf-8", timeout=60, check=False)
    same = bitgate(*words)

    assert (done.returncode, done.stdout, done.stderr) == (same.returncode, same.stdout, same.stderr)
    assert done.stdout + done.stderr


def test_a_closed_pipe_ends_quietly(spawn: Any, bitgate: Any, server_env: dict[str, str], project: Path) -> None:
    bitgate("call", "run_probe")
    line = f"{sys.executable} -m bitgate.server --project {project} evidence | true"
    done = subprocess.run(["sh", "-c", line], env=server_env, capture_output=True, encoding="utf-8", check=False)

    assert done.stderr == ""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_change_no_exit_code_and_no_ledger(project: Path, closed: str) -> None:
    line = f"{shlex.quote(sys.executable)} -m bitgate.server --project {shlex.quote(str(project))} "
    done = subprocess.run(["sh", "-c", f"{line} call get_evidence {closed}"], timeout=60, check=False)

    assert done.returncode == 0
    assert subprocess.run(["sh", "-c", f"{line} verify"], capture_output=True, timeout=60, check=False).returncode == 0


def test_an_answer_that_cannot_be_written_is_an_error_in_one_line(bitgate: Any) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = bitgate("call", "get_evidence", capture_output=False, stdout=full, stderr=subprocess.PIPE)

    assert done.returncode == 1
    assert "No space left" in done.stderr and "Traceback" not in done.stderr


def test_a_progress_bar_is_drawn_on_a_terminal_only(project: Path, server_env: dict[str, str]) -> None:
    reader, terminal = os.openpty()
    words = [sys.executable, "-m", "bitgate.server", "--project", str(project), "call", "run_probe", "seconds=2"]
    process = subprocess.Popen(words, env=server_env, stdout=subprocess.DEVNULL, stderr=terminal)
    os.close(terminal)
    drawn = b""
    while chunk := _read(reader):
        drawn += chunk
    os.close(reader)

    assert process.wait(30) == 0 and b"[###" in drawn and b"step" in drawn


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # the other end of the terminal is closed
        return b""
