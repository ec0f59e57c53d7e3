"""Serving load on vLLM in this process: closed loop, exact lengths, the moment of every token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..engine import EngineError
from .turns import Served, Work


def serve(llm_engine: Any, work: Work, reset: Callable[[], None]) -> tuple[float, list[Served]]:
    """One turn: seconds from the first request's arrival to the last one's end, and every request.

    The prefix cache is emptied first, outside the time, so that no turn profits from an earlier one.
    """
    reset()
    from vllm import SamplingParams

    given = {name: value for name, value in work.sampling.items() if value is not None}
    # As a rollout asks: with the sampled token's logprob, and no end of sequence before the length is reached.
    params = SamplingParams(
        **{"temperature": 0.0, **given}, max_tokens=work.max_tokens, logprobs=0, detokenize=False, ignore_eos=True
    )
    waiting = list(reversed(work.prompts))
    running: dict[str, Served] = {}
    done: list[Served] = []
    with watched(llm_engine, running) as clock:
        began = clock()
        while waiting or running:
            while waiting and len(running) < work.concurrency:
                index, prompt = waiting.pop()
                name = f"load{len(done) + len(running)}-{index}"
                running[name] = Served(index, len(prompt), clock() - began)
                _submit(llm_engine, name, prompt, params)
            for output in llm_engine.step():
                if output.finished:
                    served = running.pop(output.request_id)
                    served.finished = clock() - began
                    done.append(served)
        seconds = clock() - began
    for served in done:
        served.token_times = [moment - began for moment in served.token_times]
    return seconds, sorted(done, key=lambda served: served.sequence)


def _submit(llm_engine: Any, name: str, prompt: list[int], params: Any) -> None:
    try:
        llm_engine.add_request(name, {"prompt_token_ids": prompt}, params)
    except ValueError as error:
        raise EngineError("request_refused", f"a prompt of {len(prompt)} tokens: vLLM refuses it: {error}") from error


@contextmanager
def watched(llm_engine: Any, running: dict[str, Served]) -> Iterator[Callable[[], float]]:
    """Notes when tokens leave the core, before vLLM makes outputs of them: one append a token, no output a token."""
    core, clock = llm_engine.engine_core, time.perf_counter
    own = core.get_output
    known: dict[str, Served] = {}

    def get_output() -> Any:
        made = own()
        now = clock()
        for output in made.outputs:
            served = known.get(output.request_id) or _found(output.request_id)
            if served is not None:
                served.token_times.extend([now] * len(output.new_token_ids))
        return made

    names = getattr(llm_engine, "output_processor", None)

    def _found(request_id: str) -> Served | None:
        """vLLM may add a suffix of its own to a request's name inside the core."""
        state = None if names is None else names.request_states.get(request_id)
        served = running.get(request_id) or running.get(str(getattr(state, "external_req_id", request_id)))
        if served is not None:
            known[request_id] = served
        return served

    core.get_output = get_output
    try:
        yield clock
    finally:
        del core.get_output
