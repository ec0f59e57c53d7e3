"""The `bitgate` command. Each subcommand is imported when it is used, so that `serve` starts fast."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from bitgate.server.about import version
from bitgate.server.exits import EXIT_INTERRUPTED, exit_for
from bitgate.store.errors import StoreError
from bitgate.tools.errors import BitgateError
from bitgate.tools.verdicts import EXIT_INTERNAL

COMMANDS: Final = {
    "init": "bitgate.server.cli_init:init",
    "demo": "bitgate.server.cli_demo:demo",
    "doctor": "bitgate.server.cli_doctor:doctor",
    "serve": "bitgate.server.cli_serve:serve",
    "call": "bitgate.server.cli_call:call",
    "runs": "bitgate.server.cli_ledger:runs",
    "evidence": "bitgate.server.cli_ledger:evidence",
    "verify": "bitgate.server.cli_ledger:verify",
    "gates": "bitgate.server.cli_gates:gates",
    "review": "bitgate.server.review.cli:review",
    "decision": "bitgate.server.cli_gates:decision",
    "sign": "bitgate.server.cli_gates:sign",
    "waive": "bitgate.server.cli_gates:waive",
    "reviewers": "bitgate.server.cli_gates:reviewers",
    "token": "bitgate.server.cli_bundles:token",
    "export": "bitgate.server.cli_bundles:export",
    "import": "bitgate.server.cli_bundles:import_",
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version(), prog_name="bitgate")
@click.option(
    "--project",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="BITGATE_PROJECT",
    help="Folder with bitgate.toml; default: this one or the nearest above it.",
)
@click.pass_context
def cli(ctx: click.Context, project: Path | None) -> None:
    """Bitwise train-inference consistency for RL of language models.

    Exit codes: 0 pass, 10 fail, 11 invalid, 12 inconclusive, 13 no verdict, 14 gate closed, 2 wrong usage,
    1 internal error.
    """
    ctx.obj = (project or Path.cwd()).absolute()


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    _fill_closed_streams()
    _leave_quietly_on_closed_pipe()
    try:
        code = _exit_code(arguments)
        sys.stdout.flush()
    except OSError as error:
        click.echo(f"bitgate: {error}. Make room or give access there, then call again.", err=True)
        code = EXIT_INTERNAL
        _drop_what_cannot_be_written()
    sys.exit(code)


def _exit_code(arguments: Sequence[str] | None) -> int:
    """Runs the command; every way it can end has its code."""
    try:
        code = cli.main(args=arguments, prog_name="bitgate", standalone_mode=False)
    except SystemExit as left:
        code = left.code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except (BitgateError, StoreError) as error:
        click.echo(f"bitgate: {error}", err=True)
        code = exit_for(error)
    return code if isinstance(code, int) else 0


def _drop_what_cannot_be_written() -> None:
    """Python would try again at its end, and leave with its own code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _fill_closed_streams() -> None:
    """Started with `>&-` or `<&-`: no file opened later may take a standard stream's place and be written over."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open to the end


def _leave_quietly_on_closed_pipe() -> None:
    """`bitgate evidence | head` ends as other commands do, without a traceback."""
    if os.name == "posix" and not sys.stdout.isatty():
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


if __name__ == "__main__":
    main()
