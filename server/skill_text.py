"""The skill's references that are made from tables: gates and reason codes.

python -m bitgate.server.skill_text skills/train-inference-consistency/references
"""

from __future__ import annotations

import sys
from pathlib import Path

from bitgate.gates.errors import (
    BaselineRefused,
    BundleRefused,
    ReviewersRefused,
    RoleRefused,
    SignatureRefused,
    TokenRefused,
)
from bitgate.server.gate_resources import gates_text
from bitgate.tools.reasons import TABLE

REFUSALS = {
    RoleRefused: "the connection's role may not do this; the text says who may. Do not try another spelling.",
    BaselineRefused: "the baseline cannot be proposed yet, or drifted; the text names the call or the option.",
    SignatureRefused: "for people: the signature, its signer or what was signed does not hold.",
    ReviewersRefused: "for people: the reviewer set is malformed or may not be put in force this way.",
    BundleRefused: "a bundle does not hold together; get it again from where it was made.",
    TokenRefused: "the token is unknown or revoked; a person makes one.",
}


def gates_reference() -> str:
    """references/gates.md"""
    return f"# Gates C0 to C10\n\nRead a gate's section when what it is missing is not clear.\n\n{gates_text()}"


def reasons_reference() -> str:
    """references/reason-codes.md"""
    parts = [
        "# What to do about each reason code",
        "",
        "Look up the codes in a result's `reasons`. Made from the table in the code.",
        "",
    ]
    for group, rows in TABLE.items():
        parts += [f"## {group}", "", "| code | verdict | what it means | what to do |", "|---|---|---|---|"]
        parts += [f"| `{row.code}` | {row.verdict} | {_cell(row.meaning)} | {_cell(row.next)} |" for row in rows]
        parts.append("")
    parts += [
        "## Refusals of the gates",
        "",
        "Not verdicts: nothing ran and nothing was written.",
        "",
        "| code | what to do |",
        "|---|---|",
    ]
    parts += [f"| `{error.code}` | {text} |" for error, text in REFUSALS.items()]
    return "\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def files() -> dict[str, str]:
    """File name -> text."""
    return {"gates.md": gates_reference(), "reason-codes.md": reasons_reference()}


def main(folder: Path) -> None:
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
