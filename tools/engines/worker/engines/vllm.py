"""The vLLM engine, in this process: generate, forced decode, prefill scoring, resident weights, what was chosen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .vllm_environment import FORCED, invariant_parts, prepare_batch_invariance, prepare_environment

prepare_environment()

import numpy as np  # noqa: E402
import torch  # noqa: E402

from ..engine import EngineError, Perturbation, Step, StepRows  # noqa: E402
from ..job import Job  # noqa: E402
from ..sequences import Sequences  # noqa: E402
from ..ulp import add_ulps  # noqa: E402
from .vllm_describe import describe  # noqa: E402
from .vllm_failures import explained  # noqa: E402
from .vllm_graphs import GraphReplays  # noqa: E402
from .vllm_invariance import confirm_tiles  # noqa: E402
from .vllm_requests import Columns, Counts, Request, Submitter, prompt_logprobs, sampled_logprobs  # noqa: E402
from .vllm_trace import SchedulerTrace  # noqa: E402
from .vllm_weights import resident_weights  # noqa: E402

DEFAULTS = {"skip_tokenizer_init": True, "logprobs_mode": "raw_logprobs", "disable_log_stats": True, "seed": 0}
CACHE_RESETS = 4
CPU_KV_CACHE_BYTES = 1 << 30
"""Without it the CPU engine takes 92 % of the memory of the machine."""


class VllmEngine:
    """One `vllm.LLM` whose scheduler, weights and kernels are in reach."""

    def __init__(self, model_path: str, options: Mapping[str, Any], job: Job | None = None) -> None:
        self._path, self._options = model_path, dict(options)
        # torch says which vLLM this is: vLLM itself may only be imported when its variables stand.
        self._platform = "cuda" if torch.version.cuda or torch.version.hip else "cpu"
        self._invariant = self._options.pop("batch_invariant", False)
        self._parts = invariant_parts(self._invariant)
        self._set = prepare_batch_invariance(self._platform, self._parts) if self._parts else {}
        self._replays = GraphReplays(self._platform)
        self._progress: Callable[[float, str], None] = job.progress if job is not None else lambda *_: None
        with explained(model_path):
            from vllm import LLM

            self._llm: Any = LLM(model=model_path, **self._arguments())
        self._core = self._llm.llm_engine.engine_core.engine_core
        self._model = _model_of(self._core)
        if self._parts and self._platform == "cpu":
            confirm_tiles(self._model, self._parts)
        self._submit = Submitter(self._llm.llm_engine, SchedulerTrace(self._core.scheduler))
        self._readback: dict[str, Any] = {}

    def _arguments(self) -> dict[str, Any]:
        arguments = {**DEFAULTS, **self._options}
        sized = {"kv_cache_memory_bytes", "gpu_memory_utilization"} & set(arguments)
        if self._platform == "cpu" and not sized and not os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
            arguments["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
        if arguments.get("speculative_config") is None:
            from .vllm_forced import ForcedTokens

            arguments["logits_processors"] = [*arguments.get("logits_processors", ()), ForcedTokens]
        if self._parts:
            # Part of vLLM's compile cache key: graphs with and without tiles must never be exchanged.
            extra = dict(arguments.get("additional_config") or {})
            arguments["additional_config"] = {**extra, "bitgate_batch_invariant": ",".join(self._parts)}
        return arguments

    def describe(self) -> dict[str, dict[str, Any]]:
        return describe(self._llm, self._model, self._platform, self._invariant, self._set, self._readback)

    def weights(self) -> Iterator[tuple[str, Any]]:
        return resident_weights(self._llm, self._model, self._path, self._platform, self._readback)

    def run(self, step: Step, sequences: Sequences) -> StepRows:
        run = {"generate": self._generate, "decode": self._decode, "prefill": self._prefill}.get(step["kind"])
        if run is None:
            raise EngineError(
                "unsupported_step",
                f"step {step['name']}: the vllm engine has no {step['kind']}; a trainer side computes it",
            )
        if step.get("packing", "engine") != "engine":
            raise EngineError(
                "unsupported_packing",
                f"step {step['name']}: packing {step['packing']!r}: vLLM packs its own batches; use packing 'engine'",
            )
        with explained(self._path):
            return run(step, sequences)

    def _generate(self, step: Step, sequences: Sequences) -> StepRows:
        sampling = step["sampling"]
        groups = [
            [
                Request(i, sequences.prompt(i), _params(sampling, step["max_tokens"]), len(sequences.prompt(i)))
                for i in group
            ]
            for group in step["groups"]
        ]
        return self._rows(step, groups, sampled_logprobs, sampling)

    def _decode(self, step: Step, sequences: Sequences) -> StepRows:
        if self._options.get("speculative_config") is not None:
            raise EngineError(
                "unsupported_step",
                "forced decode needs a logits processor, which vLLM refuses together with speculative_config",
            )
        if step.get("reset_cache"):
            self._reset_cache()
        skip = step.get("prefilled", 0)
        groups = [[self._forced(sequences, i, skip) for i in group] for group in step["groups"]]
        kept = [[request for request in group if request.scored] for group in groups]
        rows = self._rows(step, kept, sampled_logprobs, None)
        rows.info["fully_prefilled_sequences"] = sum(map(len, groups)) - sum(map(len, kept))
        return rows

    @staticmethod
    def _forced(sequences: Sequences, index: int, skip: int) -> Request:
        response = sequences.response(index)
        forced = response[skip:]
        prompt = sequences.prompt(index) + response[:skip]
        params = _params({}, max(len(forced), 1))
        params.extra_args = {FORCED: forced}
        return Request(index, prompt, params, len(prompt), forced)

    def _prefill(self, step: Step, sequences: Sequences) -> StepRows:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False, ignore_eos=True)
        groups = [
            [Request(i, sequences.whole(i), params, len(sequences.prompt(i)), sequences.response(i)) for i in group]
            for group in step["groups"]
        ]
        return self._rows(step, groups, None, None)

    def _rows(
        self,
        step: Step,
        groups: list[list[Request]],
        read: Callable[[Any], tuple[list[int], list[float]]] | None,
        sampling: dict[str, Any] | None,
    ) -> StepRows:
        columns, counts, replays = Columns(), Counts(), self._replays.count()
        company = set(step.get("company") or ())
        _refuse_empty_prompts(groups)
        for number, group in enumerate(groups):
            if not group:
                continue
            traces, outputs, forwards = self._submit.run(group)
            counts.add(traces, forwards)
            for request, trace, output in zip(group, traces.values(), outputs, strict=True):
                tokens, logprobs = read(output) if read else prompt_logprobs(output, request.first)
                _check_forced(request, tokens)
                if request.sequence not in company:
                    columns.add(request, tokens, logprobs, trace)
            self._progress((number + 1) / len(groups), f"group {number + 1} of {len(groups)}")
        return self._step_rows(columns, counts, replays, sampling)

    def _step_rows(
        self, columns: Columns, counts: Counts, replays: int | None, sampling: dict[str, Any] | None
    ) -> StepRows:
        info = vars(counts) | {"graph_replays": None if replays is None else (self._replays.count() or 0) - replays}
        types = {"logprob": np.float32, "phase": np.uint8, "chunk": np.int32, "batch": np.int32}
        arrays: dict[str, Any] = {
            name: np.asarray(values, types.get(name, np.int64)) for name, values in vars(columns).items()
        }
        arrays["mask"] = np.ones(len(columns.sequence), np.uint8)
        mode = str(self._llm.llm_engine.vllm_config.model_config.logprobs_mode)
        temperature = (sampling or {}).get("temperature", 0.0) if mode.startswith("processed") else 0.0
        return StepRows(
            columns=arrays,
            info=info,
            computation={"kind": "engine", "passes": counts.forwards, "mode": "eval", "grad": False},
            sampling=sampling,
            logprobs_mode=mode,
            temperature=temperature or 1.0,
        )

    def serve(self, work: Any) -> Any:
        """One turn of serving load (load/turns.py): seconds, and every request as it went."""
        from ..load.vllm_serving import serve

        return serve(self._llm.llm_engine, work, self._reset_cache)

    def perturb(self, ulps: int) -> Perturbation:
        name, parameter = _direct_parameter(self._model)
        changed = add_ulps(name, parameter, ulps)
        self._reset_cache()

        def undo() -> None:
            changed.undo()
            self._reset_cache()

        return Perturbation(changed.weight, changed.index, changed.before, changed.after, undo, ulps)

    def _reset_cache(self) -> None:
        """Blocks computed under other weights, or by an earlier step, must not be read again."""
        for _ in range(CACHE_RESETS):
            if self._llm.reset_prefix_cache():
                return
            # With asynchronous scheduling the last forward may still hold its blocks.
            self._llm.llm_engine.step()
        raise EngineError("engine_failed", "vLLM could not empty its prefix cache: requests are still running")

    def close(self) -> None:
        self._core.shutdown()


ENGINE = VllmEngine


def _params(sampling: Mapping[str, Any], max_tokens: int) -> Any:
    from vllm import SamplingParams

    given = {name: value for name, value in sampling.items() if value is not None}
    return SamplingParams(
        **{"temperature": 0.0, **given}, max_tokens=max_tokens, logprobs=0, detokenize=False, ignore_eos=True
    )


def _model_of(core: Any) -> torch.nn.Module:
    """The model in this process.

    Raises: EngineError `unsupported_layout` when the weights are in other processes.
    """
    driver = getattr(core.model_executor, "driver_worker", None)
    worker = getattr(driver, "worker", driver)
    runner = getattr(worker, "model_runner", None)
    if runner is None:
        raise EngineError(
            "unsupported_layout",
            f"vLLM runs its model in other processes ({type(core.model_executor).__name__}), where neither the "
            "resident weights nor the kernels can be observed; use one engine of one rank (tensor_parallel_size = 1, "
            "no distributed_executor_backend)",
        )
    model: torch.nn.Module = runner.get_model()
    return model


def _direct_parameter(model: torch.nn.Module) -> tuple[str, torch.nn.Parameter]:
    """A parameter that every token passes through and that no kernel holds a packed copy of: the last norm's weight."""
    usable = [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.ndim == 1
        and parameter.numel()
        and parameter.dtype in (torch.bfloat16, torch.float16, torch.float32)
    ]
    norms = [(name, parameter) for name, parameter in usable if name.endswith("norm.weight") and "layers." not in name]
    if not norms and not usable:
        raise EngineError("unsupported_model", "no plain one-dimensional weight was found to plant the canary's ulp in")
    return (norms or usable)[-1]


def _refuse_empty_prompts(groups: list[list[Request]]) -> None:
    for group in groups:
        for request in group:
            if request.first < 1:
                raise EngineError(
                    "request_refused",
                    f"sequence {request.sequence} has no prompt token; the first token of a sequence has no logprob",
                )


def _check_forced(request: Request, tokens: list[int]) -> None:
    if request.scored is not None and tokens != request.scored:
        first = next((i for i, pair in enumerate(zip(tokens, request.scored, strict=False)) if pair[0] != pair[1]), 0)
        raise EngineError(
            "forced_decode_failed",
            f"sequence {request.sequence}: the engine did not follow the given tokens from number {first} on "
            f"({len(tokens)} of {len(request.scored)} came back); try async_scheduling = false",
        )
