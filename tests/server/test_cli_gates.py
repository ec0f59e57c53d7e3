"""The command line of gates: the board, decisions, reviewers, tokens, bundles, reports, and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from gate_world import new_world, signers, ssh_keys

from bitgate.gates import sshsig
from bitgate.gates.report import HEADINGS
from bitgate.gates.table import BY_ID
from bitgate.server.cli import cli

__all__ = ["new_world", "signers", "ssh_keys"]


@pytest.fixture
def world(new_world: Callable[..., Any], tmp_path: Path, signers: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project whose today is the world's."""
    (tmp_path / "bitgate.toml").write_text("[policy]\nupdates_per_step = 1\n", encoding="utf-8")
    made = new_world(tmp_path / ".bitgate" / "ledger.db", signers)
    monkeypatch.setattr("bitgate.server.gate_today.today", lambda project, store: made.today)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return made


@pytest.fixture
def run(world: Any, tmp_path: Path) -> Callable[..., Result]:
    def go(*words: object) -> Result:
        return CliRunner().invoke(cli, ["--project", str(tmp_path), *map(str, words)], standalone_mode=False)

    return go


def code(result: Result) -> int:
    error = result.exception
    return error.code if isinstance(error, SystemExit) else (0 if error is None else getattr(error, "exit_code", 1))


@pytest.mark.parametrize(
    ("require", "expected"),
    [("C0", 0), ("C0,C1,C2", 0), ("C3", 14), ("C0,C3", 14), ("C4", 14), (None, 0)],
)
def test_ci_gates_on_the_exit_code(world, run, require, expected):
    world.walk("C2")
    result = run("gates", *(["--require", require] if require else []))
    assert code(result) == expected
    assert "C0  passed" in result.output


def test_a_failed_gate_is_exit_10_and_a_stale_one_14(world, run):
    world.walk("C3")
    world.changed(rollout=world.other_rollout)
    assert code(run("gates", "--require", "C3")) == 14
    world.meet_gate("C3", verdict="fail")
    assert code(run("gates", "--require", "C3")) == 10


def test_a_waiver_counts_unless_it_is_told_not_to(world, run):
    world.walk("C4")
    world.meet_gate("C5", "rollout_vs_trainer")
    world.meet(BY_ID["C5"].needs[2], grade="attested")
    world.vote("C5", "waive", "captures of the real trainer; looked at by hand")
    world.submit("C5")
    assert code(run("gates", "--require", "C5")) == 0
    assert code(run("gates", "--require", "C5", "--no-waivers")) == 14


def test_an_unknown_gate_is_wrong_usage(run):
    assert code(run("gates", "--require", "C11")) == 2
    assert code(run("gates", "D1")) == 2


def test_the_board_becomes_a_github_steps_summary(world, run, tmp_path, monkeypatch):
    world.walk("C0")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    run("gates")
    assert "| C0 | Scope | ✅ passed | nothing; it holds |" in (tmp_path / "summary.md").read_text(encoding="utf-8")


def test_the_board_as_json_has_every_gate(world, run):
    assert [item["gate"] for item in json.loads(run("gates", "--json").output)["gates"]] == [f"C{n}" for n in range(11)]


def test_a_decision_is_printed_signed_elsewhere_and_taken_in(world, run, tmp_path):
    world.walk("C0")
    world.meet_gate("C1")
    world.propose()
    text = run("decision", "C1").output
    (tmp_path / "d.json").write_text(text, encoding="utf-8")
    (tmp_path / "d.json.sig").write_text(sshsig.sign(text, world.keys["rosa"]), encoding="utf-8")
    assert "rosa signed: approve C1" in run("sign", tmp_path / "d.json").stderr
    assert world.state("C1") == "passed"


def test_a_key_signs_at_once(world, run):
    world.walk("C0")
    run("decision", "C0", "--reject", "--reason", "too wide", "--key", world.keys["sam"])
    assert world.state("C0") == "failed"


