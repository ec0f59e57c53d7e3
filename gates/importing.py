"""Takes an evidence bundle in: checks that it holds together, grades it by who vouched, appends it as new rows."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3
from pydantic import ValidationError

from bitgate.gates import sshsig
from bitgate.gates.bundles import ACTOR, Bundle, BundledRow, Imported, ImportRow, Statement, evidence_of, sha256
from bitgate.gates.errors import BundleRefused, SignatureRefused
from bitgate.gates.ledger import LedgerView
from bitgate.gates.replay_index import Index
from bitgate.gates.reviewers import names
from bitgate.gates.rows import Signed, pretty
from bitgate.store.chain import row_hash
from bitgate.store.records import ArtifactRef, Evidence, Finding
from bitgate.store.schema import field as body_field
from bitgate.store.store import Store

MAX_JSON: Final = 256 * 1024**2
MAX_ROWS: Final = 100_000


@dataclass(frozen=True)
class Import:
    vouched_by: str
    """Empty when nobody vouched: then everything in it is attested."""
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True)
class _Read:
    text: str
    bundle: Bundle
    statement: str
    signature: str


def take_in(store: Store, path: Path, by: str) -> Import:
    """Appends a bundle's evidence as new rows: observed where a reviewer or runner of this ledger vouched.

    Raises:
        BundleRefused: it does not hold together, was taken in before, or is vouched for by somebody unknown here.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            read = _read(archive)
            with store.transaction():
                return _append(store, archive, read, by)
    except (zipfile.BadZipFile, OSError, KeyError) as error:
        raise BundleRefused(f"bundle: {path} is not a readable bundle: {error}") from error


def _read(archive: zipfile.ZipFile) -> _Read:
    text, statement_text = _member(archive, "bundle.json"), _member(archive, "statement.json")
    signature = _member(archive, "statement.json.sig") if "statement.json.sig" in archive.namelist() else ""
    try:
        bundle, statement = Bundle.model_validate_json(text), Statement.model_validate_json(statement_text)
    except ValidationError as error:
        raise BundleRefused(f"bundle: malformed: {error.errors()[0]['msg']} at {error.errors()[0]['loc']}") from error
    if pretty(statement) != statement_text or statement.bundle != sha256(text):
        raise BundleRefused("bundle: statement.json is not about this bundle.json.")
    if len(bundle.rows) > MAX_ROWS or statement.rows != len(bundle.rows) or statement.head != bundle.head:
        raise BundleRefused("bundle: statement.json counts other rows or another head than bundle.json holds.")
    for row in bundle.rows:
        _check_row(row)
    return _Read(text, bundle, statement_text, signature)


def _member(archive: zipfile.ZipFile, name: str) -> str:
    size = archive.getinfo(name).file_size
    if size > MAX_JSON:
        raise BundleRefused(f"bundle: {name} has {size} bytes; allowed: {MAX_JSON}.")
    try:
        return archive.read(name).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BundleRefused(f"bundle: {name} is not UTF-8.") from error


def _check_row(row: BundledRow) -> None:
    digest = row_hash(row.seq, row.at, row.kind, row.subject, row.actor, row.body.encode("utf-8"), row.prev_hash)
    if digest != row.hash:
        raise BundleRefused(
            f"bundle: row {row.seq} ({row.subject[:40]}) was edited: its content does not have its hash."
        )
    try:
        evidence = evidence_of(row)
    except ValidationError as error:
        raise BundleRefused(f"bundle: row {row.seq} holds no evidence: {error.errors()[0]['msg']}") from error
    if evidence.id != row.subject:
        raise BundleRefused(f"bundle: row {row.seq} is evidence {evidence.id[:40]} under the name {row.subject[:40]}.")


def _append(store: Store, archive: zipfile.ZipFile, read: _Read, by: str) -> Import:
    digest = sha256(read.text)
    if next(store.entries(kind="import", subject=digest), None):
        raise BundleRefused(f"bundle: {digest[:12]} was taken in before.")
    signed = _vouched(store, read)
    whole = store.artifacts.put_bytes(read.text.encode("utf-8"), "bundle.json", "application/json")
    found = tuple(_take(store, archive, row, digest, signed) for row in read.bundle.rows)
    row = ImportRow(
        statement=read.statement, signed=signed, evidence=tuple(item for item, _ in found), artifacts=(whole,)
    )
    store.append("import", digest, row.model_dump(mode="json"), by)
    return Import(signed.signer if signed else "", tuple(evidence for _, evidence in found))


