from __future__ import annotations

import time

import pytest

from bitgate.tools.redaction import REDACTED, is_secret_name, redact, redact_env, redact_text


@pytest.mark.parametrize(
    "name",
    ["WANDB_API_KEY", "HF_TOKEN", "hfToken", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "DB_PASS", "api-key",
     "Authorization", "GITHUB_PAT", "session_cookie", "SSH_KEY", "apiKey", "client.secret", "MY_KEY"],
)  # fmt: skip
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["PATH", "max_tokens", "token_id", "prompt_token_ids", "TOKENIZERS_PARALLELISM", "VLLM_TOKENIZER", "MONKEY",
     "author", "key", "primary_key", "passed", "NCCL_IB_PKEY", "pattern", "compass"],
)  # fmt: skip
def test_ordinary_names_are_left_alone(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "secret",
    [
        "sk-ant-REDACTED-0000000000",
        "hf_abcdefghijklmnopqrstuvwxyz",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.abcDEF",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_values_that_look_like_secrets_are_replaced_anywhere(secret: str) -> None:
    assert redact_text(f"before {secret} after") == f"before {REDACTED} after"


def test_assignments_to_secret_names_are_replaced_and_the_rest_stays() -> None:
    text = 'export HF_TOKEN=abc "api_key": "x y", http://user:pw@host/x max_tokens=4 Authorization: Bearer abcdefghij'

    assert redact_text(text) == (
        f'export HF_TOKEN={REDACTED} "api_key": {REDACTED}, http://user:{REDACTED}@host/x max_tokens=4 '
        f"Authorization: {REDACTED}"
    )


def test_figures_about_tokens_stay() -> None:
    text = "sequence 3, token: 17, token = -2.5 of max_tokens=4; verdict pass: 3"

    assert redact_text(text) == text


def test_an_environment_keeps_its_names() -> None:
    assert redact_env({"HF_TOKEN": "x", "PATH": "/bin", "URL": "https://me:pw@host"}) == {
        "HF_TOKEN": REDACTED,
        "PATH": "/bin",
        "URL": f"https://me:{REDACTED}@host",
    }


def test_json_is_redacted_by_key_and_by_look_at_every_depth() -> None:
    value = {"env": [{"API_KEY": "x"}, "hf_abcdefghijklmnopqrstuvwxyz"], "token_id": 5, "token": 7, "ok": None}

    assert redact(value) == {"env": [{"API_KEY": REDACTED}, REDACTED], "token_id": 5, "token": 7, "ok": None}


@pytest.mark.parametrize(
    "unit", ["y", "a.", "a-", "aA", "TOKEN_", "-eyJaaaaaaaaaaaa", "http://", "http://a", "_a_PASS", 'a="', "bearer "]
)
def test_what_an_engine_prints_cannot_hold_the_redaction_up(unit: str) -> None:
    text = (unit * 20_000)[:20_000] + "=x"
    started = time.process_time()
    redact_text(text)

    assert time.process_time() - started < 2  # a quadratic pattern takes 10 s and more


def test_a_secret_name_at_the_end_of_a_long_word_is_known() -> None:
    name = "a" * 1000 + "_TOKEN"

    assert redact_text(f"--{name}=abc --token=def") == f"--{name}={REDACTED} --token={REDACTED}"
