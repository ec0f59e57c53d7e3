"""Run by the engine's interpreter: puts faults into warm engines and localises each, one JSON line a fault.

    lab.py FOLDER N|all [--seed S] [--shard I/N] [--only TEXT] [--done FILE]

FOLDER holds the checkpoints `dense` and `sparse`. Three pairs that are bit-equal without a fault: vLLM
(batch_invariant) against itself, vLLM against vllm_kernels, transformers against itself. Every engine starts once; what
follows is the product's own path from hashing to the repro.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import numpy as np
from injector.matrix import Put, matrix, stratified
from injector.sites import KernelsSites, Site, TransformersSites, VllmSites

from bitgate.tools.bisect.cause import localise
from bitgate.tools.bisect.graph import label
from bitgate.tools.bisect.observation import read_observation
from bitgate.tools.bisect.pairs import target_of
from bitgate.tools.bisect.run import given_otherwise
from bitgate.tools.engines.worker.job import Job
from bitgate.tools.engines.worker.probes import repro
from bitgate.tools.engines.worker.probes.observe import observed
from bitgate.tools.engines.worker.probes.probe import probe
from bitgate.tools.engines.worker.sequences import Sequences
from bitgate.tools.engines.worker.table import load_engine

SITES = {"vllm": VllmSites, "vllm_kernels": KernelsSites, "transformers": TransformersSites}
PAIRS = {"vllm": ("vllm", "vllm"), "kernels": ("vllm", "vllm_kernels"), "transformers": ("transformers",) * 2}
SHRINK_S = 1.0
"""How small a script gets is for other tests; that it still shows the failure is asked of every fault."""
# vLLM makes the group of expert ranks only for a model with experts, and only once a process: such a model comes first.
MODELS = (("sparse", "bfloat16"), ("dense", "bfloat16"), ("dense", "float32"))


class Warm:
    """An engine that is up, and its sites by (layer, point)."""

    def __init__(self, name: str, path: Path, dtype: str) -> None:
        served = {"enforce_eager": True, "max_model_len": 128, "batch_invariant": True, "dtype": dtype}
        options = {"dtype": dtype} if name == "transformers" else served
        job = Job(1, "r", "s", name, str(path), 0, options, "", [], "", "", 5.0, 1, None)
        self.name, self.engine = name, load_engine(job)
        self.sites = sites_of(name, self.engine, str(path))

    @contextlib.contextmanager
    def faulty(self, places: list[tuple[int, str, Any]]) -> Iterator[None]:
        undo = []
        try:
            for layer, point, make in places:
                site = self.sites[layer, point]
                undo.append(site.put(make(site, point)))
            yield
        finally:
            for way in reversed(undo):
                way()


def sites_of(name: str, engine: Any, path: str) -> dict[tuple[int, str], Site]:
    """By (layer, point). The sum in front of a layer's first norm is the point of the layer above."""
    found = SITES[name](engine, path).sites()
    return {(layer - (point == "resid_post"), point): site for layer, point, site in found}


