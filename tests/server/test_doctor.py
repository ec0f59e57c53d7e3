"""doctor asks each side's own interpreter, and survives what that one does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bitgate.server.interpreters import candidates, engines_in, first_with, looked_at
from bitgate.server.probing import PACKAGES, Package, probe

FAKE = Package("fake", ("fake.inner", "fake_too"), "make one")
AFTER = Package("after", ("after_module",), "make one")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "after_module.py").write_text("__version__ = '2.0'\n", encoding="utf-8")
    return tmp_path


def asked(site: Path, code: str | None, timeout_s: float = 30.0, imports: bool = True) -> Any:
    if code is not None:
        (site / "fake").mkdir()
        (site / "fake" / "__init__.py").write_text("", encoding="utf-8")
        (site / "fake" / "inner.py").write_text(code, encoding="utf-8")
    env = {"PYTHONPATH": str(site)}
    return probe(sys.executable, env, timeout_s=timeout_s, imports=imports, packages=(FAKE, AFTER))


def test_a_package_that_imports_is_shown_with_version_and_file(site: Path) -> None:
    found = asked(site, "__version__ = '1.2'\nprint('noise')\n").package("fake")

    assert (found.state, found.version, found.module) == ("imports", "1.2", "fake.inner")
    assert found.file == str(site / "fake" / "inner.py")


def test_a_missing_package_is_missing_and_a_fallback_counts(site: Path) -> None:
    assert asked(site, None).package("fake").state == "missing"
    (site / "fake_too.py").write_text("", encoding="utf-8")
    assert asked(site, None).package("fake").module == "fake_too"


@pytest.mark.parametrize(
    ("code", "state", "words"),
    [
        ("raise OSError('libcuda.so.1: cannot open')", "broken", "libcuda.so.1"),
        ("import a_dependency_that_is_not_there", "broken", "a_dependency_that_is_not_there"),
        ("raise SystemExit(3)", "broken", "SystemExit"),
        ("import os; os._exit(7)", "crashed", None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed", None),
    ],
)
def test_a_package_that_breaks_is_named_and_those_after_it_are_still_asked(
    site: Path, code: str, state: str, words: str | None
) -> None:
    found = asked(site, code)

    assert found.package("fake").state == state
    assert words is None or words in found.package("fake").error
    assert found.package("after").version == "2.0"


def test_a_package_that_hangs_is_cut_off(site: Path) -> None:
    found = asked(site, "import threading; threading.Event().wait()", timeout_s=3)

    assert found.package("fake").state == "timed out" and found.package("after").state == "imports"


def test_looking_finds_without_importing(site: Path) -> None:
    found = asked(site, "raise RuntimeError", imports=False)

    assert (found.package("fake").state, found.package("after").state) == ("found", "found")


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/true", "/etc/passwd"])
def test_what_is_no_interpreter_is_a_problem(python: str) -> None:
    assert probe(python, {}, timeout_s=10).problem


def test_every_side_is_shown_with_its_command_and_what_it_lacks(bitgate: Any, project: Path) -> None:
    side = f'[side.r]\nengine = "vllm"\npython = "{sys.executable}"\n'
    secret = 'env = { HF_TOKEN = "hf_abcdefghijklmnopqrstuvwx" }\n'
    (project / "bitgate.toml").write_text(side + secret, encoding="utf-8")
    done = bitgate("doctor", "--no-imports")

    assert done.returncode == 2
    assert f"runs: {sys.executable} <run>/stage/bitgate_worker/run.py" in done.stdout
    assert "!! vllm is missing. Get it: pip install vllm" in done.stdout
    assert "-  deep_ep is missing" in done.stdout and "hf_abc" not in done.stdout


def test_a_project_that_can_run_is_exit_0(bitgate: Any, project: Path) -> None:
    (project / "cap").mkdir()
    (project / "bitgate.toml").write_text('[side.c]\nengine = "capture"\ncapture = "cap"\n', encoding="utf-8")
    done = bitgate("doctor", "--json")

    assert done.returncode == 0, done.stdout
    assert set(json.loads(done.stdout)) == {"bitgate", "project", "side c"}


def test_a_broken_configuration_is_a_finding_and_not_a_crash(bitgate: Any, project: Path) -> None:
    (project / "bitgate.toml").write_text("[sid]\n", encoding="utf-8")
    done = bitgate("doctor")

    assert done.returncode == 2 and "Did you mean 'side'?" in done.stdout


def test_init_looks_at_the_environments_it_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / ".venv-engine" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    monkeypatch.setenv("BITGATE_ENGINE_PYTHON", sys.executable)

    found = candidates(tmp_path)
    probes = looked_at(found[:1])

    assert found[0] == sys.executable and str(link) in found
    assert engines_in(probes[0]) == "no engine" and first_with(probes, "torch", "vllm") is None


def test_every_package_says_how_to_get_it() -> None:
    assert {"torch", "vllm", "deep_gemm", "flash_mla", "deep_ep", "megatron", "transformer_engine", "transformers"} <= {
        package.name for package in PACKAGES
    }
    assert all(package.get_it for package in PACKAGES)


@pytest.mark.engine
def test_the_engine_interpreter_really_imports_vllm(engine_python: Any) -> None:
    wanted = tuple(package for package in PACKAGES if package.name in ("torch", "transformers", "vllm"))
    found = probe(str(engine_python), {}, timeout_s=180, packages=wanted)

    assert {package.state for package in found.packages} == {"imports"}
