"""Weights edited between a forward and its backward, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared import OPTIONS, engine_module, equal, model_of, ours, refusal, sequences, stack_of, table

# isort: split
# torch comes after `shared`, which sets the variables that vLLM reads.
import torch
from torch import nn

NAME = "model.layers.1.mlp.down_proj.weight"


def edits(path: Path) -> dict[str, Any]:
    def run(edit: Callable[[Any], None], **options: Any) -> dict[str, str]:
        model = model_of(path, **options)
        logprobs = model(sequences())
        edit(model)
        return refusal(lambda: logprobs.sum().backward())

    return {
        "name": NAME,
        **{edit.__name__: run(edit) for edit in (in_place, through_data, replaced, new_data, foreach, loaded)},
        "with_recompute": run(through_data, recompute=True),
        "with_float32_master": run(through_data, master_dtype=torch.float32),
        "replaced_with_recompute": run(replaced, recompute=True),
        "there_and_back": run(there_and_back),
        "operator_alone": operator_alone(path),
    }


def weight_of(model: Any) -> nn.Parameter:
    return model.model.layers[1].mlp.down_proj.weight  # type: ignore[no-any-return]


def in_place(model: Any) -> None:
    with torch.no_grad():
        weight_of(model).mul_(1.5)


def through_data(model: Any) -> None:
    weight_of(model).data.view(-1).view(torch.int16)[7] += 1


def there_and_back(model: Any) -> None:
    weight_of(model).data.view(-1).view(torch.int16)[7] += 1
    weight_of(model).data.view(-1).view(torch.int16)[7] -= 1


def new_data(model: Any) -> None:
    weight_of(model).data = weight_of(model).data * 1.5


def replaced(model: Any) -> None:
    """Another parameter of the same bytes: its gradient would never come."""
    model.model.layers[1].mlp.down_proj.weight = nn.Parameter(weight_of(model).detach().clone())


def foreach(model: Any) -> None:
    weight_of(model).grad = torch.ones_like(weight_of(model))
    torch.optim.SGD(model.parameters(), lr=0.1, foreach=True).step()


def loaded(model: Any) -> None:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state[NAME] *= 1.5
    model.load_state_dict(state)


def operator_alone(path: Path) -> dict[str, str]:
    linear = table.Operators(stack_of(path)).open("linear")
    weight = torch.ones(64, 128, dtype=torch.bfloat16, requires_grad=True)
    out = linear(torch.ones(5, 128, dtype=torch.bfloat16), [weight], ["some.weight"])
    weight.data.view(-1).view(torch.int16)[7] += 1
    return refusal(lambda: out.sum().backward())


def stale_pack(path: Path) -> bool:
    """A forward after an edit through `.data` computes with the new weights, not with those packed before."""
    model = model_of(path)
    with torch.no_grad():
        before = model(sequences())
        model.model.layers[0].mlp.down_proj.weight.data.mul_(2)
        edited = model(sequences())
        model.model.layers[0].mlp.down_proj.weight.data.div_(2)
        return not equal(before, edited) and equal(before, model(sequences()))


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
        "too_long_in_a_step": scored([5, 6], [7] * 257, groups=[[0], [1]]),
        "foreign_parts": with_config(
            "window",
            architectures=["MistralForCausalLM"],
            model_type="mistral",
            use_sliding_window=True,
            sliding_window=32,
        ),
        "no_token": scored([5, 6], [], groups=[[0], [1]]),
        "nothing_to_score": scored([5, 6], groups=[[]]),
        "generate": lambda: engine_module.ENGINE(str(path), OPTIONS).run(
            {"kind": "generate", "name": "gen", "groups": [[0]]}, ours("sequences").Sequences.of([([3], [4])])
        ),
        "missing_tensor": missing_tensor,
    }
    return {name: refusal(action) for name, action in actions.items()}
