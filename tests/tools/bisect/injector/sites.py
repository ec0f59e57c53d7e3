"""Where the operators of an engine sit, and how each is replaced for a while: the injector's only knowledge of engines.

A site is one operator of one layer. `run` is the engine's own, in a signature that every engine shares; `put` replaces
it and returns the way back. What is replaced lies below the points that the product watches, so that it sees a faulty
kernel as it would see a real one. Nothing of this is in the worker: a site reaches into a warm engine from outside.

    linear      run(x [R, K]) -> [R, N]; `columns`: point -> its part of a fused product; `other(weight)`: same kernel
    norm        run(x, residual or None) -> normed, or (normed, sum)
    act         run(gate_up [R, 2n]) -> [R, n]
    embedding   run(ids) -> [R, H]
    rope        run(positions, q, k) -> (q, k)
    attention   run(attend, output, metadata): `attend(metadata, output)` writes output [R, heads, D]
    topk        run(logits) -> (weights, ids)
    experts     run(w1, w2, x, weights, ids) -> [R, H]
    logprob     run(logits) -> log-softmax [R, V]
    input       run(tokens, positions) -> the two, as the model gets them
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bitgate.tools.engines.worker.weights import CheckpointReader

Run = Callable[..., Any]
Undo = Callable[[], None]
BEFORE, AFTER = -1, 1 << 20
BEHIND = "behind"
"""Layer of what follows the last decoder layer, before its number is written as the product does."""


@dataclass(frozen=True)
class Site:
    kind: str
    run: Run
    put: Callable[[Run], Undo]
    weight: Tensor | None = None
    other: Callable[[Tensor], Run] | None = None
    columns: dict[str, slice] = field(default_factory=dict)
    eps: float = 0.0


def attribute(owner: Any, name: str, run: Run) -> Undo:
    """Sets an attribute of an instance; the way back takes it out, or puts the instance's own back."""
    own = vars(owner).get(name, attribute)
    object.__setattr__(owner, name, run)

    def undo() -> None:
        if own is attribute:
            object.__delattr__(owner, name)
        else:
            object.__setattr__(owner, name, own)

    return undo


class Weights:
    """The checkpoint's tensors in the engine's dtype: resident weights are packed, and cannot be edited in place."""

    def __init__(self, path: str, dtype: torch.dtype) -> None:
        self._reader, self._dtype = CheckpointReader(path), dtype

    def fused(self, prefix: str, *names: str) -> Tensor:
        return torch.cat([self._reader.tensor(f"{prefix}{name}.weight").to(self._dtype) for name in names])


def parts(sizes: dict[str, int]) -> dict[str, slice]:
    found, start = {}, 0
    for name, size in sizes.items():
        found[name] = slice(start, start + size)
        start += size
    return found


@dataclass(frozen=True)
class Shape:
    q: int
    kv: int
    intermediate: int
    layers: int
    sparse: bool

    @classmethod
    def of(cls, config: Any) -> Shape:
        dim = config.head_dim
        sparse = hasattr(config, "num_experts")
        return cls(
            config.num_attention_heads * dim, config.num_key_value_heads * dim,
            config.intermediate_size, config.num_hidden_layers, sparse,
        )  # fmt: skip

    def fused(self) -> dict[str, tuple[str, dict[str, slice]]]:
        """Name of the fused linear -> (its parts in the checkpoint, its points)."""
        qkv = parts({"q_proj": self.q, "k_proj": self.kv, "v_proj": self.kv})
        halves = parts({"gate": self.intermediate, "up": self.intermediate})
        whole = slice(0, None)
        dense = {"gate_up": ("mlp.gate_proj mlp.up_proj", halves), "down": ("mlp.down_proj", {"mlp_out": whole})}
        sparse = {"router": ("mlp.gate", {"router_logits": whole})}
        return {
            "qkv": ("self_attn.q_proj self_attn.k_proj self_attn.v_proj", qkv),
            "out": ("self_attn.o_proj", {"o_proj": whole}),
            **(sparse if self.sparse else dense),
        }


