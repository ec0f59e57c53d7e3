"""Evidence travels in bundles: attributed, graded by who vouched, never merged into the chain's past."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace

import pytest

from bitgate.gates import bundles, importing
from bitgate.gates.errors import BundleRefused, GateError
from bitgate.gates.table import BY_ID
from bitgate.gates.verify import verify


@pytest.fixture
def ci(new_world, tmp_path, signers):
    """A CI runner's ledger, with one piece of evidence that has an artifact."""
    return new_world(tmp_path / "ci" / "ledger.db", signers)


@pytest.fixture
def exported(ci, tmp_path):
    reference = ci.store.artifacts.put_bytes(b"rows", name="rows.csv", media_type="text/csv")
    evidence = ci.meet(BY_ID["C3"].needs[2], artifacts=(reference,))

    def export(key=None):
        bundles.export(ci.store, tmp_path / "b.zip", [evidence.id], ci.keys[key] if key else None)
        return tmp_path / "b.zip", evidence

    return export


@pytest.mark.attack
def test_unvouched_evidence_comes_in_as_attested_and_says_where_it_is_from(world, exported):
    path, source = exported()
    head = world.store.head()
    (taken,) = importing.take_in(world.store, path, "person:rosa").evidence
    assert (taken.grade, taken.verdict, taken.figures) == ("attested", source.verdict, source.figures)
    assert taken.request["imported"]["evidence"] == source.id
    assert taken.id != source.id
    assert world.view.source.by_id(taken.id).seq > head.seq
    assert world.view.source.by_id(taken.id).actor == "import:unsigned"


@pytest.mark.parametrize("key", ["runner", "rosa"])
def test_vouched_evidence_keeps_its_grade_and_counts(world, exported, key):
    path, _ = exported(key)
    found = importing.take_in(world.store, path, "person:rosa")
    assert found.vouched_by == {"runner": "runner:ci", "rosa": "rosa"}[key]
    assert found.evidence[0].grade == "observed"
    world.walk("C2")
    assert "batch" not in world.missing("C3")


@pytest.mark.attack
def test_a_bundle_vouched_for_by_a_stranger_is_refused(world, exported):
    path, _ = exported("mallory")
    with pytest.raises(BundleRefused, match="none of the reviewers"):
        importing.take_in(world.store, path, "person:rosa")


@pytest.mark.attack
def test_a_bundle_comes_in_once(world, exported):
    path, _ = exported()
    importing.take_in(world.store, path, "person:rosa")
    with pytest.raises(BundleRefused, match="was taken in before"):
        importing.take_in(world.store, path, "person:rosa")


def test_a_ledger_with_an_import_verifies(world, exported, signers):
    path, _ = exported("runner")
    importing.take_in(world.store, path, "person:rosa")
    assert verify(world.store.ledger.path, reviewers=signers).problems == []


@pytest.mark.attack
def test_imported_provenance_is_as_old_as_it_was_where_it_came_from(world, ci, tmp_path):
    old = ci.meet(BY_ID["C3"].needs[0])
    bundles.export(ci.store, tmp_path / "p.zip", [old.id], ci.keys["runner"])
    world.walk("C2")
    world.clock.at = world.clock.at.replace(year=2027)
    world.today = replace(world.today, now="2027-11-30T12:00:00.000Z")
    importing.take_in(world.store, tmp_path / "p.zip", "person:rosa")
    assert "older than 24 hours" in world.missing("C3")["provenance_rollout"]


def rezipped(path, change, drop=()):
    """The bundle with members changed: `change` maps names to functions of their bytes."""
    out = path.with_suffix(".forged.zip")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            if name in drop:
                continue
            data = source.read(name)
            key = "artifact" if name.startswith("artifacts/") else name
            target.writestr(name, change.get(key, lambda d: d)(data))
    return out


