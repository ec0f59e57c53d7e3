"""The command line's help as docs/cli.md shows it; `python -m bitgate.server.help_text docs/cli.md` writes it there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

import click

from bitgate.server.cli import COMMANDS, cli

WIDTH: Final = 100
BLOCK: Final = re.compile(r"(<!-- help: bitgate ?(?P<command>\w*) -->\n```\n).*?(```\n)", re.DOTALL)


def help_of(name: str) -> str:
    """The help of a subcommand, or of `bitgate` itself for an empty name; the same at every width of terminal."""
    settings = {**cli.context_settings, "max_content_width": WIDTH, "terminal_width": WIDTH}
    parent = click.Context(cli, info_name="bitgate", **settings)
    if not name:
        return cli.get_help(parent) + "\n"
    command = cli.get_command(parent, name)
    assert command is not None, f"{name}: allowed are {', '.join(COMMANDS)}"
    context = click.Context(command, parent=parent, info_name=name, max_content_width=WIDTH, terminal_width=WIDTH)
    return command.get_help(context) + "\n"


def updated(page: str) -> str:
    """The page with the text of every help block as it is now."""
    return BLOCK.sub(lambda match: match[1] + help_of(match["command"]) + match[3], page)


def documented(page: str) -> set[str]:
    """The commands that the page shows; the empty name is `bitgate` itself."""
    return {match["command"] for match in BLOCK.finditer(page)}


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
