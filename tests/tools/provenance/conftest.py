"""A small installed environment that can be tampered with, and one process in it that observes itself."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bitgate.tools.provenance.check import Check, Declared, RankFacts
from bitgate.tools.provenance.files import look_at
from bitgate.tools.provenance.hashing import HashCache
from bitgate.tools.provenance.observed import Observation, parse_observation
from bitgate.tools.provenance.rules import checks_of

WORKER = Path(__file__).parents[3] / "tools" / "engines" / "worker"
PREFIXES = ["VLLM_", "NCCL_", "OMP_", "LD_PRELOAD"]
FILES = {
    "engine_pkg/__init__.py": "from engine_pkg.kernels import gemm\n",
    "engine_pkg/kernels.py": "def gemm(x):\n    return x * 2\n\n\n"
    "class Layer:\n    def forward(self, x):\n        return gemm(x)\n",
}


def record_row(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}"


def install(site: Path) -> None:
    """`engine_pkg` 1.2.0 as pip leaves it: files, and a RECORD of their hashes."""
    rows = []
    for name, text in FILES.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        rows.append(record_row(name, text.encode()))
    info = site / "engine_pkg-1.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: engine_pkg\nVersion: 1.2.0\n\n", encoding="utf-8")
    (info / "RECORD").write_text("\n".join([*rows, "engine_pkg-1.2.0.dist-info/RECORD,,"]) + "\n", encoding="utf-8")


@dataclass
class Environment:
    """`site` is on the path of the process; `body` is what it does before it observes itself."""

    root: Path
    stage: Path
    env: dict[str, str] = field(default_factory=dict)
    path: list[Path] = field(default_factory=list)
    cwd: Path | None = None
    last: Observation | None = None

    @property
    def site(self) -> Path:
        return self.root / "lib" / "python3" / "site-packages"

    def observe(
        self, body: str = "import engine_pkg", *, watched: tuple[str, ...] = ("engine_pkg",), **step: Any
    ) -> Observation:
        return parse_observation(self.raw(body, watched=watched, **step))

    def raw(self, body: str, *, watched: tuple[str, ...] = ("engine_pkg",), **step: Any) -> str:
        wanted = {"watched": list(watched), "hash_files": False, "env_names": [], "env_prefixes": PREFIXES, **step}
        out = self.root / "out"
        out.mkdir(exist_ok=True)
        lines = [
            "import sys",
            f"sys.path[:0] = {[str(p) for p in (*self.path, self.site)]!r}",
            f"sys.path.append({str(self.stage)!r})",
            body,
            "from bitgate_worker.provenance.collect import observe",
            f"observe({str(out)!r}, {wanted!r})",
        ]
        script = self.root / "run.py"
        script.write_text("\n".join(lines), encoding="utf-8")
        env = {"PATH": os.environ["PATH"], "HOME": str(self.root), **self.env}
        subprocess.run(
            [sys.executable, "-s", str(script)],
            env=env,
            cwd=self.cwd or self.root,
            check=True,
            timeout=60,
            capture_output=True,
        )
        return (out / "provenance.json").read_text(encoding="utf-8")

    def facts(self, seen: Observation, rank: int = 0, chosen: dict[str, Any] | None = None) -> RankFacts:
        return RankFacts(rank, seen, look_at(seen, HashCache(self.root / "hashes.db")), chosen or {})

    def checks(
        self, seen: Observation, declared: Declared | None = None, chosen: dict[str, Any] | None = None
    ) -> list[Check]:
        return checks_of(self.facts(seen, chosen=chosen), declared or Declared())

    def codes(self, seen: Observation, declared: Declared | None = None, **more: Any) -> dict[str, str]:
        """Reason code -> what was observed, of the checks that do not hold."""
        return {check.code: check.observed for check in self.checks(seen, declared, **more) if check.code}


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stage")
    shutil.copytree(WORKER, folder / "bitgate_worker", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def environment(tmp_path: Path, stage: Path) -> Environment:
    made = Environment(tmp_path, stage)
    made.site.mkdir(parents=True)
    install(made.site)
    return made


@pytest.fixture
def clean(environment: Environment) -> Observation:
    return environment.observe()


def as_json(seen: Observation) -> str:
    return json.dumps(seen.model_dump(mode="json"), allow_nan=False)
