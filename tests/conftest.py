from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Program:
    """A program of the operating system, which pip cannot install."""

    name: str
    commands: tuple[str, ...]
    package: str
    variable: str = ""

    def present(self) -> bool:
        return bool(os.environ.get(self.variable)) or any(shutil.which(command) for command in self.commands)


PROGRAMS = {
    "browser": Program("Chromium", ("chromium", "chromium-browser", "google-chrome"), "chromium", "BITGATE_CHROMIUM"),
    "ssh_keys": Program("ssh-keygen", ("ssh-keygen",), "openssh-client"),
}
"""By the fixture that runs it."""
LEFT_OUT = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def engine_python() -> str:
    """The interpreter that has torch and vLLM; never skipped silently."""
    python = os.environ.get("BITGATE_ENGINE_PYTHON")
    if not python:
        pytest.fail("BITGATE_ENGINE_PYTHON names no engine interpreter; run `make engine`, or use `make test`")
    return python


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of a program that is not here are left out, and the summary says so; in CI they run, and fail."""
    absent = {} if os.environ.get("CI") else {name: p for name, p in PROGRAMS.items() if not p.present()}
    said = config.stash.setdefault(LEFT_OUT, [])
    for fixture, program in absent.items():
        out = [item for item in items if fixture in getattr(item, "fixturenames", ())]
        items[:] = [item for item in items if item not in out]
        config.hook.pytest_deselected(items=out)
        if out:
            said.append(
                f"{len(out)} tests left out: no {program.name} here (Debian: apt-get install {program.package})"
            )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(LEFT_OUT, []):
        terminalreporter.write_line(line, yellow=True)
    tried, succeeded = (attacks(terminalreporter, *words) for words in (("passed", "failed"), ("failed",)))
    if tried:
        terminalreporter.write_line(f"{tried} attacks tried, {succeeded} succeeded", red=bool(succeeded))


def attacks(reporter: pytest.TerminalReporter, *outcomes: str) -> int:
    """How many tests of attacks ended in one of these ways."""
    reports = (report for outcome in outcomes for report in reporter.stats.get(outcome, ()))
    return sum("attack" in report.keywords for report in reports)