def _edit_body(data, change):
    body = json.loads(data)
    row = json.loads(body["rows"][0]["body"])
    change(row)
    body["rows"][0]["body"] = json.dumps(row, sort_keys=True, separators=(",", ":"))
    return (json.dumps(body, sort_keys=True, indent=2) + "\n").encode()


def _restate(path, change):
    """Edits bundle.json and makes statement.json agree with it again."""
    forged = rezipped(path, {"bundle.json": change})
    with zipfile.ZipFile(forged) as archive:
        text, statement = archive.read("bundle.json").decode(), json.loads(archive.read("statement.json"))
    statement["bundle"] = bundles.sha256(text)
    forged2 = rezipped(
        forged, {"statement.json": lambda d: (json.dumps(statement, sort_keys=True, indent=2) + "\n").encode()}
    )
    return forged2


FORGED = {
    "the verdict": lambda p: rezipped(p, {"bundle.json": lambda d: d.replace(b'\\"pass\\"', b'\\"fail\\"')}),
    "the verdict, with the statement": lambda p: _restate(
        p, lambda d: _edit_body(d, lambda r: r.update(verdict="fail"))
    ),
    "the grade, with the statement": lambda p: _restate(
        p, lambda d: _edit_body(d, lambda r: r.update(grade="attested"))
    ),
    "an artifact": lambda p: rezipped(p, {"artifact": lambda d: b"ROWS"}),
    "an artifact's length": lambda p: rezipped(p, {"artifact": lambda d: d + b"!"}),
    "an artifact left out": lambda p: rezipped(
        p, {}, drop=[n for n in zipfile.ZipFile(p).namelist() if n.startswith("artifacts/")]
    ),
    "the statement": lambda p: rezipped(p, {"statement.json": lambda d: d.replace(b'"rows": 1', b'"rows": 2')}),
    "the statement's spacing": lambda p: rezipped(p, {"statement.json": lambda d: d + b" "}),
    "no statement": lambda p: rezipped(p, {}, drop=["statement.json"]),
    "no bundle": lambda p: rezipped(p, {}, drop=["bundle.json"]),
    "not UTF-8": lambda p: rezipped(p, {"bundle.json": lambda d: b"\xff\xfe"}),
    "not JSON": lambda p: rezipped(p, {"bundle.json": lambda d: b"{"}),
    "another version": lambda p: rezipped(p, {"bundle.json": lambda d: d.replace(b'"version": 1', b'"version": 9')}),
}


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("key", [None, "runner"])
@pytest.mark.attack
def test_a_forged_bundle_is_refused_and_leaves_no_row(world, exported, name, key):
    path, _ = exported(key)
    head = world.store.head()
    with pytest.raises(GateError):
        importing.take_in(world.store, FORGED[name](path), "person:rosa")
    assert world.store.head() == head


@pytest.mark.attack
def test_a_file_that_is_no_bundle_is_refused(world, tmp_path):
    for data in (b"", b"PK\x03\x04garbage", b"{}"):
        (tmp_path / "x.zip").write_bytes(data)
        with pytest.raises(BundleRefused):
            importing.take_in(world.store, tmp_path / "x.zip", "person:rosa")


def test_an_export_of_something_that_is_not_there_names_it(world, tmp_path):
    with pytest.raises(BundleRefused, match="no 'ev_x' in this ledger"):
        bundles.export(world.store, tmp_path / "b.zip", ["ev_x"])
    assert not (tmp_path / "b.zip").exists()


def test_imported_evidence_of_a_ledger_whose_files_were_copied_verifies(world, exported, tmp_path, signers):
    path, _ = exported()
    importing.take_in(world.store, path, "person:rosa")
    world.store.ledger.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copytree(
        world.store.ledger.path.parent,
        tmp_path / "elsewhere",
        ignore=shutil.ignore_patterns("ci", "*.zip", "elsewhere"),
    )
    assert verify(tmp_path / "elsewhere" / "ledger.db", reviewers=signers).ok
