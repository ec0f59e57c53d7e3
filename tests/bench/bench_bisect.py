"""How often bisect_layer is right: the whole matrix of injected faults, on engines that are started once.

    python tests/bench/bench_bisect.py [--faults all] [--shard I/N] [--only TEXT] [--out FILE] [--resume]

Every class of difference at every point where it makes sense (tests/tools/bisect/injector/matrix.py says which and
why), in both layers, on both sides, on three pairs that are bit-equal without a fault: vLLM batch_invariant against
itself, vLLM against vllm_kernels, transformers against itself. Prints what changed bits, and of those: the exact
operator named, the class right, the script reproducing, answers that say "unknown", and silent wrong answers.

Exit 1 when any answer is silently wrong, when of the answers that are not "unknown" one has not the exact operator,
the right class or a script that reproduces, when more than 5 % are "unknown", or when a fault could not be run. The
interpreter with vLLM is BITGATE_ENGINE_PYTHON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from figures import Figures

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "tests/tools/bisect/lab.py"
CHECKPOINTS = ROOT / "tests/tools/bisect/injector/checkpoints.py"
UNKNOWN_AT_MOST = 5.0
EVERY_S = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", default="all", help="all, or how many of a stratified choice")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--only", default="", help="faults whose title contains this")
    parser.add_argument("--out", type=Path, help="one JSON line a fault, as they end")
    parser.add_argument("--resume", action="store_true", help="leave out what is in --out already")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = namespace(Path(folder))
        run(home, str(CHECKPOINTS), folder)
        lines = args.out or Path(folder) / "faults.jsonl"
        if not args.resume:
            lines.write_text("", encoding="utf-8")
        started = time.monotonic()
        run_lab(home, lines, [folder, args.faults, "--shard", args.shard, "--only", args.only, "--done", str(lines)])
        seconds = time.monotonic() - started
        found = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    report([f for f in found if args.only in f["title"]], seconds)
    return 0


def namespace(folder: Path) -> Path:
    (folder / "home" / "bitgate").mkdir(parents=True)
    for room in ("tools", "store"):
        (folder / "home" / "bitgate" / room).symlink_to(ROOT / room)
    return folder / "home"


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(home)}


def python() -> str:
    return os.environ.get("BITGATE_ENGINE_PYTHON", sys.executable)


def run(home: Path, *command: str) -> None:
    done = subprocess.run([python(), *command], env=environment(home), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])


def run_lab(home: Path, lines: Path, arguments: list[str]) -> None:
    """Shows how far it is while it runs."""
    count, said = 0, time.monotonic()
    with (
        lines.with_suffix(".log").open("w", encoding="utf-8") as log,
        lines.open("a", encoding="utf-8") as out,
        subprocess.Popen(
            [python(), str(LAB), *arguments], env=environment(home), stdout=subprocess.PIPE, stderr=log, text=True
        ) as lab,
    ):
        assert lab.stdout is not None
        for line in lab.stdout:
            if line.startswith('{"started"'):
                print(f"engines up: {line.strip()}", flush=True)
            if not line.startswith('{"title"'):
                continue
            count += 1
            out.write(line)
            out.flush()
            if time.monotonic() - said > EVERY_S:
                said = time.monotonic()
                print(f"{count} faults done, the last: {json.loads(line)['title']}", flush=True)
    if lab.returncode:
        sys.exit(lines.with_suffix(".log").read_text(encoding="utf-8")[-2000:])


def report(found: list[dict[str, Any]], seconds: float) -> None:
    broken = [f for f in found if "failed" in f]
    shown = [f for f in found if "failed" not in f and f["class"] is not None]
    unknown = [f for f in shown if f["class"] == "unknown"]
    said = [f for f in shown if f["class"] != "unknown"]
    inexact = [f for f in shown if not f["exact"]]
    wrong = [f for f in said if outcome(f) == "wrong"]
    # Other tokens or positions are an input, and no operator shows them.
    scripts = [f for f in said if f["found"] not in ("token_ids", "positions")]
    silent = [f for f in scripts if not f.get("reproduces")]
    same = len(found) - len(shown) - len(broken)
    print(f"{len(found)} faults in {seconds / 60:.1f} min ({seconds / max(len(found), 1):.2f} s each)")
    print(f"{len(shown)} changed bits, {same} changed none at their point with this data and do not count")
    table(found)
    for kind, entries in (("WRONG", wrong), ("NO SCRIPT", silent), ("UNKNOWN", unknown), ("BROKEN", broken)):
        for f in entries:
            print(
                f"  {kind} {f['title']}: {f.get('class')} at {f.get('found')}: {f.get('mechanism') or f.get('failed')}"
            )
    figures = Figures()
    figures.at_most("faults that could not be run", len(broken), 0)
    figures.at_least("exact operator named", share(len(shown) - len(inexact), shown), 100, "%", detail=of(shown))
    figures.at_least("class right, of those named", share(len(said) - len(wrong), said), 100, "%", detail=of(said))
    figures.at_least("script reproduces", share(len(scripts) - len(silent), scripts), 100, "%", detail=of(scripts))
    figures.at_most("silent wrong answers", len(wrong), 0)
    figures.at_most("unknown", share(len(unknown), shown), UNKNOWN_AT_MOST, "%", detail=f"{len(unknown)} {of(shown)}")
    figures.end()


def share(count: int, among: list[dict[str, Any]]) -> float:
    return 100 * count / max(len(among), 1)


def of(among: list[dict[str, Any]]) -> str:
    return f"of {len(among)}"


def table(found: list[dict[str, Any]]) -> None:
    counts = Counter((f["label"], f["pair"], outcome(f)) for f in found)
    for label in sorted({f["label"] for f in found}):
        cells = []
        for pair in ("vllm", "kernels", "transformers"):
            kinds = [f"{counts[label, pair, kind]} {kind}" for kind in OUTCOMES if counts[label, pair, kind]]
            cells.append(f"{pair}: {', '.join(kinds) or '-'}")
        print(f"  {label:20} {'   '.join(cells)}")


OUTCOMES = ("right", "wrong", "unknown", "same bits", "broken")


def outcome(f: dict[str, Any]) -> str:
    if "failed" in f:
        return "broken"
    if f["class"] is None:
        return "same bits"
    if f["class"] == "unknown":
        return "unknown"
    return "right" if f["exact"] and f["class"] == f["label"] else "wrong"


if __name__ == "__main__":
    sys.exit(main())
