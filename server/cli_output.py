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
LINE: Final = 200
ROWS: Final = 16


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
        self.clear()

    def clear(self) -> None:
        """Makes room for a line of text."""
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._shown = False


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
        for line in figure_lines(clean_text(name), Cleaner().clean(value)):
            click.echo(f"  {line}")
    for link in answer.artifacts:
        click.echo(f"  {clean_text(link.name)}: {link.uri} ({link.size} bytes)")
    if answer.error and not answer.verdict:
        click.echo(f"  {answer.error_code}: {clean_text(answer.error)}")
    if answer.evidence_id:
        click.echo(f"  evidence: {answer.evidence_id} ({answer.grade})")
    click.echo(f"  next: {clean_text(answer.next)}")


def figure_lines(name: str, value: Any) -> list[str]:
    """A figure as text: a table where its rows are alike, one line otherwise."""
    if isinstance(value, dict) and len(value) > 1 and all(_is_row(row, value) for row in value.values()):
        return _table(name, value)
    if isinstance(value, dict | list):
        return [shorten(f"{name}: {json.dumps(value, allow_nan=False, ensure_ascii=False)}", LINE)]
    return [f"{name}: {value}"]


def _is_row(row: Any, table: dict[str, Any]) -> bool:
    keys = next(iter(table.values()))
    return (
        isinstance(row, dict)
        and isinstance(keys, dict)
        and row.keys() == keys.keys()
        and not any(isinstance(cell, dict | list) for cell in row.values())
    )


def _table(name: str, rows: dict[str, dict[str, Any]]) -> list[str]:
    """Aligned columns, the first `ROWS` rows, and how many there are beyond."""
    shown = list(rows.items())[:ROWS]
    columns = list(shown[0][1])
    first = max(len(name), *(len(label) for label, _ in shown))
    widths = [max(len(c), *(len(str(row[c])) for _, row in shown)) for c in columns]
    lines = [f"{name:{first}}  " + "  ".join(f"{c:>{w}}" for c, w in zip(columns, widths, strict=True))]
    for label, row in shown:
        cells = "  ".join(f"{row[c]!s:>{w}}" for c, w in zip(columns, widths, strict=True))
        lines.append(f"{clean_text(label):{first}}  {cells}")
    return lines + ([f"… {len(rows) - ROWS} more; --json shows all"] if len(rows) > ROWS else [])
