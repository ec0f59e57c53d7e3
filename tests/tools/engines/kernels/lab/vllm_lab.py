"""What the trainer's operators do, measured in the engine's interpreter. Usage: vllm_lab.py FOLDER REPORT.json

FOLDER holds tiny checkpoints qwen3, llama and qwen3_moe; a checkpoint `stepped` is written into it.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKER = Path(__file__).resolve().parents[5] / "tools/engines/worker"
package = types.ModuleType("bitgate_worker")
package.__path__ = [str(WORKER)]
sys.modules["bitgate_worker"] = package


def ours(name: str) -> Any:
    return importlib.import_module(f"bitgate_worker.{name}")


ours("engines.vllm_environment").prepare_environment()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402

checkpoint, errors, gradients = ours("kernels.checkpoint"), ours("kernels.errors"), ours("kernels.gradients")
guard, model_module, reference = ours("kernels.guard"), ours("kernels.model"), ours("kernels.reference")
stack_module, table, update, visible = (
    ours("kernels.stack"),
    ours("kernels.table"),
    ours("kernels.update"),
    ours("kernels.visible"),
)
engine_module, identity = ours("kernels.engine"), ours("kernels.identity")

OPTIONS = {"enforce_eager": True, "max_model_len": 256, "dtype": "bfloat16", "enable_prefix_caching": False}
GENERATOR = torch.Generator().manual_seed(0)


def stack_of(path: Path, *, batch_invariant: bool = True, **options: Any) -> Any:
    return stack_module.build_stack(str(path), batch_invariant=batch_invariant, engine_options=OPTIONS | options)


def model_of(path: Path, *, batch_invariant: bool = True, rows: Any = None, **options: Any) -> Any:
    operators = table.Operators(stack_of(path, batch_invariant=batch_invariant), rows or table.TABLE)
    model = model_module.CausalLM(operators, **options)
    checkpoint.load(model, str(path))
    model.operators = operators
    return model


def sequences() -> list[Tensor]:
    return [
        torch.randint(3, 1024, (length,), generator=torch.Generator().manual_seed(length)) for length in (40, 17, 33)
    ]


def make(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, generator=GENERATOR) * scale).bfloat16()


def equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.detach().view(torch.int32), b.detach().view(torch.int32))


def refusal(action: Callable[[], Any]) -> dict[str, str]:
    try:
        action()
    except ours("engine").EngineError as error:
        return {"code": error.code, "message": str(error)}
    return {"code": "none", "message": ""}


# Every row of the table against a reference written here, in float64.


def norm64(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def rotate64(x: Tensor) -> Tensor:
    length, half = len(x), 32
    angles = torch.arange(length, dtype=torch.float64)[:, None] * 10000.0 ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    a, b = x.view(length, -1, 2 * half).split(half, -1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


def attention64(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = []
    for first, last in ((0, 20), (20, 33)):
        heads = [t[first:last].view(last - first, -1, 64).transpose(0, 1) for t in (q, k, v)]
        heads[1:] = [t.repeat_interleave(2, 0) for t in heads[1:]]
        out.append(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(0, 1).reshape(last - first, -1))
    return torch.cat(out)


def experts64(ids: Tensor, x: Tensor, shares: Tensor, *w: Tensor) -> Tensor:
    def one(token: int, slot: int) -> Tensor:
        gate, up, down = w[3 * int(ids[token, slot]) : 3 * int(ids[token, slot]) + 3]
        return shares[token, slot] * (down @ (F.silu(gate @ x[token]) * (up @ x[token])))

    return torch.stack([one(t, 0) + one(t, 1) for t in range(len(x))])


def vjps(path: Path) -> dict[str, Any]:
    ops = table.Operators(stack_of(path))
    check = gradients.check_vjp
    norm, linear, biased = ops.open("rms_norm", size=128, eps=1e-6), ops.open("linear"), ops.open("linear")
    rope, silu = ops.open("rotary_embedding", head_dim=64), ops.open("silu_and_mul")
    attention = ops.open("attention", heads=4, kv_heads=2, head_dim=64, scale=0.125)
    router = ops.open("router", experts=8, top_k=2, renormalise=True)
    plain_router = ops.open("router", experts=8, top_k=2, renormalise=False)
    experts = ops.open("experts", experts=4, top_k=2, hidden=128, intermediate=64)
    logprob, embedding = ops.open("logprob"), ops.open("embedding")
    tokens, positions = torch.randint(0, 500, (33,), generator=GENERATOR), torch.arange(33)
    ids = torch.stack([torch.randperm(4, generator=GENERATOR)[:2] for _ in range(33)]).int()
    hidden, logits, batch = make(33, 128), make(33, 8), attention.pack([20, 13])
    names = [f"{part}{e}" for e in range(4) for part in ("gate", "up", "down")]
    masters = {name: make(*((128, 64) if "down" in name else (64, 128)), scale=0.1) for name in names}
    _, chosen = router(hidden, logits)
    picked = chosen.long()
    found = {
        "embedding": check(lambda w: embedding(tokens, w, "w"), lambda w: w[tokens], {"w": make(500, 128)}),
        "rms_norm": check(lambda x, w: norm(x, w, "w"), norm64, {"x": make(33, 128), "w": make(128)}),
        "fused_add_rms_norm": check(
            lambda x, r, w: norm.add(x, r, w, "w"),
            lambda x, r, w: (norm64(x + r, w), x + r),
            {"x": make(33, 128), "r": make(33, 128), "w": make(128)},
        ),
        "linear": check(
            lambda x, a, b: linear(x, [a, b], ["a", "b"]),
            lambda x, a, b: torch.cat([x @ a.T, x @ b.T], -1),
            {"x": make(33, 128), "a": make(64, 128), "b": make(96, 128)},
        ),
        "linear_bias": check(
            lambda x, a, c: biased(x, [a], ["a", "c"], [c]),
            lambda x, a, c: x @ a.T + c,
            {"x": make(33, 128), "a": make(64, 128), "c": make(64)},
        ),
        "rotary_embedding": check(
            lambda q, k: rope(positions, q, k),
            lambda q, k: (rotate64(q), rotate64(k)),
            {"q": make(33, 256), "k": make(33, 128)},
        ),
        "attention": check(
            lambda q, k, v: attention(batch, q, k, v),
            attention64,
            {"q": make(33, 256), "k": make(33, 128), "v": make(33, 128)},
        ),
        "silu_and_mul": check(silu, lambda x: F.silu(x[:, :64]) * x[:, 64:], {"x": make(33, 128)}),
        "router": check(lambda x: router(hidden, x), lambda x: x.gather(-1, picked).softmax(-1), {"logits": logits}),
        "router_plain": check(
            lambda x: plain_router(hidden, x), lambda x: x.softmax(-1).gather(-1, picked), {"logits": logits}
        ),
        "experts": check(
            lambda x, s, *w: experts(x, s, ids, w, names),
            lambda x, s, *w: experts64(ids, x, s, *w),
            {"x": hidden, "shares": torch.rand(33, 2, generator=GENERATOR), **masters},
        ),
        "logprob": check(
            lambda x: logprob(x, tokens),
            lambda x: torch.log_softmax(x, -1).gather(-1, tokens[:, None])[:, 0],
            {"logits": make(33, 500)},
        ),
    }
    return {
        name: {
            "verdict": c.verdict,
            "worst": c.worst.relative_error,
            "bound": c.bound,
            "wrong": [p.detail for p in c.wrong],
        }
        for name, c in found.items()
    }


def whole_model(path: Path) -> dict[str, Any]:
    """The model's gradient against the float64 reference; recomputation; a wider master."""
    model, given = model_of(path), sequences()
    logprobs = model(given)
    logprobs.sum().backward()
    grads = {name: p.grad for name, p in model.named_masters()}
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    exact = {name: p.detach().double().requires_grad_(True) for name, p in model.named_masters()}
    lengths = [len(s) for s in given]
    layers = [layer.mlp.chosen for layer in model.model.layers if hasattr(layer.mlp, "chosen")]
    routing = [[ids.split(lengths)[i] for ids in layers] for i in range(len(given))] if layers else []
    expected = reference.reference_logprobs(config, exact, given, routing)
    expected.sum().backward()
    wanted = {name: w.grad if w.grad is not None else torch.zeros_like(w) for name, w in exact.items()}
    count = config["num_hidden_layers"]
    sums = gradients.model_accumulations(
        count, width=config["intermediate_size"], tokens=sum(lengths), vocab=config["vocab_size"]
    )
    bound = gradients.rounding_bound(torch.bfloat16, gradients.model_roundings(count), accumulations=sums)
    check = gradients.check_gradients(grads, wanted, bound=bound)
    return {
        "verdict": check.verdict,
        "worst": check.worst.relative_error,
        "bound": bound,
        "parameters": len(check.parameters),
        "wrong": [p.detail for p in check.wrong],
        "forward_error": float((logprobs - expected).detach().abs().max()),
        **recomputed(path, given, logprobs, grads),
    }


