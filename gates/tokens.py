"""Bearer tokens of the HTTP service: each fixes a role. Shown once; the ledger keeps only a digest."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from bitgate.gates.errors import TokenRefused
from bitgate.gates.roles import PERSON, ROLES, Actor
from bitgate.gates.rows import Role, TokenRow
from bitgate.store.store import Store

PREFIX: Final = "bg_"
_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
_TOKEN: Final = re.compile(r"^bg_[a-z2-7]{52}$")


@dataclass(frozen=True)
class TokenInfo:
    name: str
    role: Role
    added_at: str
    revoked: bool


def new_token() -> str:
    """`bg_` and 256 random bits: too many to guess, so that a plain digest of it gives nothing away."""
    return PREFIX + base64.b32encode(secrets.token_bytes(32)).decode("ascii").rstrip("=").lower()


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8")).hexdigest()


def add(store: Store, name: str, role: str, by: str = PERSON) -> str:
    """A new token for `role`, to be shown once.

    Raises:
        TokenRefused: the name is malformed or in use, or there is no such role.
    """
    if not _NAME.fullmatch(name):
        raise TokenRefused(f"name: got {name[:60]!r}; allowed: letters, digits, '_', '-', '.', at most 64.")
    if role not in ROLES:
        raise TokenRefused(f"role: got {role[:60]!r}; allowed: {', '.join(ROLES)}.")
    token = new_token()
    with store.transaction():
        if any(row.name == name and not row.revoked for row in _rows(store).values()):
            raise TokenRefused(f"name: a token {name!r} exists; revoke it first (`bitgate token revoke {name}`).")
        row = TokenRow.model_validate({"name": name, "role": role, "digest": token_digest(token)})
        store.append("token", name, row.model_dump(mode="json"), by)
    return token


def revoke(store: Store, name: str, by: str = PERSON) -> None:
    """The token of this name works no more.

    Raises:
        TokenRefused: there is none.
    """
    with store.transaction():
        row = next((row for row in _rows(store).values() if row.name == name and not row.revoked), None)
        if row is None:
            raise TokenRefused(f"name: no token {name[:60]!r} is in use; `bitgate token list` names them.")
        store.append("token", name, row.model_copy(update={"revoked": True}).model_dump(mode="json"), by)


def actor_of(store: Store, token: str) -> Actor:
    """Who a token stands for.

    Raises:
        TokenRefused: it is malformed, unknown or revoked. Which of them is not said.
    """
    digest = token_digest(token) if _TOKEN.fullmatch(token) else ""
    known = next((row for key, row in _rows(store).items() if hmac.compare_digest(key, digest)), None)
    if known is None or known.revoked:
        raise TokenRefused("token: not accepted; a person makes one with `bitgate token add NAME --role ROLE`.")
    return Actor(known.role, known.name)


def listed(store: Store) -> list[TokenInfo]:
    """Every token that was ever added, newest state."""
    added = {entry.body.get("digest"): entry.at for entry in reversed(list(store.entries(kind="token")))}
    return [TokenInfo(row.name, row.role, added[digest], row.revoked) for digest, row in _rows(store).items()]


def _rows(store: Store) -> dict[str, TokenRow]:
    """Digest -> newest row. A row that revokes can never be undone; a row that is none is passed over."""
    known: dict[str, TokenRow] = {}
    for entry in store.entries(kind="token"):
        try:
            row = TokenRow.model_validate(entry.body)
        except ValidationError:
            continue
        before = known.get(row.digest)
        if before is None or (row.revoked and (row.name, row.role) == (before.name, before.role)):
            known[row.digest] = row
    return known