def test_what_cannot_be_approved_is_wrong_usage_and_says_why(world, run):
    result = run("decision", "C1")
    assert code(result) == 2 and "C1 lacks" in str(result.exception)


def test_a_waiver_needs_its_reason(world, run):
    assert code(run("waive", "C0")) == 2
    assert json.loads(run("waive", "C0", "--reason", "a small team").output)["choice"] == "waive"


def test_reviewers_are_shown_and_changed_by_signature(world, run, tmp_path, signers):
    assert "rosa" in run("reviewers").output
    (tmp_path / "new").write_text(signers.splitlines()[0] + "\n", encoding="utf-8")
    assert code(run("reviewers", tmp_path / "new")) == 2
    (tmp_path / "c.json").write_text(run("reviewers", "--change", tmp_path / "new").output, encoding="utf-8")
    run("sign", tmp_path / "c.json", "--key", world.keys["sam"])
    assert "sam" not in run("reviewers").output


def test_tokens_are_added_listed_and_revoked(world, run):
    token = run("token", "add", "nightly", "--role", "consistency").output.strip()
    assert token.startswith("bg_")
    assert "nightly" in run("token", "list").output and token not in run("token", "list").output
    run("token", "revoke", "nightly")
    assert "revoked" in run("token", "list").output


def test_evidence_goes_out_and_comes_in_attested_or_vouched_for(world, run, tmp_path, new_world, signers):
    found = world.meet_gate("C0")["census"]
    run("export", tmp_path / "b.zip", "--evidence", found.id, "--key", world.keys["runner"])
    world.meet_gate("C0")
    run("export", tmp_path / "c.zip", "--gate", "C0")
    result = run("import", tmp_path / "b.zip")
    assert "vouched for by runner:ci" in result.stderr and "observed" in result.output
    assert "attested" in run("import", tmp_path / "c.zip").output


def test_the_report_is_markdown_with_the_templates_headings_and_inert_text(world, run):
    world.walk("C1")
    world.vote("C0", "reject", "@everyone <script>alert(1)</script> | `x` [y](javascript:z)")
    text = run("export", "--report").output
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(HEADINGS)
    template = Path(__file__).parents[2] / "skills/train-inference-consistency/references/report-template.md"
    named = [line[3:] for line in template.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    assert named == list(HEADINGS)
    assert "<script>" not in text and " @everyone" not in text and "](javascript" not in text


def test_each_pass_has_an_in_toto_statement(world, run, tmp_path):
    world.walk("C1")
    run("export", "--statements", tmp_path / "out")
    body = json.loads((tmp_path / "out" / "C1.intoto.json").read_text(encoding="utf-8"))
    assert body["_type"] == "https://in-toto.io/Statement/v1"
    assert body["predicateType"] == "https://slsa.dev/verification_summary/v1"
    assert all(len(subject["digest"]["sha256"]) == 64 for subject in body["subject"])
    assert (body["predicate"]["verificationResult"], body["predicate"]["bitgate"]["signedBy"]) == ("PASSED", ["rosa"])
    assert len(body["predicate"]["inputAttestations"]) == 3
    assert not (tmp_path / "out" / "C3.intoto.json").exists()


def test_verify_takes_the_pinned_head_and_reviewers(world, run, tmp_path, signers):
    world.walk("C1")
    (tmp_path / "pinned").write_text(signers, encoding="utf-8")
    (tmp_path / "others").write_text(signers.replace("rosa", "eve"), encoding="utf-8")
    head = world.store.head().hash
    good = run("verify", "--head", head, "--reviewers", tmp_path / "pinned")
    assert code(good) == 0 and "1 votes" in good.output
    bad = run("verify", "--reviewers", tmp_path / "others")
    assert code(bad) == 1 and "row 1" in bad.output
    assert code(run("verify", "--head", "f" * 64)) == 1