def recomputed(path: Path, given: list[Tensor], logprobs: Tensor, grads: dict[str, Tensor]) -> dict[str, Any]:
    model = model_of(path, recompute=True)
    model.train()
    again = model(given)
    again.sum().backward()
    wide = model_of(path, master_dtype=torch.float32)
    widest = wide(given)
    widest.sum().backward()
    return {
        "recompute_equal": equal(again, logprobs),
        "recompute_gradients_equal": all(torch.equal(p.grad, grads[name]) for name, p in model.named_masters()),
        "float32_master_equal": equal(widest, logprobs),
        "float32_master_gradients": {str(p.grad.dtype) for _, p in wide.named_masters()} == {"torch.float32"},
        "float32_master_exports": {str(t.dtype) for t in checkpoint.exported(wide).values()} == {"torch.bfloat16"},
    }


# Weights edited between a forward and its backward.


def edits(path: Path) -> dict[str, Any]:
    name = "model.layers.1.mlp.down_proj.weight"

    def run(edit: Callable[[Tensor], None], **options: Any) -> dict[str, str]:
        model = model_of(path, **options)
        logprobs = model(sequences())
        edit(dict(model.named_masters())[name])
        return refusal(lambda: logprobs.sum().backward())

    def in_place(weight: Tensor) -> None:
        with torch.no_grad():
            weight.mul_(1.5)

    def one_ulp_through_data(weight: Tensor) -> None:
        weight.data.view(-1).view(torch.int16)[7] += 1

    def there_and_back(weight: Tensor) -> None:
        weight.data.view(-1).view(torch.int16)[7] += 1
        weight.data.view(-1).view(torch.int16)[7] -= 1

    def operator_alone(edit: Callable[[Tensor], None]) -> dict[str, str]:
        linear = table.Operators(stack_of(path)).open("linear")
        weight = make(64, 128).requires_grad_(True)
        out = linear(make(5, 128), [weight], ["some.weight"])
        edit(weight)
        return refusal(lambda: out.sum().backward())

    return {
        "name": name,
        "in_place": run(in_place),
        "through_data": run(one_ulp_through_data),
        "with_recompute": run(one_ulp_through_data, recompute=True),
        "there_and_back": run(there_and_back),
        "operator_alone": operator_alone(one_ulp_through_data),
    }


