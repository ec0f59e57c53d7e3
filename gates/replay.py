"""Replays a ledger as a stranger would: reviewer sets, signatures, submissions, proposals; names each row that lies.

`store.verify_ledger` says whether rows are what was written; this says whether what was written may be believed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from bitgate.gates import reviewers as people
from bitgate.gates.errors import ReviewersRefused
from bitgate.gates.importing import import_lies
from bitgate.gates.ledger import frozen_of, proposal_of, recorded_of, vote_of
from bitgate.gates.replay_gates import submission_lies
from bitgate.gates.replay_index import Index
from bitgate.gates.rows import BaselineRow, ReviewerChange, ReviewersRow, TokenRow
from bitgate.gates.table import BY_ID
from bitgate.store.chain import Entry
from bitgate.store.reading import reading
from bitgate.store.schema import field as body_field

CLOCK_STEP: Final = timedelta(seconds=60)
"""How far a row may be dated before its predecessor: a clock that was set right, not a history written later."""


@dataclass(frozen=True)
class Lie:
    """A row that cannot be believed, and why."""

    seq: int
    code: str
    message: str


@dataclass
class Replay:
    """What a replay found. `reviewers` is the set in force at the end."""

    lies: list[Lie] = field(default_factory=list)
    votes: int = 0
    submissions: int = 0
    reviewers: str = ""

    @property
    def ok(self) -> bool:
        return not self.lies

    @property
    def first(self) -> Lie | None:
        return min(self.lies, key=lambda lie: lie.seq, default=None)


def replay(path: Path, *, reviewers: str | None = None, head: str | None = None) -> Replay:
    """Everything that can be held against the ledger at `path`.

    `reviewers`: an allowed_signers text pinned outside (git, CI). `head`: a row's hash pinned outside; the history
    before it is what it was then, so that a reviewer set older than the pinned one is believed only if the pinned head
    covers it.
    """
    with reading(path) as connection:
        index = Index(connection)
        found = Replay()
        _reviewers(index, found, reviewers, head)
        _votes(index, found)
        _proposals(index, found)
        _submissions(index, found)
        _tokens(index, found)
        _imports(index, found)
        _evidence(index, found)
        _times(connection, found)
    found.lies.sort(key=lambda lie: (lie.seq, lie.code))
    return found


# --- people -----------------------------------------------------------------------------------------------------------


def _reviewers(index: Index, found: Replay, pinned: str | None, head: str | None) -> None:
    entries = list(index.entries("reviewers"))
    line = people.timeline(entries)
    index.reviewers = line
    found.reviewers = line.current
    found.lies += [Lie(seq, "reviewers_forged", f"row {seq}: {why}") for seq, why in line.problems]
    found.lies += [lie for entry in entries[1:] for lie in _change_history(index, entry)]
    if pinned is not None:
        found.lies += _pinned(index, line, pinned, head)


def _change_history(index: Index, entry: Entry) -> Iterator[Lie]:
    try:
        change = ReviewersRow.model_validate(entry.body).change
        message = ReviewerChange.model_validate_json(change.message) if change else None
    except ValidationError:
        return
    if message and not (message.head.seq < entry.seq and index.hash_at(message.head.seq) == message.head.hash):
        yield Lie(
            entry.seq,
            "history_rewritten",
            f"row {entry.seq}: its signature covers a history that is not in this ledger",
        )


def _pinned(index: Index, line: people.Timeline, pinned: str, head: str | None) -> Iterator[Lie]:
    try:
        wanted = people.checked(pinned)
    except ReviewersRefused as error:
        yield Lie(0, "reviewers_pin", f"the pinned reviewers file cannot be used: {error}")
        return
    if not line.sets:
        yield Lie(
            1, "reviewers_missing", "row 1 holds no reviewer set, the pinned file names one: this is another ledger"
        )
        return
    since = next((seq for seq, text in line.sets if text == wanted), None)
    if since is None:
        seq, text = line.sets[-1]
        yield Lie(
            seq,
            "reviewers_differ",
            f"row {seq}: the reviewer set is not the pinned one: {_set_difference(wanted, text)}",
        )
    elif since > 1 and (index.seq_of(head) or 0) < since:
        yield Lie(
            1, "reviewers_differ", "row 1: an older reviewer set than the pinned one, and no pinned head covers it"
        )


def _set_difference(wanted: str, found: str) -> str:
    lines = {"pinned": set(wanted.splitlines()), "here": set(found.splitlines())}
    added = sorted(line.split()[0] for line in lines["here"] - lines["pinned"])
    removed = sorted(line.split()[0] for line in lines["pinned"] - lines["here"])
    parts = [
        f"{', '.join(added)} with a key that is not pinned" if added else "",
        f"without {', '.join(removed)}" if removed else "",
    ]
    return "; ".join(filter(None, parts)) or "in another order"


def _votes(index: Index, found: Replay) -> None:
    seen: set[tuple[str, str]] = set()
    for entry in index.entries("signature"):
        vote = vote_of(entry, index.reviewers)
        if vote is None:
            found.lies.append(
                Lie(entry.seq, "signature_malformed", f"row {entry.seq}: a signature row that holds no decision")
            )
            continue
        found.votes += 1
        index.votes.append(vote)
        key = (vote.signer, str(entry.body["message"]))
        problem = (
            vote.problem
            or index.subject_problem(vote.subject, entry.seq)
            or _vote_history(index, vote.decision.head.seq, vote.decision.head.hash)
        )
        if not problem and key in seen:
            problem = "the same vote was recorded before"
        if not problem and any(
            v.signer == vote.signer
            and v.decision.gate == vote.decision.gate
            and vote.decision.head.seq < v.seq < vote.seq
            for v in index.votes
        ):
            problem = f"{vote.signer} had voted again before this older vote was recorded"
        seen.add(key)
        if problem:
            found.lies.append(Lie(entry.seq, "signature_forged", f"row {entry.seq}: {problem}"))


def _vote_history(index: Index, seq: int, digest: str) -> str:
    return "" if index.hash_at(seq) == digest else "its signature covers a history that is not in this ledger"


# --- what agents wrote ------------------------------------------------------------------------------------------------


def _proposals(index: Index, found: Replay) -> None:
    expected = 1
    for entry in index.entries("baseline"):
        proposal = proposal_of(entry)
        if proposal is None:
            found.lies.append(Lie(entry.seq, "baseline_forged", f"row {entry.seq}: {_manifest_problem(entry)}"))
            continue
        index.proposals.append(proposal)
        ids = (
            *proposal.manifest.provenance,
            *proposal.manifest.tuning,
            *proposal.manifest.noise_floor,
            *proposal.manifest.breakdown,
        )
        problems = [f"evidence {i} is not in the ledger before it" for i in ids if not index.known(i, entry.seq)]
        if proposal.manifest.version != expected:
            problems.append(f"it claims version {proposal.manifest.version}, the next is {expected}")
        if not proposal.actor.startswith("baseline:"):
            problems.append(f"proposed by {proposal.actor}; only role baseline proposes")
        found.lies += [Lie(entry.seq, "baseline_forged", f"row {entry.seq}: {problem}") for problem in problems]
        expected = proposal.manifest.version + 1


def _manifest_problem(entry: Entry) -> str:
    try:
        row = BaselineRow.model_validate(entry.body)
    except ValidationError:
        return "it holds no baseline manifest"
    return f"the manifest does not have its digest: {row.manifest.digest[:12]}, not {row.digest[:12]}"


def _submissions(index: Index, found: Replay) -> None:
    for entry in index.entries("gate"):
        recorded = recorded_of(entry)
        if recorded is None or recorded.row.gate not in BY_ID:
            found.lies.append(
                Lie(entry.seq, "submission_malformed", f"row {entry.seq}: a gate row that holds no submission")
            )
            continue
        found.submissions += 1
        found.lies += [
            Lie(entry.seq, "submission_forged", f"row {entry.seq}: {why}") for why in submission_lies(index, recorded)
        ]
        index.submissions.append(recorded)


def _tokens(index: Index, found: Replay) -> None:
    known: dict[str, TokenRow] = {}
    for entry in index.entries("token"):
        try:
            row = TokenRow.model_validate(entry.body)
        except ValidationError:
            found.lies.append(
                Lie(entry.seq, "token_forged", f"row {entry.seq}: a token row that holds no token digest")
            )
            continue
        before = known.get(row.digest)
        if before and not (row.revoked and (row.name, row.role) == (before.name, before.role)):
            found.lies.append(
                Lie(
                    entry.seq,
                    "token_forged",
                    f"row {entry.seq}: changes token {before.name}; a token is only ever revoked",
                )
            )
        if row.revoked and before is None:
            found.lies.append(Lie(entry.seq, "token_forged", f"row {entry.seq}: revokes a token that was never added"))
        known.setdefault(row.digest, row)


def _imports(index: Index, found: Replay) -> None:
    """Evidence that came from elsewhere is attested, unless a runner of the reviewer set vouched for its bundle."""
    found.lies += [Lie(seq, "import_forged", f"row {seq}: {why}") for seq, why in import_lies(index)]


def _evidence(index: Index, found: Replay) -> None:
    """Who recorded it, when it says it ran, and whether it is another row's content again."""
    found.lies += [Lie(seq, "role_refused", f"row {seq}: {why}") for seq, why in _roles(index)]
    sql = f"""SELECT e.seq, s.at, {body_field("started_at", "e")}, {body_field("finished_at", "e")}, e.at
      FROM entries AS e JOIN entries AS s
      ON s.subject = {body_field("run_id", "e")} AND s.kind = 'run_started' WHERE e.kind = 'evidence'
      AND ({body_field("started_at", "e")} IS NOT s.at OR {body_field("finished_at", "e")} > e.at
      OR {body_field("finished_at", "e")} < s.at)"""
    for seq, began, claims, ended, at in index.connection.execute(sql):
        why = f"row {seq}: it says it ran {claims} to {ended}; the chain has it from {began} to {at}"
        found.lies.append(Lie(seq, "backdated", why))
    for seq, first, name in index.connection.execute(_COPIES):
        found.lies.append(
            Lie(seq, "replayed", f"row {seq}: its {name} is that of row {first}: an old result was recorded again")
        )


