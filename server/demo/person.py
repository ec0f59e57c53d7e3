"""Who plays the person in the demo: a throwaway SSH key under its folder, and the command line that people use."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bitgate.tools.errors import BitgateError

NAME: Final = "demo-reviewer"
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True)
class Person:
    """Signs with a key that anybody can read: good enough for a demo, and for nothing else."""

    project: Path

    @property
    def key(self) -> Path:
        return self.project / "person" / "id_ed25519"

    @property
    def reviewers(self) -> Path:
        return self.project / "person" / "reviewers.pub"

    def come(self) -> None:
        """Makes the key, and the ledger's first row: the reviewers.

        Raises:
            BitgateError: ssh-keygen or bitgate refused; the text is theirs.
        """
        if not self.key.is_file():
            self.key.parent.mkdir(exist_ok=True)
            _said(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", NAME, "-f", str(self.key)], self.project)
            public = self.key.with_suffix(".pub").read_text(encoding="utf-8")
            self.reviewers.write_text(f"{NAME} {public}", encoding="utf-8")
        self.bitgate("reviewers", str(self.reviewers))

    def sign(self, gate: str) -> str:
        """Approves what the gate shows now; returns what the command said."""
        return self.bitgate("decision", gate, "--key", str(self.key))

    def bitgate(self, *words: str) -> str:
        return _said([sys.executable, "-m", "bitgate.server", "--project", str(self.project), *words], self.project)


def person_of(project: Path) -> Person | None:
    """None where there is no ssh-keygen: then nobody can sign."""
    return Person(project) if shutil.which("ssh-keygen") else None


def _said(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        raise BitgateError(f"{' '.join(command[-4:])} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stderr.strip()
