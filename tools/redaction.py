"""Keeps secrets out of evidence, logs and answers: by the name of a variable, and by the look of a value.

What is redacted comes from engines, so every pattern takes time linear in the text: one that does not would hold the
interpreter lock, and with it the supervisor's watch, for as long as an engine likes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

REDACTED: Final = "[redacted]"

_SECRET_WORDS: Final = (
    r"SECRETS?|TOKEN(?!_(?:IDS?|COUNT|INDEX|POSITION|DIGEST)\b)|\w*PASSWORD|\w*PASSWD|PASS|PASSPHRASE|CREDENTIALS?|COOKIE"
    r"|AUTH|AUTHORIZATION|BEARER|DSN|WEBHOOK|(?:API|ACCESS|PRIVATE|SECRET|SIGNING|ENCRYPTION)[_.-]?KEY|PAT"
)
_SECRET_NAME: Final = re.compile(rf"(?:^|[_.\-])(?:{_SECRET_WORDS})(?:$|[_.\-])", re.IGNORECASE)
_SECRET_VARIABLE: Final = re.compile(r"^[A-Z0-9_]*_KEY$")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LONGEST_NAME: Final = 256
_SMALL_NUMBER: Final = re.compile(r"[+-]?\d{0,9}(?:\.\d*)?")

_SECRET_VALUE: Final = re.compile(
    r"""
      \bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{16,}                    # API keys of model vendors
    | \bhf_[A-Za-z0-9]{20,}                                     # Hugging Face
    | \bgh[pousr]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,}       # GitHub
    | \bglpat-[A-Za-z0-9_-]{16,}                                # GitLab
    | \bxox[abeoprs]-[A-Za-z0-9-]{10,}                          # Slack
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b                             # AWS
    | \bAIza[A-Za-z0-9_-]{30,}                                  # Google
    | \bbg_[a-z0-9]{32,}                                        # bitgate's own
    | \beyJ[A-Za-z0-9_-]{10,4096}+\.[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]*+  # JSON web tokens
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----[\s\S]*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|$)
    | (?i:\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}
    """,
    re.VERBOSE,
)
_URL_PASSWORD: Final = re.compile(r"([a-z][a-z0-9+.-]{0,31}+://[^\s/:@]*+):[^\s/@]++@", re.IGNORECASE)
_ASSIGNMENT: Final = re.compile(
    r"(?<![A-Za-z0-9_.-])([A-Za-z0-9_.-]++)(\s*[=:]\s*|\"\s*:\s*)"
    r"(\[redacted\]|\"[^\"\n]*\"|'[^'\n]*'|[^\s,;}\]\"']+)"
)


def is_secret_name(name: str) -> bool:
    """True for names whose value must never be written down, such as WANDB_API_KEY or hfToken."""
    if len(name) > _LONGEST_NAME:
        name = name[: _LONGEST_NAME // 2] + name[-_LONGEST_NAME // 2 :]
    return bool(_SECRET_NAME.search(_CAMEL.sub("_", name)) or _SECRET_VARIABLE.match(name))


def redact_text(text: str) -> str:
    """`text` without values that look like secrets, nor values assigned to secret-looking names."""
    text = _SECRET_VALUE.sub(REDACTED, text)
    text = _URL_PASSWORD.sub(rf"\1:{REDACTED}@", text)
    return _ASSIGNMENT.sub(_assignment, text)


def _assignment(match: re.Match[str]) -> str:
    """Numbers stay: `token: 17` is a figure here, and no secret is that short."""
    name, sign, value = match.groups()
    return f"{name}{sign}{REDACTED}" if is_secret_name(name) and not _SMALL_NUMBER.fullmatch(value) else match[0]


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """An environment fit to be recorded: every name kept, secret values replaced."""
    return {name: REDACTED if is_secret_name(name) else redact_text(value) for name, value in env.items()}


def redact(value: JsonValue) -> JsonValue:
    """The same for any JSON value: by key where there is one, by look everywhere."""
    if isinstance(value, dict):
        return {k: REDACTED if is_secret_name(k) and isinstance(v, str) else redact(v) for k, v in value.items()}
    if isinstance(value, list):
        return [redact(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value