class VllmSites:
    """Sites of the real vLLM in this process."""

    def __init__(self, engine: Any, path: str) -> None:
        self.engine, self.model = engine, engine._model
        self.dtype = engine._llm.llm_engine.vllm_config.model_config.dtype
        self.shape = Shape.of(engine._llm.llm_engine.vllm_config.model_config.hf_text_config)
        self.weights = Weights(path, self.dtype)

    def sites(self) -> Iterator[tuple[int, str, Site]]:
        """(layer, point, site); the points of one site follow each other."""
        inner = self.model.model
        yield BEFORE, "token_ids", self._given()
        yield BEFORE, "positions", self._given()
        yield BEFORE, "embed", self._embedding(inner.embed_tokens)
        for index, layer in enumerate(inner.layers):
            for point, site in self._layer(index, layer):
                yield index, point, site
        yield AFTER, "final_norm", norm_site(inner.norm)
        head = self._linear(self.model.lm_head, self.weights.fused("", "lm_head"), {"logits": slice(0, None)})
        yield AFTER, "logits", head
        sampler = self.engine._core.model_executor.driver_worker
        sampler = getattr(sampler, "worker", sampler).model_runner.sampler
        run = sampler.compute_logprobs
        yield AFTER, "logprob", Site("logprob", run, lambda f: attribute(sampler, "compute_logprobs", f))

    def _layer(self, index: int, layer: Any) -> Iterator[tuple[str, Site]]:
        attention, mlp = layer.self_attn, layer.mlp
        modules = {"qkv": attention.qkv_proj, "out": attention.o_proj}
        if self.shape.sparse:
            modules["router"] = mlp.gate
        else:
            modules |= {"gate_up": mlp.gate_up_proj, "down": mlp.down_proj}
        yield from normed(layer.input_layernorm, "attn_norm", None if index == 0 else "resid_post")
        for name, (names, columns) in self.shape.fused().items():
            site = self._linear(modules[name], self.weights.fused(f"model.layers.{index}.", *names.split()), columns)
            yield from ((point, site) for point in columns)
        for name in ("q_norm", "k_norm"):
            yield name, norm_site(getattr(attention, name))
        rope = self._rope(attention)
        yield "q", rope
        yield "k", rope
        yield "attn_out", attention_site(attention.attn.impl, None)
        yield from normed(layer.post_attention_layernorm, "mlp_norm", "resid_mid")
        if not self.shape.sparse:
            yield "act", Site("act", mlp.act_fn.forward, lambda f: attribute(mlp.act_fn, "forward", f))
            return
        yield from topk_sites(mlp.experts.router)
        yield "mlp_out", experts_site(mlp.experts._quant_method.moe_kernel.fused_experts)

    def _linear(self, module: Any, weight: Tensor, columns: dict[str, slice]) -> Site:
        from vllm.model_executor.layers import utils

        kernel = module.cpu_linear

        def other(table: Tensor) -> Run:
            made = torch.nn.Module()
            made.weight, made.bias = torch.nn.Parameter(table.contiguous(), requires_grad=False), None
            utils.dispatch_cpu_unquantized_gemm(made, False)
            return lambda x: made.cpu_linear(x, made.weight, None)

        return Site(
            "linear", lambda x: kernel(x, module.weight, None),
            lambda f: attribute(module, "cpu_linear", lambda x, weight, bias: f(x)), weight, other, columns,
        )  # fmt: skip

    def _embedding(self, module: Any) -> Site:
        run = module.forward
        table = self.weights.fused("model.", "embed_tokens")
        return Site(
            "embedding",
            run,
            lambda f: attribute(module, "forward", f),
            table,
            lambda t: lambda ids: F.embedding(ids, t),
        )

    def _rope(self, attention: Any) -> Site:
        """One module serves all layers: this layer gets one of its own."""
        module = attention.rotary_emb

        class Turned(torch.nn.Module):
            def __init__(self, run: Run) -> None:
                super().__init__()
                self.forward = run

        def put(run: Run) -> Undo:
            attention._modules["rotary_emb"] = Turned(run)
            return lambda: attention._modules.__setitem__("rotary_emb", module)

        return Site("rope", module, put, module.cos_sin_cache, lambda table: with_table(module, table))

    def _given(self) -> Site:
        """vLLM's model as the runner calls it: another input for the whole model."""

        def put(run: Run) -> Undo:
            def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                tokens, positions = run(kwargs["input_ids"], kwargs["positions"])
                return args, {**kwargs, "input_ids": tokens, "positions": positions}

            return self.model.register_forward_pre_hook(hook, with_kwargs=True).remove

        return Site("input", lambda tokens, positions: (tokens, positions), put)


