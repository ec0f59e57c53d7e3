"""`bitgate init`"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bitgate.server.interpreters import candidates, engines_in, first_with, looked_at
from bitgate.server.probing import Probe
from bitgate.server.starter import Answers, starter, vocab_of
from bitgate.tools.config.load import MAIN, load_config


@click.command()
@click.option("--model", "model_path", help="Checkpoint directory.")
@click.option("--model-name", default="full", show_default=True, help="Its name.")
@click.option("--rollout-python", help="Interpreter that has the rollout engine.")
@click.option(
    "--rollout-engine", type=click.Choice(["vllm", "transformers", "python"]), default="vllm", show_default=True
)
@click.option("--trainer-python", help="Interpreter that has the trainer.")
@click.option(
    "--trainer-engine",
    type=click.Choice(["transformers", "megatron", "vllm_kernels", "python"]),
    default="transformers",
    show_default=True,
)
@click.option("--force", is_flag=True, help="Replace an existing bitgate.toml.")
@click.option("--yes", is_flag=True, help="Ask nothing: take flags and what was found.")
@click.pass_obj
def init(
    start: Path,
    model_path: str | None,
    model_name: str,
    rollout_python: str | None,
    rollout_engine: str,
    trainer_python: str | None,
    trainer_engine: str,
    force: bool,
    yes: bool,
) -> None:
    """Write a commented bitgate.toml here.

    Looks for interpreters that have an engine, and asks for what flags do not say.
    """
    target = start / MAIN
    if target.exists() and not force:
        raise click.UsageError(f"{target} exists; edit it, or replace it with --force")
    ask = not yes and sys.stdin.isatty()
    probes = [] if rollout_python and trainer_python else _look(start)
    model = model_path or _model(ask)
    answers = Answers(
        model_name=model_name,
        model_path=model,
        vocab=vocab_of(start / Path(model).expanduser()),
        rollout_python=rollout_python or _python("rollout", rollout_engine, probes, ask),
        rollout_engine=rollout_engine,
        trainer_python=trainer_python or _found(trainer_engine, probes),
        trainer_engine=trainer_engine,
    )
    _write(target, starter(answers))
    _ignore_state(start)
    click.echo(f"wrote {target}\nnext: bitgate doctor, then: bitgate call run_compare check=batch side=rollout")


def _look(root: Path) -> list[Probe]:
    probes = looked_at(candidates(root))
    for found in probes:
        click.echo(f"found {found.python}: Python {found.version}, {engines_in(found)}", err=True)
    return probes


def _model(ask: bool) -> str:
    if not ask:
        raise click.UsageError("which model? pass --model PATH, a checkpoint directory")
    answer: str = click.prompt("Checkpoint directory of the model", type=str)
    return answer


def _python(what: str, engine: str, probes: list[Probe], ask: bool) -> str:
    found = _found(engine, probes)
    if ask:
        answer: str = click.prompt(f"Interpreter that has the {what} engine {engine}", default=found)
        return answer
    if found is None:
        raise click.UsageError(f"no interpreter with {engine} was found; pass --{what}-python PATH")
    return found


def _found(engine: str, probes: list[Probe]) -> str | None:
    needs = {"vllm": ("torch", "vllm"), "vllm_kernels": ("torch", "vllm"), "megatron": ("torch", "megatron")}
    return first_with(probes, *needs.get(engine, ("torch", "transformers")))


def _write(target: Path, text: str) -> None:
    """Written whole, then loaded: what init wrote must be usable."""
    draft = target.with_name(f".{MAIN}.new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(target)
    load_config(target.parent)


def _ignore_state(root: Path) -> None:
    """Keeps the ledger out of git: it is written while it is read, and its head is what belongs in a commit."""
    ignore = root / ".gitignore"
    lines = ignore.read_text(encoding="utf-8").splitlines() if ignore.is_file() else []
    if (root / ".git").exists() and "/.bitgate/" not in lines:
        ignore.write_text("\n".join([*lines, "/.bitgate/", ""]), encoding="utf-8")
