"""People sign exactly what they were shown; nothing else becomes a vote."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from bitgate.gates import decisions, reviewers, sshsig
from bitgate.gates.errors import GateError, ReviewersRefused, SignatureRefused
from bitgate.gates.rows import Decision, pretty
from bitgate.gates.table import BY_ID
from bitgate.gates.verify import verify


@pytest.fixture
def awaiting(world):
    """C1 awaits a person."""
    world.walk("C0")
    world.meet_gate("C1")
    world.propose()
    world.submit("C1")
    assert world.state("C1") == "awaiting"
    return world


def made(world, gate="C1", choice="approve", reason="", needs=()):
    return decisions.decision_for(world.store, gate, world.today, choice, reason, needs)


def recorded(world, message, key="rosa"):
    return decisions.record(world.store, message, decisions.sshsig.sign(message, world.keys[key]), world.today)


def test_an_approval_passes_the_gate_and_names_who_and_when(awaiting):
    awaiting.vote("C1")
    (shown,) = awaiting.board["C1"].votes
    assert (awaiting.state("C1"), shown.vote.signer, shown.outdated) == ("passed", "rosa", "")


def test_a_rejection_fails_the_gate_with_its_reason_and_an_approval_of_the_same_person_replaces_it(awaiting):
    awaiting.vote("C1", "reject", "the tuning record has two knobs")
    assert awaiting.state("C1") == "failed"
    assert awaiting.missing("C1")["rejected"] == "rosa rejected it: the tuning record has two knobs"
    awaiting.vote("C1")
    assert awaiting.state("C1") == "passed"


def test_one_reviewers_rejection_stands_against_anothers_approval(awaiting):
    awaiting.vote("C1", by="sam")
    awaiting.vote("C1", "reject", "no", by="rosa")
    assert awaiting.state("C1") == "failed"


def test_a_vote_is_shown_as_outdated_when_the_evidence_changes(awaiting):
    decision = made(awaiting)
    awaiting.vote("C1")
    awaiting.changed(baseline=awaiting.side("baseline", options={"batch_invariant": False, "block_size": 64}))
    (shown,) = awaiting.board["C1"].votes
    assert shown.outdated.startswith("changed since: sides")
    with pytest.raises(SignatureRefused):
        recorded(awaiting, pretty(decision), "sam")


@pytest.mark.attack
def test_an_outdated_decision_is_refused(awaiting):
    message = pretty(made(awaiting))
    awaiting.propose(note="a better one")
    with pytest.raises(SignatureRefused, match="outdated"):
        recorded(awaiting, message)


TAMPERED = {
    "another choice": lambda text: text.replace('"approve"', '"waive"'),
    "another gate": lambda text: text.replace('"gate": "C1"', '"gate": "C10"'),
    "another criterion text": lambda text: text.replace("The baseline is tuned", "The baseline is fine"),
    "another digest": lambda text: re.sub(r'"subject_digest": "[0-9a-f]{64}"', f'"subject_digest": "{"0" * 64}"', text),
    "another head": lambda text: re.sub(r'"hash": "[0-9a-f]{64}"', f'"hash": "{"0" * 64}"', text),
    "another reviewer set": lambda text: re.sub(r'"reviewers": "[0-9a-f]{64}"', f'"reviewers": "{"0" * 64}"', text),
    "a key more": lambda text: text.replace('"kind": "decision"', '"kind": "decision",\n  "also": 1'),
    "a key twice": lambda text: text.replace('"choice": "approve"', '"choice": "reject",\n  "choice": "approve"'),
    "other spacing": lambda text: text.replace("\n", "\r\n"),
    "one line": lambda text: json.dumps(json.loads(text)),
    "another kind": lambda text: text.replace('"kind": "decision"', '"kind": "reviewers"'),
    "a future version": lambda text: text.replace('"version": 1', '"version": 2'),
    "not JSON": lambda text: "approve C1",
    "empty": lambda text: "",
    "an array": lambda text: "[]",
    "a lone surrogate": lambda text: text.replace('"reason": ""', '"reason": "\\ud800"'),
}


@pytest.mark.parametrize("name", TAMPERED)
@pytest.mark.attack
def test_a_signature_over_something_else_is_refused_even_by_the_right_key(name, awaiting):
    message = TAMPERED[name](pretty(made(awaiting)))
    head = awaiting.store.head()
    with pytest.raises(GateError):
        recorded(awaiting, message)
    assert awaiting.store.head() == head


SWAPPED = {
    "a signature of another text": lambda w, m, s: (m, decisions.sshsig.sign(m + " ", w.keys["rosa"])),
    "a signature in another namespace": lambda w, m, s: (m, _signed_in("file", m, w.keys["rosa"])),
    "a key of nobody": lambda w, m, s: (m, decisions.sshsig.sign(m, w.keys["mallory"])),
    "a runner's key": lambda w, m, s: (m, decisions.sshsig.sign(m, w.keys["runner"])),
    "no signature": lambda w, m, s: (m, ""),
    "garbage": lambda w, m, s: (m, "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"),
    "a truncated signature": lambda w, m, s: (m, s[:-60]),
    "a signature of 10 MB": lambda w, m, s: (m, s + "A" * 10_000_000),
    "the public key": lambda w, m, s: (m, w.keys["rosa"].with_suffix(".pub").read_text(encoding="utf-8")),
}


def _signed_in(namespace, message, key):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m"
        path.write_text(message, encoding="utf-8")
        subprocess.run(
            ["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", namespace, path], check=True, capture_output=True
        )
        return path.with_suffix(".sig").read_text(encoding="ascii")


@pytest.mark.parametrize("name", SWAPPED)
@pytest.mark.attack
def test_a_signature_that_does_not_hold_is_refused(name, awaiting):
    message = pretty(made(awaiting))
    good = decisions.sshsig.sign(message, awaiting.keys["rosa"])
    head = awaiting.store.head()
    with pytest.raises(SignatureRefused):
        decisions.record(awaiting.store, *SWAPPED[name](awaiting, message, good), awaiting.today)
    assert awaiting.store.head() == head


@pytest.mark.attack
def test_the_same_signature_is_taken_once(awaiting):
    message = pretty(made(awaiting))
    recorded(awaiting, message)
    with pytest.raises(SignatureRefused):
        recorded(awaiting, message)


@pytest.mark.attack
def test_a_vote_kept_back_does_not_undo_a_later_one(awaiting):
    approval = pretty(made(awaiting))
    awaiting.vote("C1", "reject", "not yet")
    with pytest.raises(SignatureRefused, match="voted on C1 after this was made"):
        recorded(awaiting, approval)


@pytest.mark.attack
def test_what_is_missing_is_not_approved_away(world):
    world.walk("C0")
    with pytest.raises(SignatureRefused, match="C1 lacks"):
        made(world, "C1")


@pytest.mark.attack
def test_a_locked_gate_is_not_opened(world):
    with pytest.raises(SignatureRefused, match="C9 is locked; C8 must pass first"):
        made(world, "C9")


@pytest.mark.parametrize("reason", ["", "   ", "\n"])
@pytest.mark.parametrize("choice", ["waive", "reject"])
def test_a_waiver_and_a_rejection_need_a_reason(world, choice, reason):
    with pytest.raises(SignatureRefused, match="needs one"):
        made(world, "C0", choice, reason)


def test_a_waiver_counts_for_what_it_names_and_stays_visible(world):
    world.walk("C6")
    world.meet_gate("C7")
    world.vote("C7", "waive", "no gradient tool yet; checked by hand in notebook 12")
    assert world.submit("C7").status.state == "passed"
    ((item, vote),) = world.board["C7"].waived
    assert (item.key, vote.decision.reason) == ("gradient", "no gradient tool yet; checked by hand in notebook 12")


@pytest.mark.attack
def test_a_waiver_of_one_thing_does_not_waive_another(world):
    world.walk("C4")
    world.vote("C5", "waive", "no trainer provenance here", needs=("provenance_trainer",))
    assert set(world.missing("C5")) == {"rollout_vs_trainer"}


@pytest.mark.attack
def test_a_waiver_of_something_that_is_not_missing_is_refused(world):
    with pytest.raises(SignatureRefused, match="C0 lacks census"):
        made(world, "C0", "waive", "because", ("layers",))


@pytest.mark.attack
def test_a_waiver_dies_with_the_identities_it_was_given_for(world):
    world.walk("C6")
    world.meet_gate("C7")
    world.vote("C7", "waive", "by hand")
    world.submit("C7")
    world.changed(trainer=world.side("trainer", engine="transformers"))
    assert world.state("C7") == "stale"
    assert world.board["C7"].waived == ()
    assert "changed since" in world.board["C7"].votes[0].outdated


@pytest.mark.attack
def test_a_waived_failure_is_waived_for_that_result_only(world):
    world.walk("C2")
    world.meet_gate("C3")
    batch = BY_ID["C3"].needs[2]
    world.meet(batch, verdict="fail")
    world.vote("C3", "waive", "a broken host; see incident 7")
    assert world.submit("C3").status.state == "passed"
    world.meet(batch, verdict="fail")
    assert world.state("C3") == "failed"


@pytest.mark.attack
def test_nobody_signs_in_a_ledger_without_reviewers(new_world, tmp_path):
    bare = new_world(tmp_path / "bare.db", "")
    bare.walk("C0")
    with pytest.raises(SignatureRefused, match="this ledger has none"):
        made(bare, "C0")
    with pytest.raises(ReviewersRefused, match="the first row or none"):
        reviewers.found(bare.store, "eve ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEuKm\n", "person:eve")


# --- the reviewer set -------------------------------------------------------------------------------------------------


def changed_set(signers, world):
    return signers + f"mallory {world.keys['mallory'].with_suffix('.pub').read_text(encoding='utf-8')}"


def test_a_reviewer_changes_the_set_by_signature(world, signers):
    message = reviewers.propose_change(world.store, changed_set(signers, world))
    reviewers.change(world.store, message, sshsig.sign(message, world.keys["sam"]), "person:sam")
    assert "mallory" in reviewers.names(world.view.reviewers.current)
    assert verify(world.store.ledger.path, reviewers=changed_set(signers, world), head=world.store.head().hash).ok


@pytest.mark.parametrize("key", ["mallory", "runner"])
@pytest.mark.attack
def test_nobody_else_changes_the_set(world, signers, key):
    message = reviewers.propose_change(world.store, changed_set(signers, world))
    with pytest.raises(SignatureRefused):
        reviewers.change(world.store, message, sshsig.sign(message, world.keys[key]), "person:x")
    assert "mallory" not in world.view.reviewers.current


@pytest.mark.attack
def test_a_change_signed_for_an_older_set_is_refused(world, signers):
    stale = reviewers.propose_change(world.store, changed_set(signers, world))
    only_rosa = signers.splitlines()[0] + "\n"
    message = reviewers.propose_change(world.store, only_rosa)
    reviewers.change(world.store, message, sshsig.sign(message, world.keys["rosa"]), "person:rosa")
    with pytest.raises(SignatureRefused):
        reviewers.change(world.store, stale, sshsig.sign(stale, world.keys["rosa"]), "person:rosa")


@pytest.mark.attack
def test_a_removed_reviewer_votes_no_more_but_past_votes_stand(awaiting, signers):
    awaiting.vote("C1", by="sam")
    message = reviewers.propose_change(awaiting.store, signers.splitlines()[0] + "\n")
    reviewers.change(awaiting.store, message, sshsig.sign(message, awaiting.keys["rosa"]), "person:rosa")
    assert awaiting.state("C1") == "passed"
    with pytest.raises(SignatureRefused, match="none of the reviewers"):
        awaiting.vote("C1", "reject", "sour", by="sam")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nobody\n",
        "runner:ci ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEuKm\n",
        "* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEuKm\n",
        "rosa,eve ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEuKm\n",
        "rosa cert-authority ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEuKm\n",
        'rosa namespaces="*" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEuKm\n',
        'rosa valid-after="20200101" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEuKm\n',
        "!rosa ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEuKm\n",
        "rosa ssh-dss AAAAB3NzaC1kc3MAAACBAP\n",
        "rosa ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEuKm\neve ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEuKm\n",
        "rosa\n",
        "a" * 300_000,
    ],
)
@pytest.mark.attack
def test_a_reviewer_set_that_could_be_read_in_two_ways_is_refused(text):
    with pytest.raises(ReviewersRefused):
        reviewers.checked(text)


@pytest.mark.attack
def test_a_hostile_reason_is_kept_as_text(awaiting):
    hostile = '</script><img src=x onerror=alert(1)>\u202e"},{'
    awaiting.vote("C1", "reject", hostile)
    assert awaiting.board["C1"].votes[0].vote.decision.reason == hostile


def test_the_decision_shows_the_manifest_digest_it_freezes(awaiting):
    decision = made(awaiting)
    assert decision.subject.baseline == awaiting.view.proposals[-1].manifest.digest
    assert Decision.model_validate_json(pretty(decision)) == decision
