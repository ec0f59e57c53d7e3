"""The evidence store: runs and evidence on top of the ledger, artifacts beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

from bitgate.store.artifacts import ArtifactStore
from bitgate.store.canonical import clean_text
from bitgate.store.chain import Entry, Head
from bitgate.store.errors import NotFound, Refused
from bitgate.store.ids import new_id, now
from bitgate.store.ledger import Ledger
from bitgate.store.records import Evidence, Finding, RegisteredModel, Run, RunFinished, RunStarted, RunState, Verdict
from bitgate.store.schema import field

MAX_ERROR = 4000
MAX_LIMIT = 1000
_IS_RUNNING = "id IN (SELECT run_id FROM running)"
_RUN_COLUMNS = "id, tool, state, request, actor, started_at, finished_at, error, error_code, evidence_id"


class Store:
    """One project's ledger and artifacts. Every thread may use it; close it, or use it as a context manager."""

    def __init__(self, ledger: Ledger, artifacts: ArtifactStore) -> None:
        self.ledger = ledger
        self.artifacts = artifacts

    @classmethod
    def open(cls, path: Path, *, clock: Callable[[], str] = now) -> Self:
        """Open the ledger at `path`, making or migrating it; artifacts lie in `artifacts/` beside it.

        Raises: StoreError: `network_filesystem`, `ledger_too_new`, `not_a_ledger`, `ledger_damaged`, …
        """
        ledger = Ledger(path, clock)
        try:
            artifacts = ArtifactStore(path.parent / "artifacts")
            artifacts.sweep()
            return cls(ledger, artifacts)
        except BaseException:
            ledger.close()
            raise

    def close(self) -> None:
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # The chain

    def transaction(self) -> AbstractContextManager[None]:
        """`BEGIN IMMEDIATE` around a read-then-write of several calls; an error inside undoes them all."""
        return self.ledger.transaction()

    def append(self, kind: str, subject: str, body: Mapping[str, Any], actor: str) -> Entry:
        return self.ledger.append(kind, subject, body, actor)

    def entries(self, kind: str | None = None, subject: str | None = None, after_seq: int = 0) -> Iterator[Entry]:
        return self.ledger.entries(kind, subject, after_seq)

    def head(self) -> Head:
        return self.ledger.head()

    # Runs

    def start_run(self, tool: str, request: Mapping[str, Any], actor: str) -> Run:
        """Record that a tool begins to run."""
        run_id, body = new_id("run"), {"tool": tool, "request": request}
        entry = self.ledger.append("run_started", run_id, body, actor, through="start_run")
        started = RunStarted.model_validate(entry.body)
        return Run(
            id=run_id,
            tool=started.tool,
            state="running",
            request=started.request,
            actor=entry.actor,
            started_at=entry.at,
        )

    def finish_run(
        self,
        run_id: str,
        state: RunState,
        *,
        error: str | None = None,
        error_code: str | None = None,
        finding: Finding | None = None,
        actor: str | None = None,
    ) -> Evidence | None:
        """End a run and record its evidence, both or neither. `actor` is the run's own unless another ended it.

        Raises: Refused when the run is not running, or when `state`, `error` and `finding` do not fit together;
            NotFound for a run, or an artifact of the finding, that does not exist.
        """
        _check_end(state, error_code, finding)
        for artifact in finding.artifacts if finding else ():
            self.artifacts.require(artifact)
        with self.transaction():
            run = self.get_run(run_id)
            if run.state != "running":
                raise Refused("run_not_running", f"{run_id}: is {run.state} since {run.finished_at}; it ends only once")
            by = run.actor if actor is None else actor
            evidence = self._add_evidence(run, finding, by) if finding else None
            body = RunFinished(
                state=state,
                error=_cut(error),
                error_code=error_code,
                evidence_id=evidence.id if evidence else None,
            )
            self.ledger.append("run_finished", run_id, body.model_dump(), by, through="finish_run")
        return evidence

    def _add_evidence(self, run: Run, finding: Finding, actor: str) -> Evidence:
        body = finding.model_dump(mode="json") | {
            "id": new_id("ev"),
            "run_id": run.id,
            "tool": run.tool,
            "request": run.request,
            "started_at": run.started_at,
            "finished_at": self.ledger.clock(),
        }
        entry = self.ledger.append("evidence", body["id"], body, actor, through="finish_run")
        return Evidence.model_validate(entry.body)

    def get_run(self, run_id: str) -> Run:
        found = self._runs("id = :id", {"id": run_id}, 1)
        if not found:
            raise NotFound("unknown_run", f"run_id: no run {run_id[:60]!r} in {self.ledger.path}; list_runs names them")
        return found[0]

    def list_runs(self, state: RunState | None = None, limit: int = 50) -> list[Run]:
        """The newest runs first; of a state that ends, those that ended last."""
        if state is None:
            return self._runs("TRUE", {}, limit)
        if state == "running":
            return self._runs(_IS_RUNNING, {}, limit, "+seq")
        _check_member("state", state, get_args(RunState))
        ended = f"SELECT subject FROM entries WHERE kind = 'run_finished' AND {field('state')} = :state"
        return self._runs(f"id IN ({ended} ORDER BY seq DESC LIMIT :limit)", {"state": state}, limit, "+seq")

    def running_runs(self) -> list[Run]:
        return self._runs(_IS_RUNNING, {}, None, "+seq")

    def _runs(self, where: str, parameters: Mapping[str, Any], limit: int | None, order: str = "seq") -> list[Run]:
        # "+seq" keeps SQLite from reading every run in order when `where` names the few that are wanted.
        sql = f"SELECT {_RUN_COLUMNS} FROM runs WHERE {where} ORDER BY {order} DESC LIMIT :limit"
        rows = self.ledger.rows(sql, {**parameters, "limit": -1 if limit is None else _limit(limit)})
        return [_run(row) for row in rows]

    # Evidence

    def get_evidence(self, evidence_id: str) -> Evidence:
        return Evidence.model_validate_json(self._evidence_row(evidence_id)[1])

    def _evidence_row(self, evidence_id: str) -> tuple[int, str]:
        sql = "SELECT seq, body FROM entries WHERE subject = :id AND kind = 'evidence'"
        found: list[tuple[int, str]] = self.ledger.rows(sql, {"id": evidence_id})
        if not found:
            raise NotFound(
                "unknown_evidence",
                f"evidence_id: no evidence {evidence_id[:60]!r} in {self.ledger.path}; list_evidence names it",
            )
        return found[0]

    def list_evidence(
        self,
        tool: str | None = None,
        check: str | None = None,
        verdict: Verdict | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[Evidence]:
        """The newest evidence first; `before` is the id of the last one already seen."""
        if verdict is not None:
            _check_member("verdict", verdict, get_args(Verdict))
        filters = {"tool": tool, "check": check, "verdict": verdict}
        conditions = [f'k."{name}" = :{name}' for name, value in filters.items() if value is not None]
        conditions.append("TRUE" if before is None else "k.seq < :before")
        sql = f"SELECT body FROM evidence_keys AS k JOIN entries AS e USING (seq) WHERE {' AND '.join(conditions)}"
        parameters = {**filters, "limit": _limit(limit), "before": before and self._evidence_row(before)[0]}
        rows = self.ledger.rows(f"{sql} ORDER BY k.seq DESC LIMIT :limit", parameters)
        return [Evidence.model_validate_json(body) for (body,) in rows]

    # Models

    def register_model(self, model: RegisteredModel, actor: str) -> Entry:
        return self.append("model", model.name, model.model_dump(mode="json"), actor)

    def get_model(self, name: str) -> RegisteredModel:
        """The model as it was registered last."""
        sql = "SELECT body FROM entries WHERE subject = :name AND kind = 'model' ORDER BY seq DESC LIMIT 1"
        found = self.ledger.rows(sql, {"name": name})
        if not found:
            raise NotFound("unknown_model", f"model: {name[:60]!r} is not registered in {self.ledger.path}")
        return RegisteredModel.model_validate_json(found[0][0])


def _run(row: tuple[Any, ...]) -> Run:
    values = dict(zip(_RUN_COLUMNS.split(", "), row, strict=True))
    return Run.model_validate(values | {"request": json.loads(values["request"])})


def _limit(limit: int) -> int:
    if 1 <= limit <= MAX_LIMIT:
        return limit
    raise Refused("bad_limit", f"limit: got {limit}; allowed is 1 to {MAX_LIMIT}")


def _check_member(name: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise Refused(f"bad_{name}", f"{name}: got {given[:60]!r}; allowed are {', '.join(allowed)}")


def _check_end(state: RunState, error_code: str | None, finding: Finding | None) -> None:
    _check_member("state", state, get_args(RunState))
    if state == "running":
        raise Refused("bad_state", "state: got 'running'; a run ends in any other state")
    if (state == "finished") != (finding is not None):
        raise Refused(
            "bad_state", f"finding: a run that is {state!r} has {'a' if state == 'finished' else 'no'} verdict"
        )
    if state == "finished" and error_code is not None:
        raise Refused("bad_state", "error_code: a finished run has a verdict and no error")


def _cut(error: str | None) -> str | None:
    if error is None or len(error) <= MAX_ERROR:
        return error and clean_text(error)
    return clean_text(error[:MAX_ERROR]) + " … (cut; the run's log has the rest)"
