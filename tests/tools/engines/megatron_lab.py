"""In the engine's interpreter: GPTModel beside transformers on small odd checkpoints in float32. Usage: STAGE WORK OUT.

The checkpoints differ in what a mapping can get wrong: theta and scaling of the rotation, eps, ties, groups of heads,
biases, vocabularies that need padding, routers. What is written down is how far logits, routing and gradients are
apart, and what the engine says where it refuses.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

STAGE, WORK, OUT = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
sys.path.insert(0, STAGE)

COMMON: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
}  # fmt: skip
MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
ODD = {
    "qwen3": (transformers.Qwen3Config, {"head_dim": 32, "rms_norm_eps": 1e-3, "num_key_value_heads": 1}),
    "qwen3_tied": (transformers.Qwen3Config, {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama": (transformers.LlamaConfig, {"rope_parameters": LLAMA3}),
    "llama_biased": (transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-5}),
    "llama_tied_linear": (
        transformers.LlamaConfig,
        {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "moe": (transformers.Qwen3MoeConfig, {**MOE, "norm_topk_prob": True}),
    "moe_whole_softmax": (transformers.Qwen3MoeConfig, {**MOE, "norm_topk_prob": False, "decoder_sparse_step": 2}),
    "moe_dense_first": (transformers.Qwen3MoeConfig, {**MOE, "norm_topk_prob": True, "mlp_only_layers": [0]}),
}
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "generate": ("llama", {}, {}, {"kind": "generate", "max_tokens": 4}),
    "packed": ("llama", {}, {}, {"kind": "prefill", "packing": "packed"}),
    "yarn": ("qwen3", {"rope_parameters": {"rope_type": "yarn"}}, {}, {}),
    "left_over": ("llama", {"num_hidden_layers": 1}, {}, {}),
    "missing": ("llama", {"num_hidden_layers": 3}, {}, {}),
    "shape": ("llama", {"intermediate_size": 64}, {}, {}),
    "untied": ("qwen3_tied", {"tie_word_embeddings": False}, {}, {}),
    "other_head": ("qwen3", {"tie_word_embeddings": True}, {}, {}),
    "transformer_engine": ("llama", {}, {"transformer_impl": "transformer_engine"}, {}),
    "cuda": ("llama", {}, {"device": "cuda"}, {}),
    "alltoall": ("moe", {}, {"moe_token_dispatcher_type": "alltoall"}, {}),
}
"""What is asked: a checkpoint, keys of its config.json changed, options, a step."""
SEQUENCES = [(list(range(5, 5 + n)), [7, 300 - n, 11]) for n in (3, 20, 37)]


def main() -> None:
    import logging

    logging.disable(logging.WARNING)
    report = {}
    for number, (name, (config, odd)) in enumerate(ODD.items()):
        path = write(name, config(**{**COMMON, **odd}), number)
        report[name] = compared(str(path))
    refused = {name: said(name, *asked) for name, asked in REFUSED.items()}
    with open(OUT, "w", encoding="utf-8") as file:
        json.dump({"odd": report, "refused": refused}, file)


def said(name: str, of: str, keys: dict[str, Any], options: dict[str, Any], step: dict[str, Any]) -> list[str]:
    """The code and the words of the refusal."""
    error = importlib.import_module("bitgate_worker.engine").EngineError
    path = WORK / "refused" / name
    shutil.copytree(WORK / of, path)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps(config | keys), encoding="utf-8")
    engine = importlib.import_module("bitgate_worker.engines.megatron").ENGINE
    try:
        engine(str(path), options).run({"name": "asked", "groups": [[0, 1]], **step}, sequences_of())
    except error as refusal:
        return [refusal.code, refusal.message]
    return ["none", ""]


def write(name: str, config: Any, seed: int) -> Path:
    torch.manual_seed(seed)
    net = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    net.save_pretrained(WORK / name)
    return WORK / name


def compared(path: str) -> dict[str, Any]:
    engines = {name: importlib.import_module(f"bitgate_worker.engines.{name}") for name in ("megatron", "transformers")}
    weights = importlib.import_module("bitgate_worker.weights")
    ours, theirs = engines["megatron"].ENGINE(path, {}), engines["transformers"].ENGINE(path, {})
    digest = weights.digest_of(ours.weights())
    made = {
        "weights": digest.root() == weights.checkpoint_digest(path).root(),
        "unreadable": digest.unreadable,
        "logits": logits_apart(ours, theirs),
        "routing": routing_equal(ours, theirs),
        **gradients_apart(ours, theirs),
    }
    unpadded = engines["megatron"].ENGINE(path, {"make_vocab_size_divisible_by": 1})
    made["padding"] = logits_apart(ours, unpadded)
    made["vocabulary"] = [e.describe()["stable"]["model"]["vocabulary"]["padded_to"] for e in (ours, unpadded)]
    for engine in (ours, unpadded):
        engine.close()
    return made


def sequences_of() -> Any:
    return importlib.import_module("bitgate_worker.sequences").Sequences.of(SEQUENCES)


def batch_of(packing: str, group: list[int]) -> Any:
    layout = importlib.import_module("bitgate_worker.engines.transformers_layout")
    return layout.batches_of(group, sequences_of(), packing)[0]


def logits_apart(ours: Any, theirs: Any) -> float:
    apart = 0.0
    for group in ([0], [1], [2], [0, 1, 2]):
        batch = batch_of("padded", group)
        with torch.no_grad():
            a, b = ours._logits(batch), theirs._logits(batch)
        assert a.shape == b.shape, (a.shape, b.shape)
        real = batch.mask.bool() if batch.mask is not None else torch.ones(a.shape[:2], dtype=torch.bool)
        apart = max(
            apart, float((a - b)[real].abs().max()), float((a.logsumexp(-1) - b.logsumexp(-1))[real].abs().max())
        )
    return apart


def routing_equal(ours: Any, theirs: Any) -> dict[str, int]:
    """How many rows choose the same set of experts on both sides, and how many rows there are."""
    a, b = chosen(ours, "mlp.router"), chosen(theirs, "mlp.gate")
    assert len(a) == len(b)
    same = sum(int((x == y).all(-1).sum()) for x, y in zip(a, b, strict=True))
    return {"equal": same, "rows": sum(len(x) for x in a), "layers": len(a)}


def chosen(engine: Any, where: str) -> list[Any]:
    """One map [rows, experts] a sparse layer."""
    maps: list[Any] = []

    def hook(module: Any, given: Any, out: Any) -> None:
        if where == "mlp.router":
            maps.append(out[1])
        else:
            logits, _, ids = out[:3]
            maps.append(torch.zeros_like(logits).scatter(1, ids, 1.0).bool())

    routers = [m for n, m in engine._model.named_modules() if n.endswith(where) and "outer" in type(m).__name__]
    handles = [m.register_forward_hook(hook) for m in routers]
    with torch.no_grad():
        engine._logits(batch_of("single", [2]))
    for handle in handles:
        handle.remove()
    return maps


def gradients_apart(ours: Any, theirs: Any) -> dict[str, Any]:
    """Every checkpoint tensor's gradient, read back through the same inverse as the weights."""
    rules = importlib.import_module("bitgate_worker.engines.megatron_weights")
    unfused = importlib.import_module("bitgate_worker.engines.transformers_model").unfused
    step = {"kind": "train_forward", "name": "train", "groups": [[0, 1, 2]], "packing": "single"}
    report = [engine.run(step, sequences_of()).info["gradients"] for engine in (ours, theirs)][0]
    expected = {n: g for name, p in theirs._model.named_parameters() for n, g in unfused(name, p.grad)}
    apart, seen = 0.0, set()
    for name, parameter in ours._model.named_parameters():
        rule = rules.rule_of(name, ours._sizes, ours._built.padded)
        for own, grad in zip(rule.names, rule.split(parameter.grad), strict=True):
            seen.add(own)
            scale = float(expected[own].abs().max()) or 1.0
            apart = max(apart, float((grad - expected[own]).abs().max()) / scale)
    assert seen == set(expected), seen ^ set(expected)
    return {"gradients": apart, "not_finite": report["not_finite"], "unreached": report["unreached"]}


main()
