"""kill -9 of server, supervisor, launcher, guard, engine or daemon at random moments of a run.

`make stress`, or `python tests/stress/kill_moments.py [--moments 50] [--seed 0] [--torchrun PYTHON]`.

Prints a line a moment; exits 1 when a ledger does not verify, a process lives after ten seconds, or a pass appears.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tools" / "runs" / "tiny"))

from killing import ORPHAN_LIMIT_S, Aftermath, Moment, kill_one, moment

from bitgate.tools.config.project import Project

LOCAL: dict[str, Any] = {"options": {"mischief": "forever_with_a_daemon", "when": "step"}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--torchrun", default=os.environ.get("BITGATE_ENGINE_PYTHON"), help="every fifth moment has two ranks"
    )
    parser.add_argument("--at-once", type=int, default=4)
    options = parser.parse_args()
    start = time.monotonic()
    moments = [chosen(options.seed + number, number, options.torchrun) for number in range(options.moments)]
    with ThreadPoolExecutor(options.at_once) as pool:
        problems = sum(pool.map(one, range(options.moments), moments))
    print(f"{options.moments} moments in {time.monotonic() - start:.0f} s: {problems} with a problem")
    return 1 if problems else 0


def chosen(seed: int, number: int, torchrun: str | None) -> Moment:
    if torchrun and number % 5 == 4:
        return moment(seed, {"python": torchrun, "launcher": {"kind": "torchrun", "nproc": 2}, **LOCAL}, 3.0)
    # A run that would end by itself meets the kill also while it concludes.
    return moment(seed, {"jobs": 2} if number % 5 == 3 else LOCAL, 3.0)


def one(number: int, at: Moment) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bitgate.toml").write_text("[policy]\ndisk_reserve = 0\n", encoding="utf-8")
        after = kill_one(Project.load(Path(folder)), at)
    wrong = problems(at, after)
    what = f"{at.victim} after {at.after_s:.2f} s" + ("" if after.killed else " (gone before)")
    print(
        f"{number:3} {what:50} {after.run.state:9} gone after {after.orphans_gone_s:4.1f} s  {' '.join(wrong)}",
        flush=True,
    )
    return bool(wrong)


def problems(at: Moment, after: Aftermath) -> list[str]:
    found = {
        "ledger does not verify": not after.verified,
        f"a process lived {after.orphans_gone_s:.1f} s": after.orphans_gone_s > ORPHAN_LIMIT_S,
        f"{after.run.state} with {after.verdicts}": len(after.verdicts) != (after.run.state == "finished"),
        "finished though endless": after.run.state == "finished" and "options" in at.request,
        f"the run is {after.run.state}": after.run.state not in ("lost", "failed", "cancelled", "finished"),
    }
    return [name for name, wrong in found.items() if wrong]


if __name__ == "__main__":
    sys.exit(main())
