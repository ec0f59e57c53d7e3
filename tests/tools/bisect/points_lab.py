"""Run by the engine's interpreter: pairs of real engines localised on the product's own path, one JSON line each.

`points_lab.py WORK [NAME-PART]`: models of experts and of recurrent layers, transformers against itself with one
operator changed on the second side, and against Megatron-Core.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from points_faults import FAULTS
from points_int8 import write_int8
from reports import drawn

from bitgate.tools.bisect.cause import Localised, localise
from bitgate.tools.bisect.graph import label
from bitgate.tools.bisect.observation import read_observation
from bitgate.tools.bisect.pairs import target_of
from bitgate.tools.engines.worker.job import Job
from bitgate.tools.engines.worker.probes.observe import observed
from bitgate.tools.engines.worker.probes.probe import probe
from bitgate.tools.engines.worker.table import load_engine
from bitgate.tools.engines.worker.tiny_model import TinyModel, write_tiny_model

MODELS = {
    "sparse": TinyModel(family="qwen3_moe", layers=2, experts=4),
    "int8": TinyModel(family="qwen3", layers=2),
    "delta": TinyModel(family="qwen3_next", layers=2, experts=4),
    "scan": TinyModel(family="bamba", layers=2),
}
TWIN = Path(__file__).with_name("megatron_twin.py")
Side = tuple[str, dict[str, Any]]
LOOP: Side = ("transformers", {"experts_implementation": "eager"})
GROUPED: Side = ("transformers", {"experts_implementation": "grouped_mm"})
MEGATRON: Side = ("megatron", {})
VLLM: Side = ("vllm", {"enforce_eager": True, "max_model_len": 128})
TOGETHER, ALONE = [[0, 1]], [[0], [1]]


def twin(*parts: str) -> Side:
    return "python", {"norm": True, "attention": True} | dict.fromkeys(parts, True)


@dataclass(frozen=True)
class Pair:
    """Two sides of one model; of either: what is changed in it, and which sequences run together."""

    model: str
    a: Side
    b: Side
    faults: tuple[str, str] = ("none", "none")
    groups: tuple[list[list[int]], list[list[int]]] = (TOGETHER, TOGETHER)
    probed: bool = True
    """Whether experiments follow; they take a minute on two long programs that differ in where they round."""


DELTA: Side = ("transformers", {"dtype": "float32"})


PAIRS: dict[str, Pair] = {
    # Before any other engine of the process: vLLM sets up its groups of ranks itself.
    "vllm and transformers": Pair("sparse", VLLM, LOOP),
    "int8, clean": Pair("int8", VLLM, VLLM),
    "int8, scales": Pair("int8", VLLM, VLLM, ("none", "rounded scales")),
    "delta rule, vllm": Pair("delta", VLLM, VLLM),
    "delta rule, vllm and transformers": Pair("delta", VLLM, ("transformers", {})),
    "a loop and its equal": Pair("sparse", LOOP, LOOP),
    "a loop and grouped products": Pair("sparse", LOOP, GROUPED),
    "one expert's weight": Pair("sparse", LOOP, LOOP, ("none", "other expert")),
    "an expert's rows backwards": Pair("sparse", LOOP, LOOP, ("none", "rows backwards")),
    "another token's row": Pair("sparse", LOOP, LOOP, ("own loop", "another token's row")),
    "transformers and megatron": Pair("sparse", LOOP, MEGATRON),
    "norms and attention made equal": Pair("sparse", twin(), MEGATRON, groups=(ALONE, ALONE), probed=False),
    "and the experts": Pair("sparse", twin("experts"), MEGATRON, groups=(ALONE, ALONE)),
    "delta rule, clean": Pair("delta", DELTA, DELTA),
    "delta rule, convolution": Pair("delta", DELTA, DELTA, ("none", "other kernel")),
    "delta rule, scan": Pair("delta", DELTA, DELTA, ("none", "other decay")),
    "delta rule, alone and together": Pair("delta", DELTA, DELTA, groups=(ALONE, TOGETHER)),
    "mamba2, clean": Pair("scan", DELTA, DELTA),
    "mamba2, convolution": Pair("scan", DELTA, DELTA, ("none", "other kernel")),
    "mamba2, scan": Pair("scan", DELTA, DELTA, ("none", "other decay")),
    "mamba2, alone and together": Pair("scan", DELTA, DELTA, groups=(ALONE, TOGETHER)),
}


class Lab:
    def __init__(self, work: Path) -> None:
        self.work, self.sequences = work, drawn()
        self.engines: dict[str, Any] = {}

    def model(self, name: str) -> Path:
        path = self.work.parent / f"{self.work.name}-{name}"
        write = write_int8 if name == "int8" else write_tiny_model
        return path if path.exists() else write(path, MODELS[name])

    def engine(self, model: str, side: Side) -> Any:
        name, options = side
        key = json.dumps([model, name, options], sort_keys=True)
        if key not in self.engines:
            module = str(TWIN) if name == "python" else None
            job = Job(1, "r", "s", name, str(self.model(model)), 0, options, "", [], "", "", 5.0, 1, module)
            self.engines[key] = load_engine(job)
        return self.engines[key]

    def observe(self, pair: Pair, target: Any) -> None:
        for number, (name, options) in enumerate((pair.a, pair.b)):
            engine = self.engine(pair.model, (name, options))
            step = {"kind": "prefill", "name": "step", "groups": pair.groups[number], "company": []}
            step |= {"packing": "engine" if name in ("python", "vllm") else "padded", "observe": {"target": target}}
            fault = FAULTS[pair.faults[number]]
            with fault(getattr(engine, "_model", None)):
                observed(name, engine, step, self.sequences, str(self.work / "ab"[number]))

    def one(self, name: str, pair: Pair, *, proofs: bool) -> dict[str, Any]:
        started = time.monotonic()
        self.observe(pair, None)
        found = localise(*(read_observation([self.work / side / "step"]) for side in "ab"))
        made: dict[str, Any] = {"pair": name, "points": points_of(found), "missing": [label(p) for p in found.missing]}
        if found.cause is None:
            made |= {"point": None, "class": "equal" if not found.different else "no cause"}
        elif not pair.probed:
            made |= {"point": label(found.cause.node.point), "class": None}
        else:
            self.observe(pair, target_of(found.cause.node, found.cause.row, found.layers).model_dump())
            made |= self.said(found, pair, proofs)
        shutil.rmtree(self.work, ignore_errors=True)
        return made | {"seconds": round(time.monotonic() - started, 2)}

    def said(self, found: Localised, pair: Pair, proofs: bool) -> dict[str, Any]:
        assert found.cause is not None
        sequence, position = found.cause.row
        options = {
            "a": str(self.work / "a" / "step"), "b": str(self.work / "b" / "step"), "names": ["a", "b"],
            "same_side": pair.groups[0] != pair.groups[1], "kind": found.cause.node.kind,
            "where": label(found.cause.node.point), "sequence": sequence, "position": position,
            "repro": str(self.work / "repro"), "proofs": 3 if proofs else 0, "shrink_s": 2.0,
        }  # fmt: skip
        report = probe(options)
        if not proofs and "repro" in report:
            script = str(self.work / "repro" / "repro.py")
            report["repro"]["reproduces"] = runpy.run_path(script, run_name="repro")["main"]() == 1
        return {
            "point": label(found.cause.node.point),
            "through": [label(p) for p in found.cause.node.through],
            **report,
        }


def points_of(found: Localised) -> dict[str, list[Any]]:
    """Point -> its status, rows compared and rows different."""
    made: dict[str, list[Any]] = {}
    for point, status in found.status.items():
        seen = found.compared.get(point)
        made[label(point)] = [status, len(seen.keys) if seen else 0, seen.different if seen else 0]
    return made


def main() -> None:
    work, part = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    lab = Lab(work)
    for number, (name, pair) in enumerate((n, p) for n, p in PAIRS.items() if part in n):
        with open(os.devnull, "w", encoding="utf-8") as quiet, contextlib.redirect_stdout(quiet):
            found = lab.one(name, pair, proofs=number == 0)
        sys.stdout.write(json.dumps(found, allow_nan=False) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
