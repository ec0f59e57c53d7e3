"""Speed of the MCP server, as ratios and figures of one run.

    python tests/bench/bench_server.py [--evidence 100000] [--starts 5] [--calls 200]

Prints: the time from spawn to an answered tools/list, beside importing the SDK alone; the median time of calls that
only read a ledger with many pieces of evidence, over stdio with the SDK's client, beside an empty call to the same
server; and eight clients on two HTTP servers that append at once. Each beside its limit; exits with 1 when one is
missed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from figures import Figures
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from bitgate.store import Store, verify_ledger
from bitgate.store.records import Finding, Reason, SideRecord

BROUGHT = Path(__file__).parents[1] / "server" / "brought"
TOKEN = "a-token-of-more-than-24-characters"
PARAMS = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
OPENING = (
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": PARAMS},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}},
)
BATCH = 2000
START_S, READ_MS = 1.5, 15.0


def command(project: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "bitgate.server", "--project", str(project), "serve", *words]


def environment(**extra: str) -> dict[str, str]:
    paths = [str(BROUGHT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **extra}


def seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def spawn_to_tools(project: Path) -> None:
    with subprocess.Popen(command(project), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"".join(json.dumps(message).encode() + b"\n" for message in OPENING))
        process.stdin.flush()
        while json.loads(process.stdout.readline()).get("id") != 2:
            pass
        process.kill()


def starts(figures: Figures, project: Path, count: int) -> None:
    sdk = [sys.executable, "-c", "import mcp.server.mcpserver"]
    spawn_to_tools(project)
    imports, served = [], []
    for _ in range(count):  # in turn, so that other load falls on both
        imports.append(seconds(lambda: subprocess.run(sdk, check=True)))
        served.append(seconds(lambda: spawn_to_tools(project)))
    more = statistics.median(b - a for a, b in zip(imports, served, strict=True))
    both = f"{statistics.median(served):.2f} s against {statistics.median(imports):.2f} s"
    figures.at_most("spawn to tools/list, beyond importing the SDK alone", more, START_S, "s", detail=both)


def fill(ledger: Path, count: int) -> list[str]:
    finding = Finding(
        verdict="fail",
        check="batch",
        reasons=(Reason(code="logprobs_differ", detail="192 of 512 rows"),),
        summary="192 of 512 tokens differ between alone and in company",
        next="bisect_layer",
        figures={"rows": 512, "different": 192, "worst": [{"sequence": 3, "position": 17, "ulp": 9}] * 10},
        grade="observed",
        sides={"rollout": SideRecord(name="rollout", engine="vllm", digest="d" * 64, stable={"vllm": "0.32.0"})},
    )
    made = []
    with Store.open(ledger) as store:
        for _ in range(0, count, BATCH):
            with store.transaction():
                for _ in range(BATCH):
                    run = store.start_run(tool="run_compare", request={"check": "batch"}, actor="bench")
                    evidence = store.finish_run(run.id, "finished", finding=finding)
                    assert evidence is not None
                    made.append(evidence.id)
    return made


async def reads(figures: Figures, project: Path, evidence: list[str], calls: int) -> None:
    args = command(project)
    parameters = StdioServerParameters(command=args[0], args=args[1:], env=environment())
    with Store.open(project / ".bitgate" / "ledger.db") as store:
        run_id = store.get_evidence(evidence[len(evidence) // 2]).run_id

    async with Client(parameters) as client:
        shapes: dict[str, Callable[[int], Awaitable[Any]]] = {
            "get_evidence, one": lambda n: call(client, "get_evidence", evidence_id=evidence[n * 97 % len(evidence)]),
            "get_evidence, a page": lambda n: call(client, "get_evidence", verdict="fail", limit=20),
            "get_evidence, an old page": lambda n: call(client, "get_evidence", before=evidence[n + 1], limit=20),
            "get_evidence, nothing found": lambda n: call(client, "get_evidence", verdict="pass"),
            "get_run, finished": lambda n: call(client, "get_run", run_id=run_id),
            "an unknown tool (the protocol alone)": lambda n: client.call_tool("none", {}),
        }
        print(f"reading over stdio, {len(evidence)} pieces of evidence, p50:")
        for name, ask in shapes.items():
            times = [await timed(ask, n) for n in range(calls)]
            p50, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
            figures.at_most(f"  {name}", p50 * 1000, READ_MS, "ms", detail=f"p99 {p99 * 1000:.1f} ms")


async def call(client: Client, tool: str, **arguments: Any) -> None:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content


async def timed(ask: Callable[[int], Awaitable[Any]], n: int) -> float:
    started = time.perf_counter()
    await ask(n)
    return time.perf_counter() - started


@contextmanager
def http_server(project: Path) -> Iterator[str]:
    env = environment(BITGATE_TOKEN=TOKEN)
    with subprocess.Popen(command(project, "--http", "--port", "0"), stderr=subprocess.PIPE, env=env) as process:
        assert process.stderr is not None
        found = re.search(rb"http://\S+", process.stderr.readline())
        assert found is not None
        yield found[0].decode()
        process.terminate()


async def appends(figures: Figures, project: Path, each: int) -> None:
    made: list[str] = []

    async def client(url: str) -> None:
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120) as http,
            Client(streamable_http_client(url, http_client=http)) as session,
        ):
            for _ in range(each):
                result = await session.call_tool("run_probe", {"wait_s": 55, "steps": 1})
                assert not result.is_error, result.content
                made.append(result.structured_content["evidence_id"])

    with http_server(project) as first, http_server(project) as second:
        started = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for url in [first, second] * 4:
                tasks.start_soon(client, url)
        took = time.perf_counter() - started
    report = verify_ledger(project / ".bitgate" / "ledger.db")
    chain = f"chain of {report.rows} rows {'valid' if report.ok else 'BROKEN'}"
    seen = f"{len(set(made))} of {8 * each} runs recorded in {took:.1f} s, no error, {chain}"
    good = len(set(made)) == 8 * each and report.ok
    figures.holds("8 clients on 2 servers", seen, "no error, no lost row, chain valid", good)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evidence", type=int, default=100_000)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--each", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bitgate-bench-") as folder:
        project = Path(folder)
        (project / "bitgate.toml").write_text('[model.tiny]\npath = "tiny"\n', encoding="utf-8")
        figures = Figures()
        starts(figures, project, options.starts)
        evidence = fill(project / ".bitgate" / "ledger.db", options.evidence)
        anyio.run(reads, figures, project, evidence, options.calls)
        anyio.run(appends, figures, project, options.each)
    figures.end()


if __name__ == "__main__":
    main()