class KernelsSites:
    """Sites of the trainer that calls vLLM's kernels."""

    def __init__(self, engine: Any, path: str) -> None:
        self.engine, self.model = engine, engine._model
        self.shape = Shape.of(engine._operators.stack.model_config)

    def sites(self) -> Iterator[tuple[int, str, Site]]:
        model = self.model
        yield BEFORE, "token_ids", self._given()
        yield BEFORE, "positions", self._given()
        yield BEFORE, "embed", self._embedding()
        for index, layer in enumerate(model.model.layers):
            for point, site in self._layer(layer):
                yield index, point, site
        yield AFTER, "final_norm", norm_site(model.model.norm._run._layer, model.model.norm.weight)
        yield AFTER, "logits", self._linear(model._head._run, model.lm_head.weight, {"logits": slice(0, None)})
        logprob = model._logprob
        yield AFTER, "logprob", Site("logprob", logprob._compute, lambda f: attribute(logprob, "_compute", f))

    def _layer(self, layer: Any) -> Iterator[tuple[str, Site]]:
        attention, mlp = layer.self_attn, layer.mlp
        runs = {"qkv": attention._qkv, "out": attention._out}
        runs |= {"router": mlp._logits} if self.shape.sparse else {"gate_up": mlp._gate_up, "down": mlp._down}
        yield from normed(layer.input_layernorm._run._layer, "attn_norm", "resid_post", layer.input_layernorm.weight)
        for name, (names, columns) in self.shape.fused().items():
            weight = torch.cat([layer.get_submodule(n).weight.detach() for n in names.split()])
            site = self._linear(runs[name]._run, weight, columns)
            yield from ((point, site) for point in columns)
        for name in ("q_norm", "k_norm"):
            module = getattr(attention, name)
            yield name, norm_site(module._run._layer, module.weight)
        yield "q", self._rope(attention)
        yield "k", self._rope(attention)
        yield "attn_out", attention_site(attention._shared.attention._layer.impl, attention)
        after = layer.post_attention_layernorm
        yield from normed(after._run._layer, "mlp_norm", "resid_mid", after.weight)
        if not self.shape.sparse:
            act = mlp._act._layer
            yield "act", Site("act", act.forward, lambda f: attribute(act, "forward", f))
            return
        yield from topk_sites(mlp._route._router)
        yield "mlp_out", experts_site(mlp._run._experts)

    def _linear(self, linear: Any, weight: Tensor, columns: dict[str, slice]) -> Site:
        def other(table: Tensor) -> Run:
            made = copy.copy(linear)
            made._prints, made._padded_rows = None, 0
            made._pack([table.contiguous()], [], ())
            return lambda x: type(linear)._product(made, x)

        return Site(
            "linear", lambda x: type(linear)._product(linear, x), lambda f: attribute(linear, "_product", f),
            weight.detach(), other, columns,
        )  # fmt: skip

    def _embedding(self) -> Site:
        embed, table = self.model._embed, self.model.model.embed_tokens.weight.detach()
        return Site(
            "embedding", lambda ids: type(embed)._value(embed, ids, table),
            lambda f: attribute(embed, "_value", lambda ids, weight: f(ids)), table,
            lambda t: lambda ids: F.embedding(ids, t),
        )  # fmt: skip

    def _rope(self, attention: Any) -> Site:
        """One object serves all layers: this layer gets a view of what is shared, with a rope of its own."""
        shared = attention._shared
        module = shared.rope._layer

        def put(run: Run) -> Undo:
            class View:
                def __getattr__(self, name: str) -> Any:
                    return getattr(shared, name)

            view = View()
            view.__dict__["rope"] = lambda positions, q, k: run(positions, q.clone(), k.clone())
            return attribute(attention, "_shared", view)

        return Site("rope", module, put, module.cos_sin_cache, lambda table: with_table(module, table))

    def _given(self) -> Site:
        model = self.model

        def put(run: Run) -> Undo:
            attention = model._shared.attention
            pack, hidden = type(attention).pack, type(model)._hidden

            def packed(lengths: Any) -> Any:
                batch = pack(attention, lengths)
                _, positions = run(torch.zeros_like(batch.positions), batch.positions)
                return types.SimpleNamespace(**{**vars(batch), "positions": positions})

            def embedded(tokens: Tensor, batch: Any) -> Tensor:
                return hidden(model, run(tokens, batch.positions)[0], batch)

            undo = attribute(attention, "pack", packed), attribute(model, "_hidden", embedded)
            return lambda: [way() for way in undo] and None

        return Site("input", lambda tokens, positions: (tokens, positions), put)