def stale_pack(path: Path) -> bool:
    """A forward after an edit through `.data` computes with the new weights, not with those packed before."""
    model = model_of(path)
    with torch.no_grad():
        before = model(sequences())
        model.model.layers[0].mlp.down_proj.weight.data.mul_(2)
        edited = model(sequences())
        model.model.layers[0].mlp.down_proj.weight.data.div_(2)
        return not equal(before, edited) and equal(before, model(sequences()))


# What is refused.


def variant(path: Path, folder: Path, name: str, **changes: Any) -> Path:
    """The checkpoint under another configuration."""
    made = folder / name
    shutil.copytree(path, made)
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))
    (made / "config.json").write_text(json.dumps(config | changes, allow_nan=False), encoding="utf-8")
    return made


def refusals(path: Path, folder: Path) -> dict[str, dict[str, str]]:
    def start(**options: Any) -> Callable[[], Any]:
        return lambda: engine_module.ENGINE(str(path), OPTIONS | options)

    def with_config(name: str, **changes: Any) -> Callable[[], Any]:
        return lambda: engine_module.ENGINE(str(variant(path, folder, name, **changes)), OPTIONS)

    def without_row() -> None:
        rows = {name: row for name, row in table.TABLE.items() if name != "silu_and_mul"}
        model_of(path, rows=rows)

    def too_long() -> None:
        model_of(path)([torch.zeros(20, dtype=torch.int64), torch.zeros(257, dtype=torch.int64)])

    def scored(*responses: list[int], groups: list[list[int]]) -> Callable[[], Any]:
        given = ours("sequences").Sequences.of([([], response) for response in responses])
        step = {"kind": "prefill", "name": "pre", "groups": groups}
        return lambda: engine_module.ENGINE(str(path), OPTIONS).run(step, given)

    def missing_tensor() -> None:
        engine_module.ENGINE(str(variant(path, folder, "wider", intermediate_size=512)), OPTIONS)

    actions = {
        "without_row": without_row,
        "compiled": start(enforce_eager=False),
        "kv_dtype": start(kv_cache_dtype="int8_per_token_head"),
        "float32_head": start(hf_overrides={"head_dtype": "float32"}),
        "processed_logprobs": start(logprobs_mode="processed_logprobs"),
        "unknown_option": start(max_modle_len=5),
        "bad_flag": start(recompute="yes"),
        "bad_master": start(master_dtype="int8"),
        "sliding_window": with_config("sliding", use_sliding_window=True, sliding_window=8, max_window_layers=0),
        "architecture": with_config("foreign", architectures=["Qwen2ForCausalLM"], model_type="qwen2"),
        "dropout": with_config("dropout", attention_dropout=0.1),
        "too_long": too_long,
        "tensor_parallel": start(tensor_parallel_size=2),
        "quantised": start(quantization="fp8"),
        "token_outside": scored([5, 6], [5, 1024], groups=[[0, 1]]),
        "no_token": scored([5, 6], [], groups=[[0], [1]]),
        "nothing_to_score": scored([5, 6], groups=[[]]),
        "generate": lambda: engine_module.ENGINE(str(path), OPTIONS).run(
            {"kind": "generate", "name": "gen", "groups": [[0]]}, ours("sequences").Sequences.of([([3], [4])])
        ),
        "missing_tensor": missing_tensor,
    }
    return {name: refusal(action) for name, action in actions.items()}


