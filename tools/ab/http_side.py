"""A running `vllm serve` as a side: the same turns through its OpenAI endpoint, streamed, one thread a request."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from anyio.to_thread import run_sync
from safetensors.numpy import save_file

from bitgate.tools.ab.conduct import Call, LoadPlan
from bitgate.tools.config.sides import Side
from bitgate.tools.engines.worker.files import write_json
from bitgate.tools.engines.worker.load.machine import Machine
from bitgate.tools.engines.worker.load.turns import Served, arrays, totals
from bitgate.tools.errors import WorkerError

TIMEOUT_S: Final = 600.0
MOST_THREADS: Final = 256


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens; the URL comes from the configuration alone."""

    host: str
    port: int
    prefix: str
    secure: bool

    @classmethod
    def of(cls, url: str) -> Endpoint:
        """Raises: ValueError for what is no http or https URL with a host."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url: got {url!r}; allowed: http://HOST:PORT")
        secure = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if secure else 80), parts.path.rstrip("/"), secure)

    def open(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=TIMEOUT_S)

    def ask(self, method: str, path: str) -> tuple[int, bytes]:
        connection = self.open()
        try:
            connection.request(method, self.prefix + path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@dataclass(eq=False)
class HttpSide:
    """Serves turns; what runs behind the endpoint cannot be looked into, so its evidence is `attested`."""

    side: Side
    plan: LoadPlan
    samples: Path
    endpoint: Endpoint
    resets: bool = True
    """Whether the server could be told to empty its prefix cache (it can when started with VLLM_SERVER_DEV_MODE=1)."""
    stable: dict[str, Any] = field(default_factory=dict)

    async def start(self) -> None:
        """Asks who is there. Raises: WorkerError `server_unreachable`."""
        self.stable = await run_sync(self._who)

    def _who(self) -> dict[str, Any]:
        try:
            status, body = self.endpoint.ask("GET", "/v1/models")
            models = json.loads(body)["data"] if status == 200 else []
            _, version = self.endpoint.ask("GET", "/version")
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            raise WorkerError(
                "server_unreachable",
                f"side {self.side.name}: no OpenAI server answers at its url ({error}). Start it first.",
            ) from error
        if not models:
            raise WorkerError(
                "server_unreachable", f"side {self.side.name}: its server lists no model (status {status})."
            )
        return {"server": {"model": str(models[0]["id"]), "version": _version(version)}, "platform": "unknown"}

    async def turn(self, number: int, call: Call, rounds: int, of: int, expected_s: float) -> None:
        await run_sync(self._turn, number, call, rounds)

    async def end(self, number: int) -> None:
        """The server stays: bitgate did not start it."""

    def _turn(self, number: int, call: Call, rounds: int) -> None:
        self.samples.mkdir(parents=True, exist_ok=True)
        machine = Machine()
        seconds, requests = 0.0, []
        for _ in range(rounds):
            taken, served = self._serve()
            seconds += taken
            requests += served
        seen = machine.since() | {"foreign": None, "own_cpu_s": None}
        name = f"turn-{number:05d}"
        save_file(arrays(requests), self.samples / f"{name}.safetensors")
        body = {"turn": number, "arm": call.engine, "seconds": seconds, **seen, **totals(requests), "operators": None}
        write_json(self.samples / f"{name}.json", body, durable=False)

    def _serve(self) -> tuple[float, list[Served]]:
        self.resets = self.resets and self._reset()
        count = min(self.plan.concurrency or len(self.plan.sequences), MOST_THREADS)
        with ThreadPoolExecutor(max_workers=count) as pool:
            began = time.perf_counter()
            prompts = enumerate(sequence.prompt for sequence in self.plan.sequences)
            served = list(pool.map(lambda item: self._request(item[0], list(item[1]), began), prompts))
            return time.perf_counter() - began, served

    def _reset(self) -> bool:
        try:
            return self.endpoint.ask("POST", "/reset_prefix_cache")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _request(self, index: int, prompt: list[int], began: float) -> Served:
        served = Served(index, len(prompt), time.perf_counter() - began)
        connection = self.endpoint.open()
        try:
            self._stream(connection, prompt, served, began)
        except (OSError, http.client.HTTPException, ValueError) as error:
            served.failed = f"{type(error).__name__}: {error}"[:200]
        finally:
            connection.close()
        served.finished = time.perf_counter() - began
        return served

    def _stream(self, connection: http.client.HTTPConnection, prompt: list[int], served: Served, began: float) -> None:
        body = json.dumps(request_body(self.stable["server"]["model"], prompt, self.plan), allow_nan=False)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"{self.endpoint.prefix}/v1/completions", body, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            served.failed = f"status {answer.status}: {answer.read(200).decode('utf-8', 'replace')}"
            return
        counted = None
        for event in events(answer):
            if "error" in event:
                served.failed = str(event["error"])[:200]
                return
            served.token_times += [time.perf_counter() - began] * tokens_in(event)
            usage = event.get("usage")
            counted = usage.get("completion_tokens", counted) if isinstance(usage, dict) else counted
        if isinstance(counted, int):
            # The server's own count decides: chunks may hold several tokens, or none.
            last = served.token_times[-1:] or [time.perf_counter() - began]
            served.token_times = (served.token_times + last * counted)[:counted]


def request_body(model: str, prompt: list[int], plan: LoadPlan) -> dict[str, Any]:
    sampling = plan.sampling.model_dump(exclude_none=True)
    length = {"max_tokens": plan.max_tokens, "min_tokens": plan.max_tokens, "ignore_eos": True}
    stream = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    return {"model": model, "prompt": prompt, **sampling, **length, **stream}


def events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events.

    Raises: ValueError for a line that is none.
    """
    for line in answer:
        text = line.decode("utf-8", "replace").strip()
        if not text.startswith("data:"):
            continue
        data = text.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if isinstance(event, dict):
            yield event


def tokens_in(event: dict[str, Any]) -> int:
    """Tokens of one chunk: as the server names them, else one for a chunk with text."""
    found = 0
    for choice in event.get("choices") or ():
        ids = choice.get("token_ids")
        found += len(ids) if isinstance(ids, list) else int(bool(choice.get("text")))
    return found


def _version(body: bytes) -> str:
    try:
        return str(json.loads(body)["version"])
    except (ValueError, KeyError, TypeError):
        return "unknown"
