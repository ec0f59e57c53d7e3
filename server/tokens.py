"""Bearer tokens of HTTP clients, from a file, the environment or the ledger. Only their SHA-256 is kept."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mcp.server.auth.provider import AccessToken

from bitgate.gates.errors import TokenRefused
from bitgate.gates.roles import ROLES, Actor
from bitgate.gates.rows import Role
from bitgate.gates.tokens import actor_of, listed
from bitgate.server.session import Workplace
from bitgate.tools.errors import ConfigError

TOKEN_VARIABLE: Final = "BITGATE_TOKEN"
MIN_LENGTH: Final = 24
NO_TOKEN: Final = (
    "an HTTP server needs at least one token: put one of 24 or more characters into a file of mode 600 and pass "
    f"--token-file FILE (lines `NAME ROLE TOKEN`), or set {TOKEN_VARIABLE}; for one: python -c "
    "'import secrets; print(secrets.token_urlsafe(32))'"
)


@dataclass(frozen=True)
class Credential:
    """Who a token speaks for, and in which role."""

    name: str
    digest: bytes
    role: Role = "consistency"


def token_digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def credentials_from_file(path: Path) -> list[Credential]:
    """Lines of `NAME ROLE TOKEN`, `NAME TOKEN`, or of a token alone; `#` starts a comment. Without a role: consistency.

    Raises:
        ConfigError: unreadable, open to other users, or a token too short; no token is ever in the text.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {path}: cannot be read: {type(error).__name__}") from error
    if mode & 0o007:
        raise ConfigError(f"--token-file {path}: other users may read or change it; run chmod 600 {path}")
    lines = [
        (n, line.split()) for n, line in enumerate(text.splitlines(), 1) if line.strip() and line.strip()[0] != "#"
    ]
    return [_credential(words, f"{path}: line {n}", default=f"token-{n}") for n, words in lines]


def credentials_from_env(env: Mapping[str, str] = os.environ) -> list[Credential]:
    token = env.get(TOKEN_VARIABLE, "").strip()
    return [_credential([token], TOKEN_VARIABLE, default="env")] if token else []


def _credential(words: list[str], where: str, default: str) -> Credential:
    if len(words) > 3 or (len(words) == 3 and words[1] not in ROLES):
        raise ConfigError(
            f"{where}: allowed is `NAME ROLE TOKEN` (roles: {', '.join(ROLES)}), `NAME TOKEN` or a token alone"
        )
    token, name = words[-1], words[0] if len(words) > 1 else default
    role = role_named([words[1]] if len(words) == 3 else [])
    if len(token) < MIN_LENGTH:
        raise ConfigError(f"{where}: the token has {len(token)} characters; at least {MIN_LENGTH} are needed")
    return Credential(name, token_digest(token), role)


def role_named(names: Sequence[str]) -> Role:
    """The role in a token's scopes; without one, consistency."""
    return next((role for role in ROLES if role in names), "consistency")


class LedgerTokens:
    """Tokens in the ledger, by the gates' own rule: a row that raises a role or revives a token is not believed."""

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace

    def any(self) -> bool:
        return any(not info.revoked for info in listed(self._workplace.store))

    def actor(self, token: str) -> Actor | None:
        try:
            return actor_of(self._workplace.store, token)
        except TokenRefused:
            return None


class Verifier:
    """Checks a bearer token against every known digest, in constant time."""

    def __init__(self, fixed: Iterable[Credential], ledger: LedgerTokens) -> None:
        self._fixed = list(fixed)
        self._ledger = ledger

    def any(self) -> bool:
        return bool(self._fixed) or self._ledger.any()

    async def verify_token(self, token: str) -> AccessToken | None:
        digest = token_digest(token)
        matches = [Actor(c.role, c.name) for c in self._fixed if hmac.compare_digest(c.digest, digest)]
        found = matches[0] if matches else self._ledger.actor(token)
        return AccessToken(token="", client_id=found.name, scopes=[found.role]) if found else None