# Dispatch.


def dispatch(path: Path) -> dict[str, Any]:
    """Two configurations describe themselves differently, and a kernel of the same name gives other bits."""
    tiled, given = model_of(path), sequences()
    with torch.no_grad():
        right = tiled(given)
        RIGHT.update(tiled.operators.describe())
        untiled = model_of(path, batch_invariant=False)
        untiled(given)
        wrong = {name: wrong_kernel(path, given, right, swap) for name, swap in SWAPS.items()}
    return {
        "different": identity.different_kernels(untiled.operators.describe(), tiled.operators.describe()),
        "wrong_kernels": wrong,
        "new_row": new_row(path, given, right),
    }


def wrong_kernel(path: Path, given: list[Tensor], right: Tensor, swap: Callable[[Any], Any]) -> dict[str, Any]:
    """What comes of running the function of the same name that the engine does not dispatch for one operator."""
    model = model_of(path)
    undo = swap(model)
    different = int((model(given).view(torch.int32) != right.view(torch.int32)).sum())
    shown = identity.different_kernels(RIGHT, model.operators.describe())
    if undo is not None:
        undo()
    return {"tokens": different, "shown": shown}


RIGHT: dict[str, list[str]] = {}


def native_rope(model: Any) -> Callable[[], None]:
    # vLLM shares one layer among all models of the process.
    layer = model._shared.rope._layer
    chosen, layer._forward_method = layer._forward_method, layer.forward_native
    return lambda: setattr(layer, "_forward_method", chosen)


def cpp_norm(model: Any) -> None:
    from vllm import _custom_ops as ops

    for norm in model.operators._opened["rms_norm"]:

        def kernel(x: Tensor, residual: Tensor | None = None, *, layer: Any = norm._layer) -> Any:
            if residual is None:
                out = torch.empty_like(x)
                ops.rms_norm(out, x.contiguous(), layer.weight.data, layer.variance_epsilon)
                return out
            ops.fused_add_rms_norm(x, residual, layer.weight.data, layer.variance_epsilon)
            return x, residual

        norm._layer._forward_method = kernel


def cpp_silu(model: Any) -> None:
    for op in model.operators._opened["silu_and_mul"]:

        def kernel(x: Tensor) -> Tensor:
            out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
            torch.ops._C.silu_and_mul(out, x.contiguous())
            return out

        op._layer._forward_method = kernel


