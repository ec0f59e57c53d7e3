"""Local mode: somebody with a shell under our user id edits the ledger by hand. Never impossible, always evident.

Every attack is tried on a ledger in which C0-C5 passed and a reviewer froze the baseline; the head was pinned before.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import pytest

from bitgate.gates import bundles, decisions, importing, tokens
from bitgate.gates.rows import HeadRef, pretty
from bitgate.gates.table import BY_ID
from bitgate.gates.verify import verify


def _evidence(f, rows, **fields):
    return f.last(rows, "evidence", **fields)


def _set(f, kind, key, value, **fields):
    return lambda rows: f.edit(f.last(rows, kind, **fields), lambda body: body.update({key: value}))


def _column(f, kind, column, value, **fields):
    return lambda rows: f.last(rows, kind, **fields).update({column: value})


def _nested(f, kind, path, value, **fields):
    def change(body):
        for key in path[:-1]:
            body = body[key]
        body[path[-1]] = value

    return lambda rows: f.edit(f.last(rows, kind, **fields), change)


def _drop(f, kind, **fields):
    return lambda rows: rows.remove(f.last(rows, kind, **fields))


def _swap(f):
    def change(rows):
        rows[4], rows[7] = rows[7], rows[4]

    return change


def _cut(count):
    return lambda rows: rows.__delitem__(slice(-count, None))


EDITS: dict[str, tuple[Callable[..., Callable[..., object]], str]] = {
    "a fail is turned into a pass": (lambda f: _set(f, "evidence", "verdict", "pass", verdict="fail"), ""),
    "a pass is turned into a fail": (
        lambda f: _set(f, "evidence", "verdict", "fail", check="batch"),
        "submission_forged",
    ),
    "a fail is deleted": (lambda f: _drop(f, "evidence", verdict="fail"), ""),
    "an attested grade is raised": (lambda f: _set(f, "evidence", "grade", "observed", grade="attested"), ""),
    "a figure is improved": (
        lambda f: _nested(f, "evidence", ["figures", "ratio_low"], 0.99, check="batch"),
        "submission_forged",
    ),
    "a side digest is replaced": (
        lambda f: _nested(f, "evidence", ["sides", "rollout", "digest"], "0" * 64, check="batch"),
        "submission_forged",
    ),
    "a model's weights digest is replaced": (
        lambda f: _nested(f, "evidence", ["models", "tiny-slice", "weights_digest"], "0" * 64, check="batch"),
        "submission_forged",
    ),
    "an option is edited in evidence": (
        lambda f: _nested(f, "evidence", ["sides", "rollout", "options"], {}, check="batch"),
        "submission_forged",
    ),
    "a reason is removed": (lambda f: _set(f, "evidence", "reasons", [], verdict="fail"), ""),
    "coverage is widened": (
        lambda f: _nested(f, "evidence", ["coverage", "exercised"], ["decode", "graphs"], check="phase"),
        "submission_forged",
    ),
    "a self-test is invented": (
        lambda f: _set(f, "evidence", "self_test", {"planted": 6, "found": 6}, check="batch"),
        "submission_forged",
    ),
    "evidence is renamed": (
        lambda f: _column(f, "evidence", "subject", "ev_00000000000000000000", check="batch"),
        "submission_forged",
    ),
    "evidence is given to another role": (
        lambda f: _column(f, "evidence", "actor", "observer:x", check="batch"),
        "role_refused",
    ),
    "evidence is backdated": (
        lambda f: _column(f, "evidence", "at", "2025-01-01T00:00:00.000Z", check="batch"),
        "backdated",
    ),
    "evidence claims to have run earlier": (
        lambda f: _set(f, "evidence", "started_at", "2026-01-01T00:00:00.000Z", check="batch"),
        "backdated",
    ),
    "evidence claims to have ended later": (
        lambda f: _set(f, "evidence", "finished_at", "2027-01-01T00:00:00.000Z", check="batch"),
        "backdated",
    ),
    "a run's request is edited": (lambda f: _nested(f, "run_started", ["request", "check"], "other"), ""),
    "a run's start is backdated": (lambda f: _column(f, "run_started", "at", "2025-01-01T00:00:00.000Z"), "backdated"),
    "a run's actor is replaced": (lambda f: _column(f, "run_started", "actor", "person:rosa"), ""),
    "a crashed run is said to have finished": (
        lambda f: _set(f, "run_finished", "state", "finished", state="failed"),
        "",
    ),
    "a run's end is removed": (lambda f: _drop(f, "run_finished"), ""),
    "a submission is turned into a pass": (
        lambda f: _set(f, "gate", "state", "passed", gate="C6"),
        "submission_forged",
    ),
    "what a submission lacked is hidden": (lambda f: _nested(f, "gate", ["subject", "missing"], [], gate="C6"), ""),
    "a submission's evidence is replaced": (
        lambda f: _nested(f, "gate", ["subject", "evidence"], [], gate="C5", state="passed"),
        "submission_forged",
    ),
    "a submission's sides are replaced": (
        lambda f: _nested(f, "gate", ["subject", "sides", "rollout"], "0" * 64, gate="C5"),
        "submission_forged",
    ),
    "a submission's policy is replaced": (
        lambda f: _nested(f, "gate", ["subject", "policy"], {}, gate="C0"),
        "submission_forged",
    ),
    "a submission is moved to another gate": (
        lambda f: lambda rows: f.last(rows, "gate", gate="C5").update(subject="C6"),
        "submission_malformed",
    ),
    "a submission is attributed to the baseline agent": (
        lambda f: _column(f, "gate", "actor", "baseline:x", gate="C5"),
        "submission_forged",
    ),
    "a submission is attributed to an observer": (
        lambda f: _column(f, "gate", "actor", "observer:x", gate="C5"),
        "submission_forged",
    ),
    "a submission is attributed to a person": (
        lambda f: _column(f, "gate", "actor", "person:rosa", gate="C5"),
        "submission_forged",
    ),
    "a submission is said to be of another history": (
        lambda f: _nested(f, "gate", ["as_of", "hash"], "0" * 64, gate="C5"),
        "submission_forged",
    ),
    "a waiver is invented in a submission": (
        lambda f: _nested(f, "gate", ["subject", "waived"], ["layers"], gate="C5"),
        "submission_forged",
    ),
    "the manifest's options are edited": (
        lambda f: _nested(f, "baseline", ["manifest", "sides", "baseline", "options"], {}),
        "baseline_forged",
    ),
    "the manifest's digest is edited with it": (lambda f: _set(f, "baseline", "digest", "0" * 64), "baseline_forged"),
    "the manifest's tuning record is padded": (
        lambda f: _nested(f, "baseline", ["manifest", "tuning"], ["ev_00000000000000000000"]),
        "baseline_forged",
    ),
    "the manifest's version is raised": (
        lambda f: _nested(f, "baseline", ["manifest", "version"], 7),
        "baseline_forged",
    ),
    "the proposal is attributed to the consistency agent": (
        lambda f: _column(f, "baseline", "actor", "consistency:x"),
        "baseline_forged",
    ),
    "the freeze is deleted": (lambda f: _drop(f, "signature"), "submission_forged"),
    "the freeze's text is edited": (
        lambda f: (
            lambda rows: f.edit(
                f.last(rows, "signature"), lambda b: b.update(message=b["message"].replace('"approve"', '"reject"'))
            )
        ),
        "signature_forged",
    ),
    "the freeze's reason is edited": (
        lambda f: (
            lambda rows: f.edit(
                f.last(rows, "signature"),
                lambda b: b.update(message=b["message"].replace('"reason": ""', '"reason": "fine"')),
            )
        ),
        "signature_forged",
    ),
    "the freeze's signer is replaced": (lambda f: _set(f, "signature", "signer", "sam"), "signature_forged"),
    "the freeze's signature is truncated": (
        lambda f: lambda rows: f.edit(f.last(rows, "signature"), lambda b: b.update(signature=b["signature"][:-80])),
        "signature_forged",
    ),
    "the freeze is moved to another gate": (lambda f: _column(f, "signature", "subject", "C10"), "signature_forged"),
    "the freeze is moved before its proposal": (
        lambda f: lambda rows: rows.insert(1, rows.pop(rows.index(f.last(rows, "signature")))),
        "signature_forged",
    ),
    "the first reviewer set is replaced": (
        lambda f: (
            lambda rows: f.edit(
                rows[0], lambda b: b.update(allowed_signers=b["allowed_signers"].replace("rosa", "eve"))
            )
        ),
        "reviewers_differ",
    ),
    "the reviewer set is deleted": (lambda f: lambda rows: rows.pop(0), "reviewers_missing"),
    "a token's role is raised": (lambda f: _set(f, "token", "role", "consistency"), ""),
    "a token's revocation is deleted": (lambda f: _drop(f, "token", revoked=True), ""),
    "an imported grade is raised": (
        lambda f: _set(f, "evidence", "grade", "observed", tool="run_compare", check="layout"),
        "import_forged",
    ),
    "an import row is deleted": (lambda f: _drop(f, "import"), "import_forged"),
    "rows are put in another order": (_swap, ""),
    "the last rows are cut off": (lambda f: _cut(3), ""),
    "all rows after the freeze are cut off": (lambda f: _cut(30), ""),
    "time is moved back for one row": (
        lambda f: lambda rows: rows[-1].update(at="2026-11-30T10:00:00.000Z"),
        "backdated",
    ),
}


def _worth_forging(world, folder):
    """Passes, a freeze, a fail, a crash, tokens, an import."""
    world.walk("C5")
    world.meet(BY_ID["C6"].needs[3], verdict="fail", reasons=[{"code": "logprobs_differ", "detail": "12 of 4096"}])
    world.meet(BY_ID["C6"].needs[2], grade="attested")
    crashed = world.store.start_run("run_compare", {}, "consistency:bo-agent")
    world.store.finish_run(crashed.id, "failed", error="killed", error_code="worker_killed")
    world.submit("C6")
    tokens.add(world.store, "looker", "observer")
    tokens.revoke(world.store, "looker")
    elsewhere = world.meet(BY_ID["C6"].needs[3])
    bundles.export(world.store, folder / "bundle.zip", [elsewhere.id])
    importing.take_in(world.store, folder / "bundle.zip", "person:rosa")


@pytest.fixture(scope="module")
def template(new_world, tmp_path_factory, signers):
    """The ledger, made once; every attack gets a copy."""
    folder = tmp_path_factory.mktemp("template")
    made = new_world(folder / "ledger.db", signers)
    _worth_forging(made, folder)
    made.store.ledger.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    made.store.close()
    return folder


@pytest.fixture
def world(template, new_world, tmp_path):
    shutil.copytree(template, tmp_path / "copy")
    made = new_world(tmp_path / "copy" / "ledger.db", "")
    made.clock.at += timedelta(minutes=1)
    yield made
    made.store.close()


@pytest.fixture
def attacked(world, signers):
    return {"path": world.store.ledger.path, "head": world.store.head().hash, "reviewers": signers}


def test_the_ledger_itself_verifies_with_everything_pinned(attacked):
    found = verify(attacked["path"], head=attacked["head"], reviewers=attacked["reviewers"])
    assert found.problems == []
    assert (found.replay.votes, found.replay.submissions > 6) == (1, True)


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.attack
def test_an_edit_with_the_chain_recomputed_is_evident(name, attacked, forger, signers):
    make, code = EDITS[name]
    forger.rewrite(make(forger))
    found = verify(attacked["path"], head=attacked["head"], reviewers=attacked["reviewers"])
    assert "head_not_in_chain" in {lie.code for lie in found.problems}, "the pinned head must expose any rewrite"
    unpinned = verify(attacked["path"], reviewers=attacked["reviewers"])
    if code:
        assert code in {lie.code for lie in unpinned.problems}, [lie.message for lie in unpinned.problems]
        assert all(f"row {lie.seq}" in lie.message for lie in unpinned.problems if lie.seq)


STRUCTURAL = ("cut off", "other order", "deleted", "removed", "moved before")
IN_PLACE = [name for name in EDITS if not any(words in name for words in STRUCTURAL) or "reason is removed" in name]


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.attack
def test_an_edit_without_recomputing_names_exactly_the_row(name, attacked, forger):
    before = forger.rows()
    forger.rewrite(EDITS[name][0](forger), recompute=False)
    (edited,) = (row["seq"] for row, old in zip(forger.rows(), before, strict=True) if row != old)
    found = verify(attacked["path"], head=attacked["head"], reviewers=attacked["reviewers"])
    assert (edited, "row_edited") in {(lie.seq, lie.code) for lie in found.problems}


# --- rows that somebody appends, chain and all: the pinned head is still there, so no row may be believed ---


def _forged_vote(world, forger, attacked, signer="rosa", key="mallory", **changes):
    decision = decisions.decision_for(world.store, "C1", world.today, "approve")
    decision = decision.model_copy(update=changes)
    message = pretty(decision)
    signature = decisions.sshsig.sign(message, world.keys[key])
    return forger.append(
        "signature", "C1", {"message": message, "signature": signature, "signer": signer}, f"person:{signer}"
    )


def _forged_pass(world, forger, gate="C6", **changes):
    last = next(
        json.loads(str(row["body"]))
        for row in reversed(forger.rows())
        if row["kind"] == "gate" and row["subject"] == gate
    )
    last |= {"state": "passed", **changes}
    return forger.append("gate", gate, last, "consistency:bo-agent")


def _forged_evidence(world, forger, actor, side="baseline", tool="run_compare"):
    record = world.today.sides[side].record
    evidence = world.evidence(tool, "batch", sides=[record])
    forger.rewrite(lambda rows: [row.update(actor=actor) for row in rows if row["subject"] == evidence.id])
    return next(row["seq"] for row in forger.rows() if row["subject"] == evidence.id)


def _again(f, kind):
    row = f.last(f.rows(), kind)
    return f.append(kind, row["subject"], json.loads(str(row["body"])), row["actor"])


APPENDED: dict[str, tuple[Callable[..., int], str]] = {
    "a reviewer's vote once more": (lambda w, f, a: _again(f, "signature"), "signature_forged"),
    "a vote with a key of nobody, in a reviewer's name": (lambda w, f, a: _forged_vote(w, f, a), "signature_forged"),
    "a vote with a key of nobody, in its own name": (
        lambda w, f, a: _forged_vote(w, f, a, signer="mallory"),
        "signature_forged",
    ),
    "a vote by a runner": (lambda w, f, a: _forged_vote(w, f, a, signer="runner:ci", key="runner"), "signature_forged"),
    "a reviewer's key in another reviewer's name": (
        lambda w, f, a: _forged_vote(w, f, a, signer="sam", key="rosa"),
        "signature_forged",
    ),
    "a vote about another history": (
        lambda w, f, a: _forged_vote(w, f, a, key="rosa", head=HeadRef(seq=3, hash="0" * 64)),
        "signature_forged",
    ),
    "a vote about a history yet to come": (
        lambda w, f, a: _forged_vote(w, f, a, key="rosa", head=HeadRef(seq=9999, hash="0" * 64)),
        "signature_forged",
    ),
    "a vote under another reviewer set": (
        lambda w, f, a: _forged_vote(w, f, a, key="rosa", reviewers="0" * 64),
        "signature_forged",
    ),
    "a vote whose digest is of another subject": (
        lambda w, f, a: _forged_vote(w, f, a, key="rosa", subject_digest="0" * 64),
        "signature_forged",
    ),
    "a signature row without a decision": (
        lambda w, f, a: f.append(
            "signature", "C1", {"message": "yes", "signature": "x", "signer": "rosa"}, "person:rosa"
        ),
        "signature_malformed",
    ),
    "a reviewer set without a signature": (
        lambda w, f, a: f.append(
            "reviewers", "reviewers", {"allowed_signers": a["reviewers"], "change": None}, "person:rosa"
        ),
        "reviewers_forged",
    ),
    "a second founding set": (
        lambda w, f, a: f.append(
            "reviewers", "reviewers", {"allowed_signers": "eve ssh-ed25519 AAAAAAAAAAAAAAAAAAAAAAAA\n"}, "person:eve"
        ),
        "reviewers_forged",
    ),
    "a reviewer set with a forged signature": (
        lambda w, f, a: f.append(
            "reviewers",
            "reviewers",
            {"allowed_signers": a["reviewers"], "change": {"message": "{}", "signature": "x", "signer": "rosa"}},
            "person:rosa",
        ),
        "reviewers_forged",
    ),
    "a pass without the evidence": (lambda w, f, a: _forged_pass(w, f), "submission_forged"),
    "a pass of a locked gate": (
        lambda w, f, a: f.append(
            "gate",
            "C10",
            {**json.loads(str(f.last(f.rows(), "gate", gate="C5")["body"])), "gate": "C10", "state": "passed"},
            "consistency:x",
        ),
        "submission_forged",
    ),
    "a pass that nobody may submit": (
        lambda w, f, a: f.append(
            "gate", "C5", json.loads(str(f.last(f.rows(), "gate", gate="C5")["body"])), "observer:x"
        ),
        "submission_forged",
    ),
    "a gate row that holds nothing": (
        lambda w, f, a: f.append("gate", "C5", {"state": "passed"}, "consistency:x"),
        "submission_malformed",
    ),
    "a gate that does not exist": (
        lambda w, f, a: f.append("gate", "C11", {"state": "passed"}, "consistency:x"),
        "submission_malformed",
    ),
    "a baseline without a manifest": (
        lambda w, f, a: f.append("baseline", "version 2", {"manifest": {}}, "baseline:x"),
        "baseline_forged",
    ),
    "the frozen baseline proposed again under another agent": (
        lambda w, f, a: f.append(
            "baseline", "version 2", json.loads(str(f.last(f.rows(), "baseline")["body"])), "consistency:x"
        ),
        "baseline_forged",
    ),
    "a token whose role is changed": (
        lambda w, f, a: f.append(
            "token",
            "looker",
            {**json.loads(str(f.last(f.rows(), "token")["body"])), "role": "consistency", "revoked": False},
            "person:x",
        ),
        "token_forged",
    ),
    "a revoked token is brought back": (
        lambda w, f, a: f.append(
            "token", "looker", {**json.loads(str(f.last(f.rows(), "token")["body"])), "revoked": False}, "person:x"
        ),
        "token_forged",
    ),
    "a token that is revoked without having been added": (
        lambda w, f, a: f.append(
            "token", "x", {"name": "x", "role": "observer", "digest": "1" * 64, "revoked": True}, "person:x"
        ),
        "token_forged",
    ),
    "a token row that holds nothing": (lambda w, f, a: f.append("token", "x", {}, "person:x"), "token_forged"),
    "an import row that holds nothing": (lambda w, f, a: f.append("import", "x", {}, "person:x"), "import_forged"),
    "an observer's evidence": (lambda w, f, a: _forged_evidence(w, f, "observer:x", "rollout"), "role_refused"),
    "the baseline agent's evidence about the trainer": (
        lambda w, f, a: _forged_evidence(w, f, "baseline:x", "trainer"),
        "role_refused",
    ),
    "the baseline agent's evidence about the rollout": (
        lambda w, f, a: _forged_evidence(w, f, "baseline:x", "rollout"),
        "role_refused",
    ),
    "the consistency agent's comparison of the frozen baseline": (
        lambda w, f, a: _forged_evidence(w, f, "consistency:x", "baseline"),
        "role_refused",
    ),
    "evidence that says it was imported": (
        lambda w, f, a: _forged_evidence(w, f, "import:runner:ci", "rollout"),
        "import_forged",
    ),
}


@pytest.mark.parametrize("name", APPENDED)
@pytest.mark.attack
def test_an_appended_row_is_named_although_the_pinned_head_still_holds(name, world, forger, attacked):
    make, code = APPENDED[name]
    seq = make(world, forger, attacked)
    found = verify(attacked["path"], head=attacked["head"], reviewers=attacked["reviewers"])
    assert (code, seq) in {(lie.code, lie.seq) for lie in found.problems}, [lie.message for lie in found.problems]


@pytest.mark.parametrize(
    "name", [name for name in APPENDED if "vote" in name or "key" in name or "set" in name or "signature" in name]
)
@pytest.mark.attack
def test_a_forged_signature_changes_no_gate_and_no_reviewer(name, world, forger, attacked):
    before, people = world.states(), world.view.reviewers.current
    APPENDED[name][0](world, forger, attacked)
    assert (world.states(), world.view.reviewers.current) == (before, people)


@pytest.mark.attack
def test_consistency_running_a_baseline_nobody_froze_is_evident(new_world, tmp_path, signers):
    fresh = new_world(tmp_path / "fresh.db", signers)
    seq = _forged_evidence(fresh, fresh.forger, "consistency:x", "baseline")
    assert [(lie.code, lie.seq) for lie in verify(fresh.store.ledger.path, reviewers=signers).problems] == [
        ("role_refused", seq)
    ]


@pytest.mark.attack
def test_an_old_capture_recorded_again_is_evident(world, signers):
    reference = world.store.artifacts.put_bytes(
        b'{"computation": "one"}', name="rollout-capture.json", media_type="application/json"
    )
    world.evidence("run_compare", "batch", artifacts=(reference,))
    again = world.evidence("run_compare", "batch", artifacts=(reference,))
    found = verify(world.store.ledger.path, reviewers=signers)
    assert [lie.code for lie in found.problems] == ["replayed"]
    assert world.view.source.by_id(again.id).seq == found.first.seq


@pytest.mark.attack
def test_a_swapped_artifact_is_evident(world, signers):
    reference = world.store.artifacts.put_bytes(b"figures", name="figures.txt", media_type="text/plain")
    world.evidence("run_compare", "batch", artifacts=(reference,))
    path = world.store.artifacts.path(reference.digest)
    path.chmod(0o644)
    path.write_bytes(b"better!")
    assert [lie.code for lie in verify(world.store.ledger.path, reviewers=signers).problems] == ["artifact_changed"]


@pytest.mark.attack
def test_a_dropped_trigger_is_evident(world, forger, signers):
    with closing(sqlite3.connect(forger.path)) as connection:
        connection.execute("DROP TRIGGER entries_no_update")
        connection.commit()
    assert [lie.code for lie in verify(forger.path, reviewers=signers).problems] == ["guard_changed"]


@pytest.mark.attack
def test_another_ledger_in_its_place_is_evident(new_world, tmp_path, signers):
    forged = new_world(tmp_path / "other.db", signers.replace("rosa", "eve"))
    found = verify(forged.store.ledger.path, reviewers=signers)
    assert [(lie.code, lie.seq) for lie in found.problems] == [("reviewers_differ", 1)]
    assert "eve with a key that is not pinned" in found.problems[0].message


@pytest.mark.attack
def test_tampering_with_sqlite_through_its_own_shell_is_refused_by_the_guards(world):
    with closing(sqlite3.connect(world.store.ledger.path)) as connection:
        for sql in (
            "UPDATE entries SET body = '{}'",
            "DELETE FROM entries",
            "INSERT OR REPLACE INTO entries SELECT * FROM entries",
        ):
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute(sql)


def test_ssh_keygen_itself_agrees_with_what_is_recorded(world, tmp_path, signers):
    """The signature is an ordinary SSHSIG: anybody can check it without bitgate."""
    body = next(world.store.entries(kind="signature")).body
    (tmp_path / "signers").write_text(signers, encoding="utf-8")
    (tmp_path / "sig").write_text(body["signature"], encoding="utf-8")
    command = [
        "ssh-keygen",
        "-Y",
        "verify",
        "-f",
        tmp_path / "signers",
        "-I",
        body["signer"],
        "-n",
        "bitgate",
        "-s",
        tmp_path / "sig",
    ]
    assert subprocess.run(command, input=body["message"].encode(), capture_output=True, check=False).returncode == 0