def norm_site(module: Any, weight: Tensor | None = None) -> Site:
    table = (module.weight if weight is None else weight).detach()
    run = type(module).forward
    return Site(
        "norm", lambda x, residual=None: run(module, x, residual), lambda f: attribute(module, "forward", f), table,
        lambda t: twin(module, t), eps=module.variance_epsilon,
    )  # fmt: skip


def normed(module: Any, point: str, before: str | None, weight: Tensor | None = None) -> Iterator[tuple[str, Site]]:
    """A norm, and the sum in front of it, which is the previous operator's point."""
    yield point, norm_site(module, weight)
    if before is not None:
        yield before, norm_site(module, weight)


def twin(module: Any, weight: Tensor) -> Run:
    """The same layer around another weight."""
    made = copy.copy(module)
    made._parameters = {**module._parameters, "weight": torch.nn.Parameter(weight, requires_grad=False)}
    made._forward_method = getattr(type(module), module._forward_method.__name__).__get__(made)
    return lambda x, residual=None: type(module).forward(made, x, residual)


def with_table(module: Any, table: Tensor) -> Run:
    """The rotary layer around another table of cosines and sines."""
    made = copy.copy(module)
    made._buffers = {**module._buffers, "cos_sin_cache": table}
    made._forward_method = getattr(type(module), module._forward_method.__name__).__get__(made)
    return lambda positions, q, k: type(module).forward(made, positions, q, k)


def attention_site(impl: Any, owner: Any) -> Site:
    """`owner`: the attention module whose layer is meant, where the implementation serves all layers."""
    kernel = type(impl).forward

    def put(run: Run) -> Undo:
        inside = owner is None or [False]

        def forward(
            layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Any, attn_metadata: Any, output: Tensor,
            **_: Any,
        ) -> Tensor:  # fmt: skip
            def attend(metadata: Any, output: Tensor) -> None:
                kernel(impl, layer, query, key, value, kv_cache, metadata, output)

            if inside is True or inside[0]:
                run(attend, output, attn_metadata, query, key, value)
            else:
                attend(attn_metadata, output)
            return output

        undo = [attribute(impl, "forward", forward)]
        if inside is not True:
            undo.append(attribute(owner, "forward", around(owner, inside)))
        return lambda: [way() for way in reversed(undo)] and None

    return Site("attention", lambda attend, output, metadata, q, k, v: attend(metadata, output), put)


