"""Tokens fix a role. The ledger keeps a digest, and nobody gets a token back out of it."""

from __future__ import annotations

import pytest

from bitgate.gates import tokens
from bitgate.gates.errors import TokenRefused
from bitgate.gates.roles import Actor


def test_a_token_stands_for_its_role_and_name(world):
    token = tokens.add(world.store, "nightly", "consistency")
    assert tokens.actor_of(world.store, token) == Actor("consistency", "nightly")


@pytest.mark.attack
def test_the_ledger_holds_no_token(world):
    token = tokens.add(world.store, "nightly", "consistency")
    files = [path.read_bytes() for path in world.store.ledger.path.parent.iterdir() if path.is_file()]
    assert not any(token.encode() in data for data in files)


@pytest.mark.attack
def test_a_revoked_token_works_no_more_and_its_name_is_free_again(world):
    token = tokens.add(world.store, "nightly", "consistency")
    tokens.revoke(world.store, "nightly")
    with pytest.raises(TokenRefused):
        tokens.actor_of(world.store, token)
    other = tokens.add(world.store, "nightly", "observer")
    assert tokens.actor_of(world.store, other).role == "observer"
    assert [(info.role, info.revoked) for info in tokens.listed(world.store)] == [
        ("consistency", True),
        ("observer", False),
    ]


@pytest.mark.parametrize(
    "make",
    [
        str.upper,
        lambda t: t[:-1],
        lambda t: t + "a",
        lambda t: "",
        lambda t: "bg_" + "a" * 52,
        lambda t: t[3:],
        lambda t: f" {t}",
        lambda t: t + "\n",
        lambda t: tokens.token_digest(t),
    ],
)
@pytest.mark.attack
def test_anything_but_the_token_is_refused_in_the_same_words(world, make):
    token = tokens.add(world.store, "nightly", "consistency")
    with pytest.raises(TokenRefused, match=r"^token: not accepted; a person makes one with"):
        tokens.actor_of(world.store, make(token))


@pytest.mark.attack
def test_a_row_that_raises_a_tokens_role_is_not_believed(world):
    token = tokens.add(world.store, "looker", "observer")
    body = {"name": "looker", "role": "consistency", "digest": tokens.token_digest(token), "revoked": False}
    world.store.append("token", "looker", body, "person:x")
    assert tokens.actor_of(world.store, token).role == "observer"


@pytest.mark.attack
def test_a_revoked_token_is_not_brought_back_by_a_later_row(world):
    token = tokens.add(world.store, "looker", "observer")
    tokens.revoke(world.store, "looker")
    body = {"name": "looker", "role": "observer", "digest": tokens.token_digest(token), "revoked": False}
    world.store.append("token", "looker", body, "person:x")
    with pytest.raises(TokenRefused):
        tokens.actor_of(world.store, token)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("", "observer"),
        ("a b", "observer"),
        ("../x", "observer"),
        ("x" * 65, "observer"),
        ("x", "admin"),
        ("x", ""),
        ("x", "reviewer"),
    ],
)
@pytest.mark.attack
def test_a_name_or_role_that_does_not_exist_is_refused(world, name, role):
    with pytest.raises(TokenRefused):
        tokens.add(world.store, name, role)


def test_two_tokens_of_one_name_are_refused(world):
    tokens.add(world.store, "nightly", "consistency")
    with pytest.raises(TokenRefused, match="revoke it first"):
        tokens.add(world.store, "nightly", "baseline")
