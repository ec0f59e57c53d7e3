"""The append-only chain: transactions, appending, reading rows, the head."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bitgate.store.canonical import canonical, clean_label
from bitgate.store.chain import GENESIS, Entry, Head, row_hash
from bitgate.store.errors import Refused, translated
from bitgate.store.ids import now
from bitgate.store.kinds import Kind, kind_for
from bitgate.store.opening import immediate, prepare

_COLUMNS = "seq, at, kind, subject, actor, body, prev_hash, hash"
_PAGE = 500


class Ledger:
    """Rows of the chain. Usable from any thread: each gets its own connection."""

    def __init__(self, path: Path, clock: Callable[[], str] = now) -> None:
        self.path = path
        self.clock = clock
        self._connections = prepare(path)

    def close(self) -> None:
        self._connections.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Reads and appends inside are one: nobody else writes between them, and an error undoes them all."""
        with immediate(self._connections.get(), self.path):
            yield

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """The rows of a SELECT, as tuples."""
        with translated(self.path):
            return self._connections.get().execute(sql, parameters or {}).fetchall()

    def head(self) -> Head:
        found = self.rows("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1")
        return Head(*found[0]) if found else Head(0, GENESIS)

    def append(self, kind: str, subject: str, body: Mapping[str, Any], actor: str, *, through: str = "append") -> Entry:
        """Add one row. `kind` is of the table in kinds.py.

        Raises: Refused, with nothing written.
        """
        text = _checked_body(kind_for(kind, through=through), body)
        subject, actor = clean_label("subject", subject), clean_label("actor", actor)
        with self.transaction():
            return self._link(kind, subject, actor, text)

    def _link(self, kind: str, subject: str, actor: str, body: str) -> Entry:
        head, at = self.head(), self.clock()
        seq = head.seq + 1
        digest = row_hash(seq, at, kind, subject, actor, body.encode("utf-8"), head.hash)
        row = (seq, at, kind, subject, actor, body, head.hash, digest)
        with translated(self.path):
            self._connections.get().execute(f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return _entry(row)

    def entries(self, kind: str | None = None, subject: str | None = None, after_seq: int = 0) -> Iterator[Entry]:
        """Rows in the order of the chain, read in pages so that no read lock is held between them."""
        conditions = ["seq > :after"]
        conditions += ["kind = :kind"] if kind is not None else []
        conditions += ["subject = :subject"] if subject is not None else []
        sql = f"SELECT {_COLUMNS} FROM entries WHERE {' AND '.join(conditions)} ORDER BY seq LIMIT {_PAGE}"
        while page := self.rows(sql, {"after": after_seq, "kind": kind, "subject": subject}):
            yield from map(_entry, page)
            after_seq = page[-1][0]


def _entry(row: tuple[Any, ...]) -> Entry:
    seq, at, kind, subject, actor, body, prev_hash, digest = row
    return Entry(seq, at, kind, subject, actor, json.loads(body), prev_hash, digest)


def _checked_body(kind: Kind, body: Mapping[str, Any]) -> str:
    text = canonical(body)
    if kind.body is not None:
        try:
            kind.body.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(map(str, ("body", *first["loc"])))
            raise Refused(
                "bad_body", f"{where}: {first['msg']}; a {kind.name!r} row holds {kind.body.__name__}"
            ) from None
    return text
