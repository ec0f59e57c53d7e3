"""Resources: evidence, run logs, artifacts and guides, by URI."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, Final

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError

from bitgate.server.sanitise import Cleaner, clean_text
from bitgate.server.session import Session
from bitgate.store.errors import NotFound, StoreError
from bitgate.tools.errors import BitgateError
from bitgate.tools.runs.logs import run_log

EVIDENCE: Final = "bitgate://evidence/{id}"
RUN_LOG: Final = "bitgate://runs/{id}/log"
ARTIFACT: Final = "bitgate://artifacts/{digest}"
GUIDE: Final = "bitgate://guides/{name}"

MAX_RESOURCE: Final = 400_000
"""Bytes; clients of the older HTTP transport refuse messages over 1 MiB."""

GUIDES: Final = {
    "start": "From nothing to the first verdict",
    "verdicts": "The four verdicts, grades and exit codes",
    "reasons": "Every reason code: verdict, meaning, what to do",
    "captures": "Comparing captures that a trainer wrote itself",
    "gates": "Gates C0 to C10: what each requires",
    "roles": "Who may run, change, propose and sign what",
}


def add_resources(server: MCPServer[None], session: Session) -> None:
    @server.resource(EVIDENCE, title="Evidence", mime_type="application/json")
    def evidence(id: str) -> str:
        """One piece of evidence, whole, as recorded in the ledger."""
        with readable("evidence"):
            return _json(session.store.get_evidence(id).model_dump(mode="json"))

    @server.resource(RUN_LOG, title="Run log", mime_type="text/plain")
    def log(id: str) -> str:
        """What a run's supervisor, launchers and ranks wrote: the last part of each file, secrets redacted."""
        if not re.fullmatch(r"run_[0-9a-z]{20}", id):
            raise ResourceNotFoundError("a run id is run_ and 20 letters; get_run and get_evidence name them")
        with readable("runs"):
            run = session.store.get_run(id)
            return run_log(session.project.runs_dir / run.id)

    @server.resource(ARTIFACT, title="Artifact", mime_type="application/octet-stream")
    def artifact(digest: str) -> bytes:
        """A file that evidence names by its BLAKE3: tables, histograms, plots."""
        with readable("artifacts"):
            path = session.store.artifacts.path(digest)
            if path.stat().st_size > MAX_RESOURCE:
                raise ResourceError(f"{path.stat().st_size} bytes are too many for a message; the file is {path}")
            return path.read_bytes()

    for name, title in GUIDES.items():
        _add_guide(server, name, title)


def _add_guide(server: MCPServer[None], name: str, title: str) -> None:
    @server.resource(GUIDE.replace("{name}", name), name=name, title=title, mime_type="text/markdown")
    def guide() -> str:
        return guide_text(name)


def guide_text(name: str) -> str:
    """A guide's Markdown; those of reason codes and gates are made from their tables."""
    if name == "reasons":
        from bitgate.tools.reasons import render

        return render()
    if name == "gates":
        from bitgate.server.gate_resources import gates_text

        return f"# Gates C0 to C10\n\n{gates_text()}"
    return (files("bitgate.server") / "guides" / f"{name}.md").read_text(encoding="utf-8")


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Turns our errors into those whose text reaches the client."""
    try:
        yield
    except NotFound as error:
        raise ResourceNotFoundError(clean_text(str(error))) from error
    except (StoreError, BitgateError, OSError) as error:
        raise ResourceError(f"{what}: {clean_text(str(error))}") from error


def _json(value: dict[str, Any]) -> str:
    cleaner = Cleaner()
    body = cleaner.clean(value)
    if isinstance(body, dict) and cleaner.non_finite:
        body["non_finite"] = list(cleaner.non_finite)
    text = json.dumps(body, allow_nan=False, ensure_ascii=False, indent=1)
    if len(text.encode()) > MAX_RESOURCE:
        raise ResourceError(f"{len(text)} characters are too many for a message; run `bitgate evidence ID` on the host")
    return text
