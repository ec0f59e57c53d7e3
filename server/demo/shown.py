"""What the demo prints of each answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from bitgate.server.cli_gates import COLOURS as STATES
from bitgate.server.cli_output import COLOURS as VERDICTS
from bitgate.server.demo.acts import Act
from bitgate.server.demo.person import Person
from bitgate.server.sanitise import clean_text, shorten

ROWS: Final = 6


def act(act: Act, answer: dict[str, Any]) -> None:
    word = str(answer.get("verdict") or answer["state"])
    asked = ", ".join(f"{name}={value!r}" for name, value in act.request.items())
    click.secho(f"\n   {act.title}", bold=True)
    click.echo(f"   {act.why}")
    click.echo(f"   {act.role} agent: {act.tool}({asked})")
    click.secho(f"   {word.upper()}", fg=VERDICTS.get(word, "yellow"), bold=True, nl=False)
    click.echo(f"  {clean_text(answer['summary'])}  ({answer['seconds']:.0f} s)")
    for line in details(answer):
        click.echo(f"   {clean_text(line)}")


def details(answer: dict[str, Any]) -> list[str]:
    """Figures worth a line, and the evidence."""
    figures, lines = answer.get("figures", {}), []
    if "rows_compared" in figures:
        lines.append(f"{figures.get('rows_different')} of {figures['rows_compared']} rows different")
    if "ratio_low" in figures:
        lines.append(f"ratio {figures['ratio']}, interval {figures['ratio_low']} to {figures['ratio_high']}")
    repro = figures.get("repro")
    if isinstance(repro, dict) and repro.get("folder"):
        lines.append(f"the repro: {repro['folder']}/repro.py (exit 1 while it reproduces, 0 when fixed)")
    return [*lines, f"evidence {answer['evidence_id']}"] if answer.get("evidence_id") else lines


def submission(gate: str, answer: dict[str, Any]) -> None:
    state = answer["gate"]["state"]
    click.echo(f"\n   submit_gate(gate={gate!r}): ", nl=False)
    click.secho(f"{gate} {answer['gate']['title']} is {state}", fg=STATES[state], bold=True)
    if blocked := answer["gate"].get("blocked_by"):
        click.echo(f"   after {', '.join(blocked)}")
    for item in answer.get("missing", [])[:ROWS]:
        click.echo(f"   missing {item['key']}: {shorten(clean_text(item['why']), 160)}")
    held = answer.get("evidence", {})
    if held and state != "passed":
        click.echo(f"   there already: {', '.join(held)}")


def proposal(answer: dict[str, Any]) -> None:
    click.echo(f"\n   baseline agent: propose_baseline(): {clean_text(answer['summary'])}")


def signature(gate: str, person: Person, said: str) -> None:
    click.echo("\n   No tool can sign. The person of this demo is a throwaway SSH key in its folder; yours is one:")
    click.echo(f"   bitgate decision {gate} --key {person.key.relative_to(person.project.parent)}")
    click.secho(f"   {clean_text(said)}", fg="green", bold=True)


def unsigned(gate: str, why: str) -> None:
    click.secho(f"\n   {gate} is not signed: {why}", fg="yellow")


def restless(needs: Sequence[str]) -> None:
    click.secho(f"   This machine was too restless to measure {', '.join(needs)}. Again when it is quiet.", fg="yellow")