def torch_attention(model: Any) -> None:
    impl = model._shared.attention._layer.impl
    plain = ours("kernels.attention").reference_attention

    class TorchAttention(type(impl)):  # type: ignore[misc]
        def forward(self, layer, query, key, value, cache, metadata, output):  # type: ignore[no-untyped-def]
            lengths = metadata.seq_lens.tolist()
            rows = [t.reshape(len(t), -1) for t in (query, key, value)]
            output.copy_(plain(lengths, *rows, layer.head_size, self.scale).view_as(output))

    impl.__class__ = TorchAttention


SWAPS = {
    "native_rope": native_rope,
    "cpp_norm": cpp_norm,
    "cpp_silu_and_mul": cpp_silu,
    "torch_attention": torch_attention,
}


def new_row(path: Path, given: list[Tensor], right: Tensor) -> dict[str, Any]:
    """A row that replaces one operator is all it takes: the model calls it, and describe shows it."""
    silu = table.TABLE["silu_and_mul"]

    def build(stack: Any) -> Any:
        class Own(silu.build):  # type: ignore[misc, name-defined]
            identity = "somebody's own"

        return Own(stack)

    row = table.Row(build, silu.points, "somebody's own", silu.backward)
    model = model_of(path, rows={**table.TABLE, "silu_and_mul": row})
    with torch.no_grad():
        return {
            "equal": equal(model(given), right),
            "shown": identity.different_kernels(RIGHT, model.operators.describe()),
        }


def bit_patterns() -> dict[str, bool]:
    """The value passes through untouched, where value + (graph - graph.detach()) would not."""
    odd = torch.tensor([-0.0, float("inf"), float("-inf"), 1.0])
    leaf = torch.ones(4, requires_grad=True)
    call = visible.Call("odd", lambda x: odd.clone(), visible.from_graph(lambda x: x * 3))
    out = visible.visible(call, leaf)
    out.backward(torch.ones(4))
    graph = leaf * 3
    sum_form = odd + (graph - graph.detach())
    return {
        "visible_keeps_bits": equal(out, odd),
        "sum_keeps_bits": equal(sum_form, odd),
        "gradient": torch.equal(leaf.grad, torch.full((4,), 3.0)),
    }


def fingerprints() -> dict[str, bool]:
    seen, whole = True, torch.randn(3 * 8192 + 5, generator=GENERATOR).bfloat16()
    before = guard.fingerprint(whole)
    for index in (0, 1, 4095, 4096, 8191, 8192, len(whole) - 5, len(whole) - 1):
        edited = whole.clone()
        edited.view(torch.int16)[index] += 1
        seen = seen and guard.fingerprint(edited) != before
    moved = whole.clone()
    moved[0], moved[8192] = whole[8192], whole[0]
    square = torch.randn(64, 100, generator=GENERATOR)
    return {
        "single_words": seen,
        "moved_words": guard.fingerprint(moved) != before,
        "layout_is_not_content": guard.fingerprint(square.t()) == guard.fingerprint(square.t().contiguous())
        and guard.fingerprint(whole[1:]) == guard.fingerprint(whole[1:].clone()),
    }


def stepped(path: Path, out: Path) -> dict[str, Any]:
    model, given = model_of(path), sequences()
    done = update.one_step(model, given, [10, 5, 8], [1.0, -0.5, 0.25], learning_rate=1e-2)
    checkpoint.save(model, str(path), str(out))
    return {"loss": done.loss, "changed": done.changed, "parameters": done.parameters}


def main() -> None:
    folder = Path(sys.argv[1])
    dense, sparse = folder / "qwen3", folder / "qwen3_moe"
    found = {
        "rows": list(table.TABLE),
        "vjps": vjps(sparse),
        "models": {name: whole_model(folder / name) for name in ("qwen3", "llama", "qwen3_moe")},
        "edits": edits(dense),
        "stale_pack_noticed": stale_pack(dense),
        "refusals": refusals(dense, folder),
        "dispatch": dispatch(dense),
        "bit_patterns": bit_patterns(),
        "fingerprints": fingerprints(),
        "step": stepped(dense, folder / "stepped"),
        "zero_advantages": zero_advantages(dense),
        "threads": torch.get_num_threads(),
    }
    Path(sys.argv[-1]).write_text(json.dumps(found, allow_nan=False), encoding="utf-8")


def zero_advantages(path: Path) -> str:
    try:
        update.one_step(model_of(path), sequences(), [1, 1, 1], [0.0, 0.0, 0.0], learning_rate=1e-3)
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    main()