def _vouched(store: Store, read: _Read) -> Signed | None:
    if not read.signature:
        return None
    in_force = LedgerView(store).reviewers.current
    try:
        signer = sshsig.find_signer(read.signature, in_force)
    except SignatureRefused as error:
        raise BundleRefused(
            f"bundle: {error} Take it in without its signature, or add `runner:NAME` to the reviewers."
        ) from error
    if failed := sshsig.verify(read.statement, read.signature, signer, in_force):
        raise BundleRefused(f"bundle: its signature does not hold: {failed}")
    return Signed(message=read.statement, signature=read.signature, signer=signer)


def _take(
    store: Store, archive: zipfile.ZipFile, row: BundledRow, bundle: str, signed: Signed | None
) -> tuple[Imported, Evidence]:
    source = evidence_of(row)
    for ref in source.artifacts:
        _put(store, archive, ref)
    actor = f"{ACTOR}:{signed.signer if signed else 'unsigned'}"
    run = store.start_run(source.tool, _request(source, row, bundle, actor), actor)
    taken = store.finish_run(run.id, "finished", finding=_finding(source, signed))
    assert taken is not None
    digest = store.ledger.rows("SELECT hash FROM entries WHERE subject = :id AND kind = 'evidence'", {"id": taken.id})[
        0
    ][0]
    return Imported(source=source.id, id=taken.id, row=digest), taken


def _request(source: Evidence, row: BundledRow, bundle: str, actor: str) -> dict[str, object]:
    where = {"bundle": bundle, "evidence": source.id, "row": row.hash, "seq": row.seq, "actor": row.actor}
    return {
        **source.request,
        "imported": {**where, "finished_at": source.finished_at, "grade": source.grade, "by": actor},
    }


def _finding(source: Evidence, signed: Signed | None) -> Finding:
    finding = Finding.model_validate({name: getattr(source, name) for name in Finding.model_fields})
    return finding if signed else finding.model_copy(update={"grade": "attested"})


def _put(store: Store, archive: zipfile.ZipFile, ref: ArtifactRef) -> None:
    name = f"artifacts/{ref.digest}"
    if name not in archive.namelist():
        raise BundleRefused(f"bundle: artifact {ref.name[:60]!r} ({ref.digest[:12]}) is not in it.")
    if archive.getinfo(name).file_size != ref.size:
        raise BundleRefused(f"bundle: artifact {ref.name[:60]!r} has another size than its evidence says.")
    data = archive.read(name)
    if blake3(data).hexdigest() != ref.digest:
        raise BundleRefused(f"bundle: artifact {ref.name[:60]!r} was swapped: its bytes do not have its digest.")
    store.artifacts.put_bytes(data, ref.name, ref.media_type)


def import_lies(index: Index) -> Iterator[tuple[int, str]]:
    """Imported evidence must be listed by an import row, and be observed only where that row's signature holds."""
    listed: dict[str, tuple[ImportRow, str]] = {}
    for entry in index.entries("import"):
        try:
            row = ImportRow.model_validate(entry.body)
        except ValidationError:
            yield entry.seq, "an import row that holds no import"
            continue
        problem = _import_problem(row, index.reviewers.at(entry.seq))
        if problem:
            yield entry.seq, problem
        listed.update({item.id: (row, problem) for item in row.evidence})
    for seq, evidence_id, grade in index.connection.execute(_IMPORTED):
        known = listed.get(evidence_id)
        if known is None:
            yield seq, "evidence that says it was imported, in no import row"
        elif grade == "observed" and (known[0].signed is None or known[1]):
            yield seq, "imported as observed although nobody vouched for its bundle"


_IMPORTED: Final = f"""SELECT seq, subject, {body_field("grade")} FROM entries
  WHERE kind = 'evidence' AND actor LIKE '{ACTOR}:%' ORDER BY seq"""


def _import_problem(row: ImportRow, in_force: str) -> str:
    if row.signed is None:
        return ""
    if row.signed.message != row.statement:
        return "the signature is over another bundle"
    if row.signed.signer not in names(in_force):
        return f"{row.signed.signer} was nobody who may vouch"
    failed = sshsig.verify(row.signed.message, row.signed.signature, row.signed.signer, in_force)
    return f"signature: {failed}" if failed else ""
