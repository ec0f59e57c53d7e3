"""How a run ends: once, by whoever comes first; nothing of it runs any more when the ledger says so."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from bitgate.store import Store
from bitgate.store.errors import StoreError
from bitgate.store.records import Finding, RunState
from bitgate.tools.engines.worker.files import Reserve
from bitgate.tools.engines.worker.processes import end_descendants, pause
from bitgate.tools.errors import BitgateError, VerdictError, WorkerError
from bitgate.tools.reasons import REASONS, reason
from bitgate.tools.redaction import redact, redact_text
from bitgate.tools.runs.codes import advice
from bitgate.tools.runs.elsewhere import Elsewhere

TERM_GRACE_S = 2.5
KILL_LIMIT_S = 5.0
TIMED_OUT = ("timed_out", "start_timed_out")


@dataclass(frozen=True)
class Outcome:
    """What finish_run records. `actor` is set when another than the run's own ended it."""

    state: RunState
    error: str | None = None
    code: str | None = None
    finding: Finding | None = None
    actor: str | None = None

    @property
    def exit_code(self) -> int:
        return 0 if self.state == "finished" else 1


def finished(finding: Finding) -> Outcome:
    return Outcome("finished", finding=finding)


def ended(state: RunState, code: str, message: str, actor: str | None = None) -> Outcome:
    return Outcome(state, f"{message} {advice(code)}".strip(), code, actor=actor)


def outcome_of(error: Exception) -> Outcome:
    """What an exception of a tool means for its run."""
    if isinstance(error, VerdictError):
        return finished(_verdict(error))
    if isinstance(error, WorkerError) and error.unsupported:
        return finished(_verdict(VerdictError("engine_unsupported", f"{error.code}: {error.message}")))
    if isinstance(error, WorkerError):
        return Outcome("timed_out" if error.code in TIMED_OUT else "failed", str(error), error.code)
    if isinstance(error, BitgateError | StoreError):
        return Outcome("failed", str(error), error.code)
    return ended("failed", "internal", f"{type(error).__name__}: {error}")


def _verdict(error: VerdictError) -> Finding:
    """Attested: what ended the run short was not watched to its end."""
    row = REASONS[error.code]
    return Finding(
        verdict=row.verdict, reasons=(reason(error.code, error.detail),), summary=f"{row.meaning} {error.detail}",
        next=row.next, grade="attested",
    )  # fmt: skip


class Ender:
    """The main thread ends a run that concluded, the watch thread one that must stop: the first of them does it."""

    def __init__(self, ledger: Path, run_id: str, reserve: Reserve, elsewhere: Elsewhere) -> None:
        self._ledger, self._run_id, self._reserve, self._elsewhere = ledger, run_id, reserve, elsewhere
        self._turn = threading.Lock()

    def end(self, outcome: Outcome) -> None:
        """Ends every descendant, records `outcome`, and leaves the process. The one who comes second waits for that."""
        self._turn.acquire()
        code = 1
        try:
            left = end_descendants(TERM_GRACE_S, KILL_LIMIT_S, pause)
            if left:
                sys.stderr.write(f"could not be ended: {left}\n")
            self._elsewhere.stop_all()
            self._reserve.release()
            self._record(outcome)
            code = outcome.exit_code
        except BaseException:  # noqa: BLE001 - a thread's last act: the process ends here, the log says why
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _record(self, outcome: Outcome) -> None:
        with Store.open(self._ledger) as store:
            try:
                _finish(store, self._run_id, outcome)
            except StoreError as error:
                # A finding that the ledger refuses is a defect of its tool; the run still has to end.
                if outcome.finding is None or error.code == "run_not_running":
                    raise
                traceback.print_exc()
                _finish(store, self._run_id, ended("failed", "internal", f"the finding was refused: {error}"))


def without_secrets(finding: Finding) -> Finding:
    """The ledger never forgets, so nothing that looks like a secret may enter it."""
    return Finding.model_validate(redact(finding.model_dump(mode="json")))


def _finish(store: Store, run_id: str, outcome: Outcome) -> None:
    if outcome.finding is not None and outcome.finding.check is None:
        check = store.get_run(run_id).request.get("check")
        named = outcome.finding.model_copy(update={"check": check if isinstance(check, str) else None})
        outcome = replace(outcome, finding=named)
    store.finish_run(
        run_id,
        outcome.state,
        error=None if outcome.error is None else redact_text(outcome.error),
        error_code=outcome.code,
        finding=None if outcome.finding is None else without_secrets(outcome.finding),
        actor=outcome.actor,
    )
