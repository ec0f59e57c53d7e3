"""Taps of the vLLM engine in this process: eager modules, the runner's rows, the paged cache cut to what is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .tap_plans import plans
from .tap_vllm_caches import blocks, states
from .tap_vllm_quantised import quantised
from .tap_vllm_recurrent import recurrent
from .taps import AFTER, BEFORE, Taps, first, layers_of
from .tracer import Tracer


class VllmTaps(Taps):
    def __init__(self, recorder: Any, engine: Any, company: set[int]) -> None:
        super().__init__(recorder)
        self._engine, self._company = engine, company
        self._model = engine._model
        self._runner = _runner_of(engine._core)
        self._sequences: dict[str, int] = {}
        self._scheduled: dict[str, int] = {}
        self._scored: Any = None

    def install(self) -> None:
        self._watch_requests()
        self._plans = plans(self)
        inner = self._model.model
        self.before(self._model, self._begin)
        self.traced(inner.embed_tokens, BEFORE)
        self.output(inner.embed_tokens, BEFORE, "embed")
        for layer, name, module in layers_of(self._model):
            self._module(layer, name, module)
        quantised(self, self._model)
        self.traced(inner.norm, AFTER)
        count = len(inner.layers)
        self.after(inner.norm, lambda out: self._norm(count - 1, "resid_post", AFTER, "final_norm", out))
        run = self._model.compute_logits
        self.replace(self._model, "compute_logits", lambda hidden, *rest: self._logits(run, hidden, *rest))
        self._watch_logprobs()
        self.recorder.prepare = self._prepare

    def _module(self, layer: int, name: str, module: Any) -> None:
        match name:
            case "":
                self.traced(module, layer)
            case "input_layernorm":
                self.before(module, lambda a, k: self._residual(layer, "resid_pre", a, k))
                self.after(module, lambda out: self._norm(layer - 1, "resid_post", layer, "attn_norm", out))
            case "self_attn.qkv_proj":
                self.after(module, lambda out: self._split(layer, module, first(out)))
            case "self_attn.q_norm" | "self_attn.k_norm":
                self.output(module, layer, name.removeprefix("self_attn."), _flat)
            case "self_attn.attn":
                self.before(module, lambda a, k: self._attention(layer, a))
                if not _gated(self._model.model.layers[layer].self_attn):
                    self.output(module, layer, "attn_out", _flat)
            case "self_attn.o_proj":
                if _gated(self._model.model.layers[layer].self_attn):
                    self.before(module, lambda a, k: self.recorder.point(layer, "attn_out", a[0]))
                self.output(module, layer, "o_proj")
            case "linear_attn" if hasattr(module, "rearrange_mixed_qkv"):
                recurrent(self, layer, module)
            case "linear_attn.out_proj":
                self.output(module, layer, "o_proj")
            case "post_attention_layernorm":
                self.after(module, lambda out: self._norm(layer, "resid_mid", layer, "mlp_norm", out))
            case "mlp.gate_up_proj":
                self.after(module, lambda out: self._halves(layer, first(out)))
            case "mlp.act_fn":
                self.output(module, layer, "act")
            case "mlp":
                self.output(module, layer, "mlp_out")
            case "mlp.gate":
                self.output(module, layer, "router_logits")
            case "mlp.experts":
                self._router(layer, module)
            case _:
                pass

    def _residual(self, layer: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the first layer's norm the hidden state is the residual; later the norm makes their sum."""
        if len(args) < 2 and "residual" not in kwargs:
            self.recorder.point(layer, name, args[0])

    def _norm(self, layer: int, residual: str, own: int, name: str, out: Any) -> None:
        if isinstance(out, tuple):
            if layer >= 0:
                self.recorder.point(layer, residual, out[1])
            if name == "attn_norm":
                self.recorder.point(own, "resid_pre", out[1])
        self.recorder.point(own, name, first(out))

    def _split(self, layer: int, module: Any, out: Tensor) -> None:
        attention = self._model.model.layers[layer].self_attn
        # Gated attention has its gates beside its queries.
        sizes = [out.shape[-1] - 2 * attention.kv_size, attention.kv_size, attention.kv_size]
        for name, part in zip(("q_proj", "k_proj", "v_proj"), out.split(sizes, dim=-1), strict=True):
            self.recorder.point(layer, name, part, raw=out)

    def _halves(self, layer: int, out: Tensor) -> None:
        for name, part in zip(("gate", "up"), out.chunk(2, dim=-1), strict=True):
            self.recorder.point(layer, name, part, raw=out)

    def _attention(self, layer: int, args: tuple[Any, ...]) -> None:
        for name, tensor in zip(("q", "k", "v"), args, strict=False):
            self.recorder.point(layer, name, _flat(tensor), raw=tensor)

    def _router(self, layer: int, module: Any) -> None:
        router = getattr(module, "router", None)
        if router is None or not hasattr(router, "select_experts"):
            return
        run = router.select_experts

        def watched(*args: Any, **kwargs: Any) -> Any:
            out = run(*args, **kwargs)
            weights, ids = out[0], out[1]
            self.recorder.point(layer, "topk_ids", ids.to(torch.int64), raw=ids)
            self.recorder.point(layer, "topk_weights", weights.to(torch.float32), raw=weights)
            return out

        self.replace(router, "select_experts", watched)

    def _watch_requests(self) -> None:
        submit = self._engine._submit
        run, execute = submit.run, self._runner.execute_model

        def named(requests: Any) -> Any:
            self._sequences = {f"bitgate{submit._count + n}": r.sequence for n, r in enumerate(requests)}
            return run(requests)

        def executed(output: Any, *args: Any, **kwargs: Any) -> Any:
            self._scheduled = dict(output.num_scheduled_tokens)
            return execute(output, *args, **kwargs)

        self.replace(submit, "run", named)
        self.replace(self._runner, "execute_model", executed)

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Rows of this forward; profiling and warm-up passes have no request of ours, and no rows."""
        positions = kwargs.get("positions")
        if positions is None:
            positions = args[1]
        owners = [
            np.full(self._scheduled[name], self._sequence(name), np.int64)
            for name in self._runner.input_batch.req_ids
            if self._scheduled.get(name)
        ]
        rows = np.concatenate([np.empty(0, np.int64), *owners])
        keys = np.stack([rows, self._places()], axis=1) if len(rows) else np.empty((0, 2), np.int64)
        self._ends = np.cumsum([len(o) for o in owners]) - 1 if owners else np.empty(0, np.int64)
        self.recorder.begin(keys)
        self.recorder.point(BEFORE, "positions", positions if positions.ndim == 1 else positions.t())
        tokens = kwargs.get("input_ids", args[0] if args else None)
        if tokens is not None:
            self.recorder.point(BEFORE, "token_ids", tokens.to(torch.int64))

    def _places(self) -> Any:
        """Each row's place in its sequence by the scheduler: the positions that the model is given may be wrong."""
        batch = self._runner.input_batch
        names = [name for name in batch.req_ids if self._scheduled.get(name)]
        starts = [int(batch.num_computed_tokens_cpu[batch.req_id_to_index[name]]) for name in names]
        parts = [np.arange(s, s + self._scheduled[n], dtype=np.int64) for s, n in zip(starts, names, strict=True)]
        return np.concatenate(parts)

    def _sequence(self, name: str) -> int:
        found = self._sequences.get(name, self._sequences.get(name.rsplit("-", 1)[0], -1))
        return -1 if found in self._company else found

    def _logits(self, run: Any, hidden: Tensor, *rest: Any) -> Tensor:
        """The head gets a slice of the hidden states (scored prompts) or the last row of each request (sampling)."""
        keys = self._head_keys(hidden)
        if keys is not None:
            self.recorder.point(AFTER, "head_input", hidden, keys=keys)
        with self.tracing(AFTER):
            logits: Tensor = run(hidden, *rest)
        if keys is not None:
            self.recorder.point(AFTER, "logits", logits, keys=keys)
        self._scored = keys
        return logits

    def _watch_logprobs(self) -> None:
        """In hashing the point `logprob` is what the step reports; here its operators are noted."""
        sampler = getattr(self._runner, "sampler", None)
        if sampler is None or self.recorder.target is None:
            return
        compute, gather = sampler.compute_logprobs, sampler.gather_logprobs

        def computed(logits: Tensor) -> Tensor:
            with self.tracing(AFTER):
                made: Tensor = compute(logits)
            return made

        def gathered(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> Any:
            made = gather(logprobs, num_logprobs, token_ids)
            if self._scored is not None and len(self._scored) == len(token_ids):
                # vLLM counts ranks in a compiled function there: the gather alone is noted, and replay checks its bits.
                with self.tracing(AFTER):
                    own = logprobs.gather(-1, token_ids.to(torch.int64).unsqueeze(-1))
                self.recorder.point(AFTER, "logprob", made.logprobs[:, :1], raw=own, keys=self._scored)
            return made

        self.replace(sampler, "compute_logprobs", computed)
        self.replace(sampler, "gather_logprobs", gathered)

    def _head_keys(self, hidden: Tensor) -> Any:
        keys = self.recorder.keys
        base = hidden._base if hidden._base is not None else None
        if base is not None and base.ndim == 2 and base.shape[1] == hidden.shape[1]:
            start = (hidden.data_ptr() - base.data_ptr()) // (hidden.stride(0) * hidden.element_size())
            return keys[start : start + hidden.shape[0]]
        offset = hidden.storage_offset()
        if offset or (hidden.shape[0] < hidden.untyped_storage().nbytes() // (hidden.shape[1] * hidden.element_size())):
            start = offset // hidden.shape[1]
            return keys[start : start + hidden.shape[0]]
        if hidden.shape[0] == len(self._ends):
            return keys[self._ends]
        if hidden.shape[0] <= len(keys):
            return keys[: hidden.shape[0]]
        return None

    def _prepare(self, tracer: Tracer) -> None:
        """Caches are kept only as far as this forward's requests reach, and the work plan as the call that makes it."""
        from vllm.forward_context import get_forward_context

        context = get_forward_context()
        metadata = context.attn_metadata
        found = [states(metadata, context.no_compile_layers)]
        every = list(metadata.values()) if isinstance(metadata, dict) else [metadata]
        table = next((one for one in every if hasattr(one, "block_table")), None)
        if table is not None:
            found.append(blocks(table, self._runner))
            tracer.recipes = self._plans
        tracer.substitute = lambda tensor: next((made for cut in found if (made := cut(tensor)) is not None), None)


def _gated(attention: Any) -> bool:
    """Its output is multiplied with a gate before the projection, which other engines call the output."""
    return bool(getattr(attention, "attn_output_gate", False))


def _flat(value: Any) -> Tensor:
    tensor: Tensor = first(value)
    return tensor.reshape(tensor.shape[0], -1)


def _runner_of(core: Any) -> Any:
    driver = core.model_executor.driver_worker
    return getattr(driver, "worker", driver).model_runner
