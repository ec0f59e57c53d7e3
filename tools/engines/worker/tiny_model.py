"""A seeded tiny checkpoint of a real architecture, written by transformers in the engine's interpreter.

    python tiny_model.py OUT --family qwen3 --seed 0

The weights are random: nothing in a run on it is canned, another seed gives other figures.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

FAMILIES = ("qwen3", "llama", "qwen3_moe", "qwen3_next", "bamba")


@dataclass(frozen=True)
class TinyModel:
    """Sizes of the checkpoint. `experts` and `experts_per_token` count for qwen3_moe only.

    head_dim 64 and hidden 128 are the least the CPU engine's attention and expert kernels take as they are
    (head sizes of `CPUAttentionBackend`, hidden and expert sizes divisible by 32). The MLP is wide because oneDNN's
    bits depend on the batch from about 2048 products a sum on (measured on AMD AVX-512; with AMX far earlier).
    """

    family: str = "qwen3"
    seed: int = 0
    layers: int = 4
    hidden: int = 128
    vocab: int = 1024
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 3072
    experts: int = 8
    experts_per_token: int = 2
    tied: bool = False
    max_positions: int = 2048


def config_of(model: TinyModel):  # type: ignore[no-untyped-def]
    """The transformers configuration of `model`."""
    import transformers

    common = {
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.max_positions,
        "tie_word_embeddings": model.tied,
        # No tokenizer goes with the checkpoint; ids 0..2 exist in every vocabulary of this size.
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if model.family == "qwen3":
        return transformers.Qwen3Config(**common)
    if model.family == "llama":
        return transformers.LlamaConfig(**common)
    if model.family == "qwen3_moe":
        return transformers.Qwen3MoeConfig(
            **common,
            moe_intermediate_size=model.intermediate // 32,
            num_experts=model.experts,
            num_experts_per_tok=model.experts_per_token,
            norm_topk_prob=True,
        )
    # Recurrent layers in turn with attention. vLLM's Qwen3-Next wants a layer of experts: the last one is.
    if model.family == "qwen3_next":
        return transformers.Qwen3NextConfig(
            **common,
            layer_types=["linear_attention" if n % 2 == 0 else "full_attention" for n in range(model.layers)],
            mlp_only_layers=list(range(model.layers - 1)),
            moe_intermediate_size=model.intermediate // 32,
            shared_expert_intermediate_size=model.intermediate // 32,
            num_experts=model.experts,
            num_experts_per_tok=model.experts_per_token,
            linear_num_key_heads=model.kv_heads,
            linear_num_value_heads=model.heads,
            linear_key_head_dim=model.head_dim,
            linear_value_head_dim=model.head_dim,
        )
    if model.family == "bamba":
        return transformers.BambaConfig(
            **{k: v for k, v in common.items() if k != "head_dim"},
            attn_layer_indices=list(range(1, model.layers, 2)),
            mamba_n_heads=2 * model.heads,
            mamba_d_head=model.head_dim // 2,
            mamba_d_state=model.head_dim,
            mamba_expand=2,
            mamba_chunk_size=64,
        )
    raise ValueError(f"family: got {model.family!r}, allowed are {', '.join(FAMILIES)}")


def write_tiny_model(out: Path, model: TinyModel) -> Path:
    """Write config.json, generation_config.json and bf16 safetensors to `out`; the same seed gives the same bytes."""
    import torch
    import transformers

    torch.manual_seed(model.seed)
    config = config_of(model)
    net = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _spread(net)
    net.to(torch.bfloat16).save_pretrained(out)
    return out


def _spread(net) -> None:  # type: ignore[no-untyped-def]
    """Give every parameter random values: norms initialised to ones would hide a norm that is skipped."""
    import torch

    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0, 0.1)
            elif "embed" in name:
                parameter.normal_(0.0, 1.0)
            else:
                parameter.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)


def main() -> None:
    defaults = TinyModel()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--family", choices=FAMILIES, default=defaults.family)
    for name in ("seed", "layers", "hidden", "vocab", "heads", "kv_heads", "head_dim", "intermediate", "experts"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(defaults, name))
    parser.add_argument("--tied", action="store_true")
    args = vars(parser.parse_args())
    write_tiny_model(args.pop("out"), TinyModel(**args))


if __name__ == "__main__":
    main()
