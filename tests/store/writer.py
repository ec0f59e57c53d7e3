"""A process of its own that writes to a ledger, for the tests of many writers and of killed writers.

`writer.py append LEDGER COUNT`: waits for a line, then runs COUNT tools to their end.
`writer.py fork LEDGER`: for each line it reads, forks a child that writes until it is killed; prints its pid.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import bitgate.store.migrations  # noqa: F401 - imported when a ledger is made: here, so that the children need not
from bitgate.store import Store
from bitgate.store.records import Finding


def write_one(store: Store, number: int) -> None:
    run = store.start_run("run_compare", {"number": number}, f"writer {os.getpid()}")
    plot = store.artifacts.put_bytes(b"%d" % number * 5000, "plot.png")
    finding = Finding(verdict="fail", summary="1 row differs", next="bisect_layer", grade="observed", artifacts=(plot,))
    store.finish_run(run.id, "finished", finding=finding)


def append(path: Path, count: int) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    with Store.open(path) as store:
        for number in range(count):
            write_one(store, number)


def fork(path: Path) -> None:
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            write_until_killed(path)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("gone", flush=True)


def write_until_killed(path: Path) -> None:
    try:
        store = Store.open(path)
        for number in itertools.count():
            write_one(store, number)
    finally:
        os._exit(3)


if __name__ == "__main__":
    mode, ledger, *rest = sys.argv[1:]
    append(Path(ledger), int(rest[0])) if mode == "append" else fork(Path(ledger))