_COPIES: Final = """SELECT seq, first, name FROM (
    SELECT e.seq AS seq, a.value ->> '$.name' AS name,
      MIN(e.seq) OVER (PARTITION BY a.value ->> '$.digest') AS first
    FROM entries AS e, json_each(e.body, '$.artifacts') AS a
    WHERE e.kind = 'evidence' AND a.value ->> '$.name' LIKE '%capture%.json') WHERE seq > first"""
"""A capture names the computation that made it; two runs cannot have made the same one."""


def _roles(index: Index) -> Iterator[tuple[int, str]]:
    for (seq,) in index.connection.execute(
        "SELECT seq FROM entries WHERE kind = 'evidence' AND actor LIKE 'observer:%'"
    ):
        yield seq, "evidence recorded by an observer, who may not run tools"
    for side in ("rollout", "trainer"):
        sql = f"""SELECT seq FROM entries WHERE kind = 'evidence' AND actor LIKE 'baseline:%'
          AND {body_field(f"sides.{side}.digest")} IS NOT NULL"""
        for (seq,) in index.connection.execute(sql):
            yield seq, f"role baseline ran side {side}, which it does not own"
    yield from _baseline_runs(index)


def _baseline_runs(index: Index) -> Iterator[tuple[int, str]]:
    """Of the baseline, role consistency runs the frozen digest, for speed and provenance, and nothing else."""
    sql = f"""SELECT seq, {body_field("tool")}, {body_field("sides.baseline.digest")} FROM entries
      WHERE kind = 'evidence' AND {body_field("sides.baseline.digest")} IS NOT NULL AND actor LIKE 'consistency:%'"""
    for seq, tool, digest in index.connection.execute(sql):
        manifest = frozen_of(index.proposals, [vote for vote in index.votes if vote.seq < seq])
        frozen = {record.digest for record in manifest.sides.values()} if manifest else set()
        if digest not in frozen:
            yield seq, "role consistency ran a baseline that no person froze"
        elif tool not in {"ab_benchmark", "check_provenance"}:
            yield seq, f"role consistency ran {tool} on the frozen baseline"


def _times(connection: sqlite3.Connection, found: Replay) -> None:
    sql = """SELECT seq, at, earlier
      FROM (SELECT seq, at, LAG(at) OVER (ORDER BY seq) AS earlier FROM entries) WHERE at < earlier"""
    for seq, at, earlier in connection.execute(sql):
        if _moment(earlier) - _moment(at) > CLOCK_STEP:
            found.lies.append(Lie(seq, "backdated", f"row {seq}: dated {at}, after a row dated {earlier}"))


def _moment(text: Any) -> datetime:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return datetime.fromisoformat("0001-01-01T00:00:00+00:00")
