"""`bitgate demo`"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import click

from bitgate.server.demo.acts import ACTS
from bitgate.store.verify import verify_ledger
from bitgate.tools.config.project import STATE


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path("demo"))
@click.option("--python", required=True, help="The interpreter that has vLLM for this CPU.")
@click.option("--seed", default=0, show_default=True, help="Of the checkpoint's weights and of the prompts.")
@click.pass_context
def demo(context: click.Context, folder: Path, python: str, seed: int) -> None:
    """The main job on a seeded tiny model in FOLDER: a real vLLM compared with itself and with two trainers.

    Exit code 0 when every verdict is the expected one, else 1.
    """
    from bitgate.server.cli_ledger import evidence
    from bitgate.server.demo.play import play
    from bitgate.server.demo.project import make_project

    folder = folder.absolute()
    click.echo(f"Making a tiny Qwen3 of seed {seed} in {folder}")
    make_project(folder, python, seed)
    surprises = anyio.run(play, folder, ACTS)
    click.secho("\nThe ledger", bold=True)
    context.obj = folder
    context.invoke(evidence, limit=len(ACTS))
    report = verify_ledger(folder / STATE / "ledger.db")
    chain = "The chain verifies" if report.ok else f"THE CHAIN LIES at row {report.first_bad_seq}: {report.problem}"
    click.echo(f"{chain}: {report.rows} rows, {report.artifacts} artifacts, head {report.head}")
    click.secho("\nWhat to do next", bold=True)
    click.echo(f"  cd {folder.name} && bitgate evidence        the evidence; add an id for one, with its artifacts")
    click.echo("  bitgate call run_compare check=repeat side=rollout")
    click.echo("  bitgate init                              a bitgate.toml for your own engines and models")
    for line in surprises:
        click.secho(f"Unexpected: {line}", fg="red", bold=True)
    sys.exit(1 if surprises or not report.ok else 0)
