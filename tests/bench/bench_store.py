"""Speed of the store, as ratios in one run.

    python tests/bench/bench_store.py [--evidence 100000] [--appends 150] [--folder DIR]

Prints: the rate of eight processes that append at once, against one process and against plain SQLite inserting the same
bytes with the same durability; the median time of reading with many pieces of evidence stored, against reading one row
by its number; verification in rows a second, against hashing the same bytes with one `hashlib.sha256` loop. Fails when
a row is lost or the ledger does not verify; limits of time are those of the tools above it (bench_gates, bench_server).
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bitgate.store import Store, verify_ledger
from bitgate.store.records import Finding, ModelRecord, Reason, SideRecord

PROCESSES = 8
CHECKS = ("batch", "phase", "repeat", "rollout_vs_trainer")
VERDICTS = ("pass", "fail", "fail", "invalid")


def finding(number: int) -> Finding:
    def side(name: str) -> SideRecord:
        return SideRecord(
            name=name,
            engine="vllm",
            digest=f"{number % 50:064x}",
            options={"batch_invariant": True, "dtype": "float32"},
            stable={"vllm": "0.32.0", "torch": "2.13.0", "attention": "CPU_ATTN"},
            volatile={"pid": number},
        )

    return Finding(
        # The first ones are the only inconclusive ones: finding them must not mean reading all that came after.
        verdict="inconclusive" if number < 20 else VERDICTS[number % 4],  # type: ignore[arg-type]
        check=CHECKS[number % 3],
        reasons=(Reason(code="bits_differ", detail="sequence 3, position 17: 1 ulp"),),
        summary=f"{number} of 8192 rows differ",
        next="bisect_layer",
        figures={"rows": 8192, "different": number, "k3": 0.25, "worst": [[1, 2, 3.5]] * 5},
        grade="observed",
        sides={"rollout": side("rollout"), "trainer": side("trainer")},
        models={"rollout": ModelRecord(name="tiny", architecture_digest="a" * 64, weights_digest="b" * 64)},
    )


def append(path: Path, count: int) -> None:
    """What each appending process does."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    with Store.open(path) as store:
        for number in range(count):
            run = store.start_run("run_compare", {"check": "batch"}, "bench")
            store.finish_run(run.id, "finished", finding=finding(number))


def append_rate(path: Path, processes: int, appends: int) -> float:
    """Runs recorded a second: two transactions and three rows each."""
    Store.open(path).close()
    command = [sys.executable, __file__, "--append", str(path), "--appends", str(appends)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        for _ in range(processes)
    ]
    for process in started:
        process.stdout.readline()  # type: ignore[union-attr]
    start = time.perf_counter()
    for process in started:
        process.stdin.write("go\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    codes = [process.wait() for process in started]
    seconds = time.perf_counter() - start
    for process in started:
        process.communicate()
    report = verify_ledger(path)
    if any(codes) or not report.ok or report.rows != 3 * processes * appends:
        sys.exit(f"lost rows or errors: exit codes {codes}, {report}")
    return processes * appends / seconds


def plain_rate(path: Path, appends: int) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE rows (seq INTEGER PRIMARY KEY, body TEXT)")
    body = finding(1).model_dump_json()
    start = time.perf_counter()
    for _ in range(appends):
        connection.execute("INSERT INTO rows (body) VALUES ('started')")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO rows (body) VALUES (?)", (body,))
        connection.execute("INSERT INTO rows (body) VALUES ('finished')")
        connection.execute("COMMIT")
    seconds = time.perf_counter() - start
    connection.close()
    return appends / seconds


def fill(store: Store, count: int) -> None:
    store.ledger.rows("PRAGMA synchronous = OFF")  # only to get there sooner: what is measured afterwards reads
    for first in range(0, count, 1000):
        with store.transaction():
            for number in range(first, min(first + 1000, count)):
                run = store.start_run("run_compare", {"check": "batch"}, "bench")
                store.finish_run(run.id, "finished", finding=finding(number))


def median_ms(read: Callable[[], object], times: int = 200) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        read()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1000


def reading(store: Store) -> None:
    newest = store.list_evidence(limit=1000)
    one = median_ms(lambda: store.ledger.rows("SELECT body FROM entries WHERE seq = 5"))
    reads: dict[str, Callable[[], object]] = {
        "get_evidence": lambda: store.get_evidence(newest[500].id),
        "get_run": lambda: store.get_run(newest[500].run_id),
        "list_evidence, newest 50": store.list_evidence,
        "list_evidence, rare verdict of the oldest": lambda: store.list_evidence("run_compare", verdict="inconclusive"),
        "list_evidence, tool, check, verdict, page 20": lambda: store.list_evidence(
            "run_compare", "batch", "pass", before=newest[-1].id
        ),
        "list_runs, newest 50": store.list_runs,
        "running_runs": store.running_runs,
        "open, read the head, close": lambda: reopen(store.ledger.path),
    }
    for name, read in reads.items():
        taken = median_ms(read)
        print(f"  {name}: p50 {taken:.2f} ms, {taken / one:.0f}x reading one row by its number")


def reopen(path: Path) -> None:
    with Store.open(path) as store:
        store.head()


def verifying(path: Path) -> None:
    connection = sqlite3.connect(path)
    start = time.perf_counter()
    for (body,) in connection.execute("SELECT CAST(body AS BLOB) FROM entries ORDER BY seq"):
        hashlib.sha256(body).hexdigest()
    hashing = time.perf_counter() - start
    connection.close()
    start, start_cpu = time.perf_counter(), time.process_time()
    report = verify_ledger(path)
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    if not report.ok:
        sys.exit(f"the ledger does not verify: {report.problem}")
    print(
        f"verify: {report.rows} rows in {seconds:.2f} s, {report.rows / seconds:.0f} rows/s "
        f"({report.rows / cpu:.0f} for each second of a core), "
        f"{seconds / hashing:.1f}x one sha256 loop over the bodies"
    )


def measure(folder: Path, evidence: int, appends: int) -> None:
    plain = plain_rate(folder / "plain.db", appends)
    one = append_rate(folder / "one.db", 1, appends)
    many = append_rate(folder / "many.db", PROCESSES, appends)
    print(
        f"append: {PROCESSES} processes record {many:.0f} runs/s ({3 * many:.0f} rows/s), nothing lost, chain valid; "
        f"{many / one:.2f}x one process ({one:.0f}), {many / plain:.2f}x plain SQLite ({plain:.0f})"
    )
    with Store.open(folder / "full.db") as store:
        fill(store, evidence)
        print(f"read, with {evidence} pieces of evidence stored:")
        reading(store)
    verifying(folder / "full.db")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evidence", type=int, default=100_000)
    parser.add_argument("--appends", type=int, default=150, help="runs that each process records")
    parser.add_argument("--folder", type=Path, help="where the ledgers lie (a local disk; default: a temporary folder)")
    parser.add_argument("--append", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.append:
        append(arguments.append, arguments.appends)
        return
    folder = Path(tempfile.mkdtemp(prefix="bench_store_", dir=arguments.folder))
    try:
        measure(folder, arguments.evidence, arguments.appends)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
