"""`bitgate demo`"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import click

from bitgate.server.demo.acts import MORE, QUICK
from bitgate.server.demo.person import Person, person_of


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path("demo"))
@click.option("--python", required=True, help="The interpreter that has vLLM for this CPU.")
@click.option("--seed", default=0, show_default=True, help="Of the checkpoint's weights and of the prompts.")
@click.option("--full", is_flag=True, help="On from C5 to whatever exists: repros, layers, the full model, speed.")
@click.option("--review", "reviews", is_flag=True, help="Then serve the review page, and print its link.")
@click.pass_context
def demo(context: click.Context, folder: Path, python: str, seed: int, full: bool, reviews: bool) -> None:
    """Gates C0 to C5 on a seeded tiny model in FOLDER: a real vLLM, two trainers, two agents, and a person who signs.

    Exit code 0 when every verdict and every gate is the expected one, else 1.
    """
    from bitgate.server.demo.play import play
    from bitgate.server.demo.project import make_project

    folder = folder.absolute()
    click.echo(f"Making a tiny Qwen3 of seed {seed} in {folder}")
    make_project(folder, python, seed)
    person = person_of(folder)
    if person is not None:
        person.come()
    surprises = anyio.run(play, folder, (*QUICK, *MORE) if full else QUICK, person)
    lies = _ledger(folder, person)
    _next(folder, person)
    for line in [*surprises, *lies]:
        click.secho(f"Unexpected: {line}", fg="red", bold=True)
    if reviews:
        _review(context, folder, person)
    sys.exit(1 if surprises or lies else 0)


def _ledger(folder: Path, person: Person | None) -> list[str]:
    """The board and the chain; whatever lies in it."""
    from bitgate.gates.verify import verify
    from bitgate.server.cli_gates import board_of, session_of, show_board
    from bitgate.server.cli_ledger import words_of

    click.secho("\nThe board", bold=True)
    session = session_of(folder)
    show_board(board_of(session))
    pinned = person.reviewers.read_text(encoding="utf-8") if person else None
    found = verify(session.store.ledger.path, reviewers=pinned)
    session.workplace.close()
    replayed = f"{found.replay.votes} votes, {found.replay.submissions} submissions"
    click.echo(f"\nThe chain: {words_of(found.ledger)}, {replayed}")
    return [lie.message for lie in found.problems[:5]]


def _next(folder: Path, person: Person | None) -> None:
    here = os.path.relpath(folder)
    click.secho("\nWhat to do next", bold=True)
    click.echo(f"  {_review_line(here, person)}")
    click.echo("                         prints a link, good once: the gates, the evidence with its plots, a signature")
    click.echo(f"  bitgate --project {here} gates C7      what one gate lacks; `bitgate evidence` lists what there is")
    click.echo("  bitgate init             a bitgate.toml for your own engines and models")


def _review_line(here: str, person: Person | None) -> str:
    key = f" --key {os.path.join(here, person.key.relative_to(person.project))}" if person else ""
    return f"bitgate --project {here} review{key}"


def _review(context: click.Context, folder: Path, person: Person | None) -> None:
    from bitgate.server.review.cli import review

    context.obj = folder
    context.invoke(
        review, port=0, key=person.key if person else None, reviewers_file=person.reviewers if person else None
    )
