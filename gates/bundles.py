"""Evidence bundles: what one ledger hands to another, attributed and graded, never merged into the chain's past.

A bundle is a zip of `bundle.json` (rows as the other chain holds them), `statement.json` (what is vouched for: the
digest of bundle.json and the chain's head), `statement.json.sig` when somebody vouched, and `artifacts/DIGEST`.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from bitgate.gates import sshsig
from bitgate.gates.errors import BundleRefused
from bitgate.gates.rows import HeadRef, Hex64, Signed, pretty
from bitgate.store.records import ArtifactRef, Evidence, Record
from bitgate.store.store import Store

ACTOR: Final = "import"
"""What the actor of an imported row begins with."""


class BundledRow(Record):
    """An evidence row as the other chain holds it; `body` is the canonical text that was hashed."""

    seq: int
    at: str
    kind: Literal["evidence"] = "evidence"
    subject: str
    actor: str
    body: str
    prev_hash: Hex64
    hash: Hex64


class Bundle(Record):
    version: Literal[1] = 1
    head: HeadRef
    rows: tuple[BundledRow, ...]


class Statement(Record):
    """What is signed when somebody vouches for a bundle."""

    kind: Literal["bundle"] = "bundle"
    version: Literal[1] = 1
    bundle: Hex64
    head: HeadRef
    rows: int


class Imported(Record):
    """One piece of evidence that came in."""

    source: str
    id: str
    row: Hex64


class ImportRow(Record):
    """kind `import`."""

    statement: str
    signed: Signed | None = None
    evidence: tuple[Imported, ...]
    artifacts: tuple[ArtifactRef, ...]


def export(store: Store, out: Path, evidence_ids: Sequence[str], key: Path | None = None) -> Statement:
    """Writes the bundle of these pieces of evidence with their artifacts; `key` vouches for it.

    Raises:
        BundleRefused: an id is not in the ledger, or there is none.
    """
    head = store.head()
    rows = tuple(_row(store, evidence_id) for evidence_id in dict.fromkeys(evidence_ids))
    if not rows:
        raise BundleRefused("evidence: got none; name ids, a gate, or --all.")
    text = pretty(Bundle(head=HeadRef(seq=head.seq, hash=head.hash), rows=rows))
    statement = Statement(bundle=sha256(text), head=HeadRef(seq=head.seq, hash=head.hash), rows=len(rows))
    signature = sshsig.sign(pretty(statement), key) if key else ""
    partial = out.with_name(out.name + ".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bundle.json", text)
        archive.writestr("statement.json", pretty(statement))
        if signature:
            archive.writestr("statement.json.sig", signature)
        for digest in sorted({ref.digest for row in rows for ref in evidence_of(row).artifacts}):
            archive.write(store.artifacts.path(digest), f"artifacts/{digest}")
    partial.replace(out)
    return statement


def _row(store: Store, evidence_id: str) -> BundledRow:
    sql = "SELECT seq, at, subject, actor, body, prev_hash, hash FROM entries WHERE subject = :id AND kind = 'evidence'"
    found = store.ledger.rows(sql, {"id": evidence_id})
    if not found:
        raise BundleRefused(f"evidence: no {evidence_id[:60]!r} in this ledger; `bitgate evidence` lists it.")
    seq, at, subject, actor, body, prev_hash, digest = found[0]
    return BundledRow(seq=seq, at=at, subject=subject, actor=actor, body=body, prev_hash=prev_hash, hash=digest)


def evidence_of(row: BundledRow) -> Evidence:
    return Evidence.model_validate_json(row.body)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
