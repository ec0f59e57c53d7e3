"""What the command line prints: answers for people, JSON for programs, a bar on a terminal."""

from __future__ import annotations

import json
import shutil
import sys
from types import TracebackType
from typing import Any, Final, Self

import click

from bitgate.server.answers import RunAnswer
from bitgate.server.sanitise import Cleaner, clean_text, shorten

COLOURS: Final = {"pass": "green", "fail": "red", "invalid": "yellow", "inconclusive": "yellow"}
WIDTH: Final = 24


class Bar:
    """A progress line on standard error, only where that is a terminal."""

    def __init__(self) -> None:
        self._shown = False

    async def update(self, done: float, total: float | None, message: str) -> None:
        if not sys.stderr.isatty():
            return
        share = min(1.0, done / total) if total else 0.0
        filled = round(share * WIDTH)
        bar = "#" * filled + "-" * (WIDTH - filled) if total else "." * WIDTH
        room = max(10, shutil.get_terminal_size().columns - WIDTH - 10)
        line = f"\r[{bar}] {share:4.0%} {shorten(clean_text(message), room)}"
        click.echo(f"{line}\x1b[K", nl=False, err=True)
        self._shown = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)


def show_json(value: Any) -> None:
    cleaner = Cleaner()
    body = cleaner.clean(value)
    if isinstance(body, dict) and cleaner.non_finite:
        body["non_finite"] = list(cleaner.non_finite)
    click.echo(json.dumps(body, indent=2, allow_nan=False, ensure_ascii=False))


def show_answer(answer: RunAnswer) -> None:
    """Verdict, summary, reasons, figures and what to do next."""
    word = answer.verdict or answer.state
    click.secho(word.upper(), fg=COLOURS.get(word, "yellow"), bold=True, nl=False)
    click.echo(f"  {clean_text(answer.summary)}")
    for reason in answer.reasons:
        click.echo(f"  {reason.code}: {clean_text(reason.detail)}")
    for name, value in answer.figures.items():
        click.echo(f"  {clean_text(name)}: {_figure(value)}")
    for link in answer.artifacts:
        click.echo(f"  {clean_text(link.name)}: {link.uri} ({link.size} bytes)")
    if answer.error and not answer.verdict:
        click.echo(f"  {answer.error_code}: {clean_text(answer.error)}")
    if answer.evidence_id:
        click.echo(f"  evidence: {answer.evidence_id} ({answer.grade})")
    click.echo(f"  next: {clean_text(answer.next)}")


def _figure(value: Any) -> str:
    if isinstance(value, dict | list):
        return shorten(json.dumps(Cleaner().clean(value), allow_nan=False, ensure_ascii=False), 300)
    return "not finite" if isinstance(value, float) and value != value else clean_text(str(value))
