"""The people who may sign: an `allowed_signers` text, the chain's first row, changed only by a reviewer's signature."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bitgate.gates import sshsig
from bitgate.gates.errors import ReviewersRefused, SignatureRefused
from bitgate.gates.rows import HeadRef, ReviewerChange, ReviewersRow, Signed, pretty
from bitgate.store.chain import Entry
from bitgate.store.store import Store

SUBJECT: Final = "reviewers"
RUNNER: Final = "runner:"
"""Principals that begin so are machines: they vouch for evidence bundles and can never vote."""

_KEY_TYPES: Final = (
    r"(?:ssh-(?:ed25519|rsa)|ecdsa-sha2-nistp(?:256|384|521)"
    r"|sk-ssh-ed25519@openssh\.com|sk-ecdsa-sha2-nistp256@openssh\.com)"
)
_LINE: Final = re.compile(
    rf'^(?P<who>[^\s,*?!"]{{1,100}})\s+(?:namespaces="bitgate"\s+)?(?P<key>{_KEY_TYPES}\s+[A-Za-z0-9+/=]{{16,}})(?:\s+.{{0,200}})?$'
)


def checked(allowed_signers: str) -> str:
    """The text, in one form: one principal and one key a line, comments dropped.

    Raises:
        ReviewersRefused: a line that OpenSSH or a reader could understand in more than one way.
    """
    if len(allowed_signers) > 256 * 1024:
        raise ReviewersRefused(f"reviewers: {len(allowed_signers)} characters; allowed: 262144.")
    lines = [
        line.strip() for line in allowed_signers.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    found = [(line, _LINE.match(line)) for line in lines]
    wrong = next((line for line, match in found if match is None), None)
    if wrong is not None:
        raise ReviewersRefused(
            f"reviewers: got {wrong[:80]!r}; allowed: `NAME ssh-ed25519 AAAA…`, a name and a key a line, no pattern."
        )
    entries = [(match["who"], " ".join(match["key"].split())) for _, match in found if match]
    if not any(not who.startswith(RUNNER) for who, _ in entries):
        raise ReviewersRefused("reviewers: the set names no person; at least one reviewer is needed.")
    keys = [key for _, key in entries]
    if len(set(keys)) != len(keys):
        raise ReviewersRefused("reviewers: one key is listed twice; a key belongs to one name.")
    return "".join(f'{who} namespaces="bitgate" {key}\n' for who, key in sorted(entries))


def names(allowed_signers: str) -> list[str]:
    return list(dict.fromkeys(line.split()[0] for line in allowed_signers.splitlines()))


def set_digest(allowed_signers: str) -> str:
    return hashlib.sha256(allowed_signers.encode("utf-8")).hexdigest()


@dataclass(frozen=True)
class Timeline:
    """Every reviewer set that was ever in force, and the sequence number of the row that put it there."""

    sets: tuple[tuple[int, str], ...] = ()
    problems: tuple[tuple[int, str], ...] = ()

    def at(self, seq: int) -> str:
        """The set in force just before row `seq`; empty when nobody may sign."""
        return next((text for since, text in reversed(self.sets) if since < seq), "")

    @property
    def current(self) -> str:
        return self.sets[-1][1] if self.sets else ""


def timeline(entries: Iterable[Entry]) -> Timeline:
    """From the chain's `reviewers` rows, in order. A row whose signature does not hold changes nothing."""
    sets: list[tuple[int, str]] = []
    problems: list[tuple[int, str]] = []
    for entry in entries:
        problem, text = _judged(entry, sets[-1][1] if sets else "")
        if problem:
            problems.append((entry.seq, problem))
        else:
            sets.append((entry.seq, text))
    return Timeline(tuple(sets), tuple(problems))


def _judged(entry: Entry, in_force: str) -> tuple[str, str]:
    try:
        row = ReviewersRow.model_validate(entry.body)
        checked(row.allowed_signers)
    except (ValueError, ReviewersRefused) as error:
        return f"not a reviewer set: {str(error)[:200]}", ""
    return row_problem(entry, row, in_force), row.allowed_signers


def current(store: Store) -> str:
    """The reviewer set in force: the last row whose signature holds, from the chain's first row on. Empty: nobody."""
    return timeline(store.entries(kind="reviewers")).current


def row_problem(entry: Entry, row: ReviewersRow, in_force: str) -> str:
    """Why a `reviewers` row does not put its set in force; empty when it does."""
    if entry.seq == 1:
        return "" if row.change is None else "the first reviewer set carries a signature of nobody"
    if not in_force:
        return "a reviewer set must be the chain's first row"
    if row.change is None:
        return "the reviewer set was changed without a reviewer's signature"
    return _change_problem(row.change, row.allowed_signers, in_force)


def _change_problem(change: Signed, allowed_signers: str, in_force: str) -> str:
    try:
        message = ReviewerChange.model_validate_json(change.message)
    except ValueError:
        return "the signed message is not a change of reviewers"
    if pretty(message) != change.message or message.allowed_signers != allowed_signers:
        return "the signature is over another reviewer set"
    if message.previous != set_digest(in_force):
        return "the signature is over a change of another reviewer set than the one in force"
    if change.signer not in names(in_force) or change.signer.startswith(RUNNER):
        return f"{change.signer} is no reviewer"
    failed = sshsig.verify(change.message, change.signature, change.signer, in_force)
    return f"signature: {failed}" if failed else ""


def found(store: Store, allowed_signers: str, actor: str) -> Entry:
    """Makes the first reviewer set, as the chain's first row.

    Raises:
        ReviewersRefused: the chain has rows already.
    """
    text = checked(allowed_signers)
    with store.transaction():
        if store.head().seq:
            raise ReviewersRefused(
                "reviewers: the ledger has rows already, and the reviewer set is the first row or none. "
                "Change a set with a reviewer's signature, or start a new ledger and import this one's evidence."
            )
        return store.append("reviewers", SUBJECT, ReviewersRow(allowed_signers=text).model_dump(mode="json"), actor)


def propose_change(store: Store, allowed_signers: str) -> str:
    """The message that a reviewer signs to put another set in force.

    Raises:
        ReviewersRefused: the set is malformed, or there is none in force that could sign.
    """
    in_force = current(store)
    if not in_force:
        raise ReviewersRefused("reviewers: this ledger has none; a set is the chain's first row.")
    head = store.head()
    message = ReviewerChange(
        allowed_signers=checked(allowed_signers),
        previous=set_digest(in_force),
        head=HeadRef(seq=head.seq, hash=head.hash),
    )
    return pretty(message)


def change(store: Store, message: str, signature: str, actor: str) -> Entry:
    """Puts another reviewer set in force.

    Raises:
        SignatureRefused: not signed by a reviewer in force, or over something else.
    """
    with store.transaction():
        in_force = current(store)
        signer = sshsig.find_signer(signature, in_force)
        try:
            proposed = ReviewerChange.model_validate_json(message).allowed_signers
        except ValueError as error:
            raise SignatureRefused(
                "message: not a change of reviewers; make it with `bitgate reviewers --change FILE`."
            ) from error
        text, signed = checked(proposed), Signed(message=message, signature=signature, signer=signer)
        problem = _change_problem(signed, text, in_force)
        if problem:
            raise SignatureRefused(f"reviewers: {problem}.")
        row = ReviewersRow(allowed_signers=text, change=signed)
        return store.append("reviewers", SUBJECT, row.model_dump(mode="json"), actor)
