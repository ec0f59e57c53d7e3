"""What is said of a run and what it leaves: a sentence, the figures of an answer, the artifacts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from bitgate.store.records import ArtifactRef, Reason
from bitgate.tools.ab.analysis import Outcome, block_rates, compared, rounded
from bitgate.tools.ab.plots import draw
from bitgate.tools.ab.ran import ARMS, Ran
from bitgate.tools.ab.samples import Turn, read_raw, side_figures
from bitgate.tools.ab.vetoes import Check, Trial, kernel_facts
from bitgate.tools.reasons import verdict_of

if TYPE_CHECKING:
    from bitgate.tools.runs.context import RunContext


def summary_of(check: Check, trial: Trial, result: Outcome, reasons: Sequence[Reason], floor: float) -> str:
    shown = result.main or result.null
    if shown is None:
        return f"No ratio: {reasons[0].detail}"
    found = shown.interval
    ratio = f"{found.ratio:.3f} (interval {found.ratio_low:.3f} to {found.ratio_high:.3f}, {found.pairs} pairs)"
    said = {
        "aa": f"{trial.a.name} against itself: {ratio}",
        "ab": f"{trial.a.name} / {trial.b.name}: {ratio}: {result.claim}",
        "floor": f"{trial.a.name} runs at {ratio} of {trial.b.name}; the floor is {floor:g}",
    }[check]
    deciding = [r for r in reasons if verdict_of([r]) == verdict_of(reasons)]
    return f"{said}." if not reasons else f"{said}. {verdict_of(reasons).capitalize()}: {deciding[0].detail}."


def figures_of(check: Check, ran: Ran, trial: Trial, result: Outcome, floor: float) -> dict[str, JsonValue]:
    shown = result.main or result.null
    measured = [turn for turn in ran.score.turns if turn.phase == "measured"]
    figures: dict[str, JsonValue] = dict(shown.figures()) if shown else {}
    figures["claim"] = result.claim
    figures["detectable"] = rounded(result.detectable) if isfinite(result.detectable) else None
    if check == "aa" and (between := compared([replace(turn, arm=turn.record.arm) for turn in measured])):
        # By process, not by arm: what it is to have started the side once more.
        figures["processes"] = between.figures()
    if check != "aa" and result.null is not None:
        figures["null_run"] = result.null.figures()
    if check == "floor":
        figures["floor"] = floor
    for arm in ARMS:
        turns = [turn for turn in measured if turn.arm == arm]
        label = ran.sides[arm].name if ran.sides["a"].name != ran.sides["b"].name else f"{ran.sides[arm].name} ({arm})"
        if turns:
            figures[label] = side_figures(turns)
    figures["workload"] = ran.workload
    figures["rounds_per_turn"] = ran.score.rounds
    figures["blocks_in_order"] = list(block_rates(measured)[:24])
    figures["differences"] = _differences(trial)
    figures["foreign_cpu"] = _foreign(measured)
    return figures


def _differences(trial: Trial) -> dict[str, JsonValue]:
    """Kernels of the two sides that are not the same, declared or not: the reader sees what was compared."""
    one, two = kernel_facts(trial.a), kernel_facts(trial.b)
    names = [n for n in sorted({*one, *two}) if one.get(n) != two.get(n)]
    return {name: [one.get(name), two.get(name)] for name in names[:20]}


def _foreign(turns: Sequence[Turn]) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for arm in ARMS:
        shares = [share for t in turns if t.arm == arm and (share := t.record.foreign) is not None]
        found[arm] = rounded(sum(shares) / len(shares)) if shares else None
    return found


def artifacts_of(context: RunContext, ran: Ran, result: Outcome, floor: float | None) -> tuple[ArtifactRef, ...]:
    folder = context.folder / "artifacts"
    folder.mkdir(exist_ok=True)
    names = (ran.sides["a"].name, ran.sides["b"].name)
    draw(ran.score.turns, result, names, floor, folder / "ab.png")
    lines = [
        {"phase": t.phase, "place": t.arm, "rate": rounded(t.rate), **t.record.model_dump(mode="json")}
        for t in ran.score.turns
    ]
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    return (
        context.artifacts.put_file(folder / "ab.png", name="ab.png", media_type="image/png"),
        context.artifacts.put_bytes(text.encode("utf-8"), name="turns.jsonl", media_type="application/jsonl"),
        raw_samples(context, ran),
    )


def raw_samples(context: RunContext, ran: Ran) -> ArtifactRef:
    """Raw samples of all turns in one safetensors file: `<turn>.<array>` (docs/ab_benchmark.md)."""
    from safetensors.numpy import save_file

    tensors: dict[str, Any] = {}
    for turn in ran.score.turns:
        server = ran.servers[turn.record.arm]
        raw = read_raw(server.samples / f"turn-{turn.record.turn:05d}.safetensors")
        tensors |= {f"{turn.record.turn:05d}.{name}": array for name, array in raw.items()}
    path = Path(context.folder) / "artifacts" / "samples.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file(tensors, path)
    return context.artifacts.put_file(path, name="samples.safetensors", media_type="application/octet-stream")