class Lab:
    def __init__(self, folder: Path, puts: list[Put]) -> None:
        rng = np.random.default_rng(5)
        draws = [(rng.integers(0, 200, 21).tolist(), rng.integers(0, 200, 2).tolist()) for _ in range(2)]
        self.sequences, self.work = Sequences.of(draws), folder / "work"
        self.engines: dict[tuple[str, str, str], Warm] = {}
        wanted = {(name, put.model, put.fault.dtype) for put in puts for name in PAIRS[put.pair]}
        for model, dtype in MODELS:
            for name in SITES:
                if (name, model, dtype) in wanted:
                    self.engines[name, model, dtype] = Warm(name, folder / model, dtype)

    def one(self, put: Put) -> dict[str, Any]:
        started = time.monotonic()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                made = self.localised(put)
        except Exception as error:  # noqa: BLE001 - one fault that cannot run is reported, and the others go on
            traceback.print_exc()
            made = {"failed": f"{type(error).__name__}: {error}"}
            self.forget()
        shutil.rmtree(self.work, ignore_errors=True)
        about = {"title": put.title, "label": put.fault.label, "pair": put.pair}
        return about | made | {"seconds": round(time.monotonic() - started, 2)}

    def forget(self) -> None:
        """Requests of a step that broke are still queued, and would run with the next one's."""
        for warm in self.engines.values():
            if warm.name == "vllm":
                llm = warm.engine._llm.llm_engine
                llm.abort_request(list(llm.output_processor.request_states))

    def legs(self, put: Put) -> list[tuple[Warm, list[tuple[int, str, Any]], list[list[int]]]]:
        names = PAIRS[put.pair]
        # Company is a matter of one side: alone against together.
        names = (names[1], names[1]) if put.fault.company else names
        groups: list[list[list[int]]] = [[[0], [1]], [[0, 1]]] if put.fault.company else [[[0, 1]], [[0, 1]]]
        makes = [put.fault.partner, put.fault.make] if put.side else [put.fault.make, put.fault.partner]
        legs = []
        for side, (name, group, make) in enumerate(zip(names, groups, makes, strict=True)):
            places = [(layer, point, other) for layer, point, other, sides in put.also if side in sides]
            own = [] if make is None else [(put.layer, put.point, make)]
            legs.append((self.engines[name, put.model, put.fault.dtype], own + places, group))
        return legs

    def localised(self, put: Put) -> dict[str, Any]:
        legs = self.legs(put)
        logprobs = [self.observe(leg, "ab"[n], None) for n, leg in enumerate(legs)]
        found = localise(*(read_observation([self.work / name / "step"]) for name in "ab"))
        if found.cause is None:
            differs = bool((logprobs[0] != logprobs[1]).any()) or bool(found.different)
            return {"found": None, "class": "none", "exact": False} if differs else {"found": None, "class": None}
        node = found.cause.node
        made = {
            "found": label(node.point),
            "exact": (node.point[0], node.point[1]) in [(put.layer, point) for point in put.accepted],
            "amplified": sum(point[1] == "topk_ids" for point in found.different if point != node.point),
            "propagated": len(found.different) - 1,
        }
        if node.kind == "input":
            return made | {"class": given_otherwise(found)["class"], "reproduces": None}
        target = target_of(node, found.cause.row, found.layers).model_dump()
        for n, leg in enumerate(legs):
            self.observe(leg, "ab"[n], target)
        folders = [str(self.work / name / "step") for name in "ab"]
        if not all(Path(folder, "program0.json").exists() for folder in folders):
            return made | {"class": "unknown", "mechanism": "the operators could not be recorded"}
        report = probe({
            "a": folders[0], "b": folders[1], "names": ["a", "b"], "kind": node.kind, "where": label(node.point),
            "sequence": found.cause.row[0], "position": found.cause.row[1], "same_side": put.fault.company,
            "repro": str(self.work / "repro"), "shrink_s": SHRINK_S,
        })  # fmt: skip
        return made | {
            "class": report.get("class", "unknown"),
            "mechanism": report.get("mechanism") or report.get("failed"),
            "reproduces": report.get("repro", {}).get("reproduces"),
            "tried": report.get("experiments"),
        }

    def observe(self, leg: tuple[Warm, list[tuple[int, str, Any]], list[list[int]]], name: str, target: Any) -> Any:
        warm, places, groups = leg
        step = {"kind": "prefill", "name": "step", "groups": groups, "packing": "engine", "company": []}
        step |= {"observe": {"target": target}}
        with warm.faulty(places):
            rows, _ = observed(warm.name, warm.engine, step, self.sequences, str(self.work / name))
        values = rows.columns["logprob"]
        bits = np.asarray(values.detach() if hasattr(values, "detach") else values, np.float32).view(np.int32)
        return bits[np.lexsort((np.asarray(rows.columns["position"]), np.asarray(rows.columns["sequence"])))]


def in_this_process(folder: str) -> int:
    """The script as written, without an interpreter of its own: three starts of torch a fault would be the whole time.

    That scripts run in fresh processes is for the tests of the tool, and for the first fault of a run.
    """
    path = Path(folder) / repro.SCRIPT
    names: dict[str, Any] = {"__name__": "repro", "__file__": str(path)}
    try:
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
        return int(names["main"]())
    except (Exception, SystemExit):  # noqa: BLE001 - as the script itself: whatever it raises, it cannot run
        traceback.print_exc()
        return 2


def chosen(wanted: str, seed: int, shard: str, only: str, done: str | None) -> list[Put]:
    puts = matrix() if wanted == "all" else stratified(int(wanted), seed)
    part, parts = map(int, shard.split("/"))
    finished = set()
    if done and Path(done).exists():
        lines = Path(done).read_text(encoding="utf-8").splitlines()
        finished = {json.loads(line)["title"] for line in lines if line.startswith("{")}
    return [put for put in puts[part::parts] if only in put.title and put.title not in finished]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("wanted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--only", default="")
    parser.add_argument("--done")
    args = parser.parse_args()
    puts = chosen(args.wanted, args.seed, args.shard, args.only, args.done)
    started = time.monotonic()
    lab = Lab(args.folder, puts)
    up = {"engines": len(lab.engines), "faults": len(puts), "seconds": round(time.monotonic() - started, 1)}
    sys.stdout.write(json.dumps({"started": up}) + "\n")
    fresh = repro._exit_code
    for number, put in enumerate(puts):
        repro._exit_code = fresh if number == 0 else in_this_process
        sys.stdout.write(json.dumps(lab.one(put), allow_nan=False) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
