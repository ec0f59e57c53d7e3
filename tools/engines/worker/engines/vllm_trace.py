"""What the scheduler really did: chunks, batches, cache hits and preemptions of every request, seen as it decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..engine import DECODE, PREFILL


@dataclass
class RequestTrace:
    """Consecutive forwards of one request: (first position computed, positions computed, requests in that forward)."""

    prompt: int
    forwards: list[tuple[int, int, int]] = field(default_factory=list)
    cached: int = 0
    preemptions: int = 0

    def chunks(self) -> int:
        """Forwards that computed positions of the prompt, before the first preemption's second round."""
        seen, count = 0, 0
        for start, size, _ in self.forwards:
            if start >= seen and start < self.prompt:
                count += 1
            seen = max(seen, start + size)
        return count

    def of_logit(self, position: int) -> tuple[int, int, int]:
        """(phase, chunk, batch) of the forward that first computed the logits at `position`."""
        for number, (start, size, batch) in enumerate(self.forwards):
            if start <= position < start + size:
                # A recomputed sequence, or a prompt's last chunk of one token, is prefill: it reads what it just wrote.
                decode = size == 1 and start >= self.prompt
                return (DECODE, 0, batch) if decode else (PREFILL, number, batch)
        return (PREFILL, 0, 0)


class SchedulerTrace:
    """Wraps the in-process scheduler's `schedule` and `_preempt_request`; requests are known by their external ids."""

    def __init__(self, scheduler: Any) -> None:
        self.requests: dict[str, RequestTrace] = {}
        self._schedule = scheduler.schedule
        self._preempt = getattr(scheduler, "_preempt_request", None)
        scheduler.schedule = self._watched_schedule
        if self._preempt is not None:
            scheduler._preempt_request = self._watched_preempt

    def start(self, prompts: dict[str, int]) -> None:
        """Forget the last group; `prompts`: external request id -> number of prompt tokens."""
        self.requests = {name: RequestTrace(size) for name, size in prompts.items()}

    def _watched_schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = self._schedule(*args, **kwargs)
        scheduled = output.num_scheduled_tokens
        for request, start in _starts(output):
            trace = self._find(request)
            if trace is not None and scheduled.get(request):
                if not trace.forwards:
                    trace.cached = start
                trace.forwards.append((start, scheduled[request], len(scheduled)))
        return output

    def _watched_preempt(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        trace = self._find(request.request_id)
        if trace is not None:
            trace.preemptions += 1
        return self._preempt(request, *args, **kwargs)  # type: ignore[misc]

    def _find(self, request: str) -> RequestTrace | None:
        # The engine appends a random part to the id it was given.
        return self.requests.get(request) or self.requests.get(request.rsplit("-", 1)[0])


def _starts(output: Any) -> list[tuple[str, int]]:
    """(request id, positions computed before this forward) of everything scheduled."""
    new = [(request.req_id, request.num_computed_tokens) for request in output.scheduled_new_reqs]
    cached = output.scheduled_cached_reqs
    return new + list(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
