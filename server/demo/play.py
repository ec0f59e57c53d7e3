"""Plays the parts: two `bitgate serve` on one ledger, one a role, asked as MCP clients do, and a person who signs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import click
from mcp import Client, StdioServerParameters

from bitgate.gates.rows import Role
from bitgate.server.cli_output import Bar
from bitgate.server.demo import shown
from bitgate.server.demo.acts import Act, Ask, Part, Propose, Sign, Step, Submit
from bitgate.server.demo.person import Person
from bitgate.tools.errors import BitgateError

LOG: Final = "server.log"
WAIT_S: Final = 50
AT_ONCE: Final = 2
"""Runs at the same time. Two engines keep two cores busy; a run that measures speed is asked alone."""
ROLES: Final[tuple[Role, ...]] = ("baseline", "consistency")

Answer = dict[str, Any]


async def play(folder: Path, parts: Sequence[Part], person: Person | None) -> list[str]:
    """Every part in order; returns one line for each answer that was not the expected one."""
    async with agents(folder) as clients:
        player = Player(clients, person)
        for part in parts:
            click.secho(f"\n{part.title}", bold=True, underline=True)
            for step in part.steps:
                await player.step(step)
    return player.surprises


@asynccontextmanager
async def agents(folder: Path) -> AsyncIterator[Mapping[Role, Client]]:
    """A client of a server of its own for each role, all on the same ledger at once."""
    from mcp.client.stdio import stdio_client

    async with AsyncExitStack() as stack:
        log = stack.enter_context((folder / LOG).open("w", encoding="utf-8"))
        clients: dict[Role, Client] = {}
        for role in ROLES:
            words = ["-m", "bitgate.server", "--project", str(folder), "serve", "--role", role]
            # The client would hand on only a few variables: the servers are to find the bitgate that plays this.
            server = StdioServerParameters(command=sys.executable, args=words, cwd=folder, env=dict(os.environ))
            clients[role] = await stack.enter_async_context(Client(stdio_client(server, errlog=log)))
        yield clients


@dataclass
class Player:
    """Plays steps and keeps what later ones need."""

    clients: Mapping[Role, Client]
    person: Person | None
    surprises: list[str] = field(default_factory=list)
    tuning: list[str] = field(default_factory=list)
    """Evidence between candidates of the baseline."""
    unmeasured: set[str] = field(default_factory=set)
    """Needs that the machine was too restless to measure; a gate that lacks nothing else may stay open."""

    async def step(self, step: Step) -> None:
        match step:
            case Ask(acts):
                await self._ask(acts)
            case Submit():
                await self._submit(step)
            case Propose():
                arguments = {"tuning": self.tuning, "workload": "short", "note": "the demo's"}
                shown.proposal(await _answer(self.clients["baseline"], "propose_baseline", arguments))
            case Sign(gate):
                await self._sign(gate)

    async def _ask(self, acts: Sequence[Act]) -> None:
        places = anyio.CapacityLimiter(AT_ONCE)
        with Bar() as bar, _first_error():
            async with anyio.create_task_group() as group:
                for act in acts:
                    group.start_soon(self._act, act, places, bar)

    async def _act(self, act: Act, places: anyio.CapacityLimiter, bar: Bar) -> None:
        async with places:
            for left in reversed(range(act.tries)):
                answer = await _finished(self.clients[act.role], act, bar)
                bar.clear()
                shown.act(act, answer)
                if answer.get("verdict") != "inconclusive" or not left:
                    break
        self._heed(act, answer)

    def _heed(self, act: Act, answer: Answer) -> None:
        verdict = answer.get("verdict")
        if verdict not in act.expected:
            wanted = " or ".join(act.expected)
            self.surprises.append(f"{act.title}: expected {wanted}, got {verdict or answer['state']}")
        if verdict == "inconclusive" and act.measures:
            self.unmeasured.add(act.measures)
        if answer.get("check") == "ab" and act.role == "baseline":
            self.tuning.append(answer["evidence_id"])

    async def _submit(self, step: Submit) -> None:
        answer = await _answer(self.clients[step.role], "submit_gate", {"gate": step.gate})
        shown.submission(step.gate, answer)
        state = answer["gate"]["state"]
        if step.expected in (None, state):
            return
        missing = {item["key"] for item in answer.get("missing", [])}
        if missing and missing <= self.unmeasured:
            shown.restless(sorted(self.unmeasured))
        else:
            self.surprises.append(f"{step.gate}: expected {step.expected}, is {state}")

    async def _sign(self, gate: str) -> None:
        answer = await _answer(self.clients["baseline"], "get_gates", {"gate": gate})
        if answer["gate"]["state"] != "awaiting":
            shown.unsigned(gate, "there is nothing to sign yet")
        elif self.person is None:
            shown.unsigned(gate, "no ssh-keygen is here, so nobody can sign")
        else:
            shown.signature(gate, self.person, await anyio.to_thread.run_sync(self.person.sign, gate))
            state = (await _answer(self.clients["baseline"], "get_gates", {"gate": gate}))["gate"]["state"]
            if state != "passed":
                self.surprises.append(f"{gate}: signed, and is {state}")


async def _finished(client: Client, act: Act, bar: Bar) -> Answer:
    """The run's answer at its end, with `seconds`."""
    started = time.monotonic()
    answer = await _answer(client, act.tool, {**act.request, "wait_s": WAIT_S}, bar)
    while answer["state"] == "running":
        answer = await _answer(client, "get_run", {"run_id": answer["run_id"], "wait_s": WAIT_S}, bar)
    return {**answer, "seconds": time.monotonic() - started}


async def _answer(client: Client, tool: str, arguments: dict[str, Any], bar: Bar | None = None) -> Answer:
    async def show(progress: float, total: float | None, message: str | None) -> None:
        if bar is not None:
            await bar.update(progress, total, message or "")

    result = await client.call_tool(tool, arguments, progress_callback=show)
    if result.is_error or result.structured_content is None:
        raise BitgateError(f"{tool} answered: {' '.join(getattr(part, 'text', '') for part in result.content)}")
    return dict(result.structured_content)


@contextmanager
def _first_error() -> Iterator[None]:
    """Of what went wrong at once, the first: it is what the command line knows how to say."""
    try:
        yield
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from group
