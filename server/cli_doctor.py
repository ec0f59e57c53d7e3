"""`bitgate doctor`"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click

from bitgate.server.cli_output import show_json
from bitgate.server.doctor import Line, environment, probe_lines, probed, project_lines, side_lines
from bitgate.server.probing import Probe
from bitgate.server.sanitise import clean_text
from bitgate.tools.config.project import Project
from bitgate.tools.config.sides import Side
from bitgate.tools.errors import ConfigError
from bitgate.tools.verdicts import EXIT_USAGE

MARKS = {"ok": ("ok ", "green"), "gap": ("-  ", "cyan"), "problem": ("!! ", "red")}

Section = tuple[str, list[Line]]


@click.command()
@click.option("--side", "only", multiple=True, metavar="NAME", help="Only these sides; default: all.")
@click.option("--timeout", default=180.0, show_default=True, help="Seconds an interpreter may take.")
@click.option("--imports/--no-imports", default=True, show_default=True, help="Import, or only look.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def doctor(start: Path, only: tuple[str, ...], timeout: float, imports: bool, as_json: bool) -> None:
    """Show what is installed and what each side would run.

    Every side's interpreter is asked which kernel packages import there, and how to get those that do not.
    Exit code 2 when something configured cannot run.
    """
    sections: list[Section] = [("bitgate", list(environment()))]
    try:
        project = Project.find(start)
    except ConfigError as error:
        sections.append(("project", [Line(str(error), "problem")]))
    else:
        sections.append(("project", list(project_lines(project))))
        sections += _sides([project.side(name) for name in only or project.config.side], timeout, imports)
    _show(sections, as_json)
    sys.exit(EXIT_USAGE if any(line.level == "problem" for _, lines in sections for line in lines) else 0)


def _sides(sides: Iterable[Side], timeout: float, imports: bool) -> list[Section]:
    seen: dict[tuple[object, ...], Probe] = {}
    sections = []
    for side in sides:
        lines = list(side_lines(side))
        if side.python is not None:
            lines += probe_lines(side, probed(side, timeout, imports, seen))
        sections.append((f"side {side.name}", lines))
    return sections


def _show(sections: Iterable[Section], as_json: bool) -> None:
    if as_json:
        show_json({title: [asdict(line) for line in lines] for title, lines in sections})
        return
    for title, lines in sections:
        click.secho(title, bold=True)
        for line in lines:
            mark, colour = MARKS[line.level]
            click.secho(f"  {mark}", fg=colour, nl=False)
            click.echo(clean_text(line.text))