def around(owner: Any, inside: list[bool]) -> Run:
    def forward(*args: Any) -> Any:
        inside[0] = True
        try:
            return type(owner).forward(owner, *args)
        finally:
            inside[0] = False

    return forward


def topk_sites(router: Any) -> Iterator[tuple[str, Site]]:
    compute = type(router)._compute_routing

    def run(logits: Tensor) -> Any:
        return compute(router, logits, logits, None)

    def put(run: Run) -> Undo:
        return attribute(router, "_compute_routing", lambda hidden, router_logits, indices, **_: run(router_logits))

    site = Site("topk", run, put)
    yield "topk_ids", site
    yield "topk_weights", site


def experts_site(kernel: Any) -> Site:
    apply = type(kernel).apply
    held: dict[str, Any] = {}

    def run(w1: Tensor, w2: Tensor, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        output = torch.empty_like(x)
        given = {**held, "output": output, "hidden_states": x, "w1": w1, "w2": w2}
        apply(kernel, **{**given, "topk_weights": weights, "topk_ids": ids})
        return output

    def put(run: Run) -> Undo:
        def replaced(**given: Any) -> None:
            held.update(given)
            made = run(given["w1"], given["w2"], given["hidden_states"], given["topk_weights"], given["topk_ids"])
            given["output"].copy_(made)

        return attribute(kernel, "apply", replaced)

    return Site("experts", run, put)


class TransformersSites:
    """Sites of a transformers model: its modules, whose weights are plain."""

    def __init__(self, engine: Any, path: str) -> None:
        self.engine, self.model = engine, engine._model

    def sites(self) -> Iterator[tuple[int, str, Site]]:
        for index, layer in enumerate(self.model.model.layers):
            attention, mlp = layer.self_attn, layer.mlp
            linears = {"q_proj": attention.q_proj, "k_proj": attention.k_proj, "v_proj": attention.v_proj}
            linears |= {"o_proj": attention.o_proj, "gate": mlp.gate_proj, "up": mlp.up_proj, "mlp_out": mlp.down_proj}
            for point, module in linears.items():
                yield index, point, self._linear(module)
            norms = {"attn_norm": layer.input_layernorm, "mlp_norm": layer.post_attention_layernorm}
            for point, module in (norms | {"q_norm": attention.q_norm, "k_norm": attention.k_norm}).items():
                yield index, point, self._norm(module)
            yield index, "act", self._act(mlp)

    def _linear(self, module: Any) -> Site:
        return Site(
            "linear", lambda x: F.linear(x, module.weight), lambda f: attribute(module, "forward", f),
            module.weight.detach(), lambda table: lambda x: F.linear(x, table),
        )  # fmt: skip

    def _norm(self, module: Any) -> Site:
        run = type(module).forward

        def other(table: Tensor) -> Run:
            made = copy.copy(module)
            made._parameters = {"weight": torch.nn.Parameter(table, requires_grad=False)}
            return lambda x, residual=None: run(made, x)

        return Site(
            "norm", lambda x, residual=None: run(module, x), lambda f: attribute(module, "forward", f),
            module.weight.detach(), other, eps=module.variance_epsilon,
        )  # fmt: skip

    def _act(self, mlp: Any) -> Site:
        def put(run: Run) -> Undo:
            def forward(x: Tensor) -> Tensor:
                made: Tensor = mlp.down_proj(run(torch.cat([mlp.gate_proj(x), mlp.up_proj(x)], -1)))
                return made

            return attribute(mlp, "forward", forward)

        def act(x: Tensor) -> Tensor:
            gate, up = x.chunk(2, dim=-1)
            made: Tensor = mlp.act_fn(gate) * up
            return made

        return Site("act", act, put)
