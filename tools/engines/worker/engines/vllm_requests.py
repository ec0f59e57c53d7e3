"""Submitting one group of requests to the in-process engine and reading back their raw logprobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..engine import EngineError
from .vllm_trace import RequestTrace, SchedulerTrace


@dataclass(frozen=True)
class Request:
    """`sequence`: its number in the job; `first`: index in prompt + response of the first token to be scored."""

    sequence: int
    prompt: list[int]
    params: Any
    first: int
    scored: list[int] | None = None
    """The tokens whose logprobs are wanted; None when the engine samples them."""


@dataclass
class Counts:
    """What a step exercised, over all its groups."""

    cached_tokens: int = 0
    prefill_chunks: int = 0
    preemptions: int = 0
    forwards: int = 0
    groups: int = 0

    def add(self, traces: dict[str, RequestTrace], forwards: int) -> None:
        self.groups += 1
        self.forwards += forwards
        for trace in traces.values():
            self.cached_tokens += trace.cached
            self.preemptions += trace.preemptions
            self.prefill_chunks = max(self.prefill_chunks, trace.chunks())


@dataclass
class Columns:
    """Rows as they accumulate."""

    sequence: list[int] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    token_id: list[int] = field(default_factory=list)
    logprob: list[float] = field(default_factory=list)
    phase: list[int] = field(default_factory=list)
    chunk: list[int] = field(default_factory=list)
    batch: list[int] = field(default_factory=list)

    def add(self, request: Request, tokens: list[int], logprobs: list[float], trace: RequestTrace) -> None:
        for offset, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            position = request.first + offset
            phase, chunk, batch = trace.of_logit(position - 1)
            self.sequence.append(request.sequence)
            self.position.append(position)
            self.token_id.append(token)
            self.logprob.append(logprob)
            self.phase.append(phase)
            self.chunk.append(chunk)
            self.batch.append(batch)


class Submitter:
    """Adds all requests of a group before the first forward, then steps the engine until they are done."""

    def __init__(self, llm_engine: Any, trace: SchedulerTrace) -> None:
        self._engine = llm_engine
        self._trace = trace
        self._count = 0

    def run(self, requests: list[Request]) -> tuple[dict[str, RequestTrace], list[Any], int]:
        """(traces by name, final outputs in the order of `requests`, forwards)."""
        names = [f"bitgate{self._count + number}" for number in range(len(requests))]
        self._count += len(requests)
        self._trace.start({name: len(request.prompt) for name, request in zip(names, requests, strict=True)})
        for name, request in zip(names, requests, strict=True):
            self._add(name, request)
        finished: dict[str, Any] = {}
        forwards = 0
        while self._engine.has_unfinished_requests():
            forwards += 1
            finished |= {output.request_id: output for output in self._engine.step() if output.finished}
        missing = [name for name in names if name not in finished]
        if missing:
            raise EngineError("engine_failed", f"vLLM returned no output for {len(missing)} of {len(names)} requests")
        return dict(self._trace.requests), [finished[name] for name in names], forwards

    def _add(self, name: str, request: Request) -> None:
        try:
            self._engine.add_request(name, {"prompt_token_ids": request.prompt}, request.params)
        except ValueError as error:
            self._engine.abort_request(list(self._trace.requests))
            raise EngineError(
                "request_refused",
                f"sequence {request.sequence} ({len(request.prompt)} prompt tokens): vLLM refuses it: {error}",
            ) from error


def sampled_logprobs(output: Any) -> tuple[list[int], list[float]]:
    """Tokens that the engine sampled, and the raw logprob it reported for each."""
    completion = output.outputs[0]
    tokens = list(completion.token_ids)
    return tokens, [entry[token].logprob for token, entry in zip(tokens, completion.logprobs, strict=True)]


def prompt_logprobs(output: Any, first: int) -> tuple[list[int], list[float]]:
    """Tokens of the prompt from index `first` on, and the logprob of each."""
    tokens = list(output.prompt_token_ids[first:])
    return tokens, [entry[token].logprob for token, entry in zip(tokens, output.prompt_logprobs[first:], strict=True)]
