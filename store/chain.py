"""The hash chain: each row's SHA-256 covers its content and the hash of the row before.

A row's hash is the SHA-256 of the canonical JSON object
`{"actor":…,"at":…,"body":{…},"kind":…,"prev_hash":…,"seq":…,"subject":…}`, with `body` exactly as it is stored, so that
anybody can check a ledger with `sqlite3` and `sha256sum`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from typing import Any

GENESIS = "0" * 64


@dataclass(frozen=True)
class Head:
    """Where the chain ends. Pin `hash` outside (git, CI) to expose a rewritten history."""

    seq: int
    hash: str


@dataclass(frozen=True)
class Entry:
    """One row of the ledger."""

    seq: int
    at: str
    kind: str
    subject: str
    actor: str
    body: dict[str, Any]
    prev_hash: str
    hash: str


def row_hash(seq: int, at: str, kind: str, subject: str, actor: str, body: bytes, prev_hash: str) -> str:
    before = f'{{"actor":{quoted(actor)},"at":{quoted(at)},"body":'
    after = f',"kind":{quoted(kind)},"prev_hash":{quoted(prev_hash)},"seq":{seq},"subject":{quoted(subject)}}}'
    return hashlib.sha256(b"".join((before.encode("utf-8"), body, after.encode("utf-8")))).hexdigest()
