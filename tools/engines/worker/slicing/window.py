"""Window equivalence: the slice, given the full model's hidden state, computes the same bits at every layer.

The reference is the full model under its own configuration and its own layer numbers, in memory at once or, when that
is too much, a few layers at a time: hidden states between them are kept, weights are not. A layer that reads from
another one (shared KV, shared indices) is loaded with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .models import Skip, hooked, layers_of, load, model_class, partial_class


@dataclass
class Run:
    """Inputs and outputs of layers by number."""

    inputs: dict[int, torch.Tensor] = field(default_factory=dict)
    outputs: dict[int, torch.Tensor] = field(default_factory=dict)


def window_report(options: Mapping[str, Any]) -> dict[str, Any]:
    """`{"equal", "layers": [{"new", "old", "injected", "equal", "different"}…], "mode", "elements"}`."""
    kept, total = list(options["kept"]), int(options["total"])
    source, path, kind = options["source"], options["slice"], model_class(options["source"])
    torch.manual_seed(0)
    tokens = sample_tokens(options)
    sizes, limit = options["layer_bytes"], int(options["memory_bytes"])
    whole = sum(sizes) <= limit
    chunks = [list(range(total))] if whole else list(chunks_of(sizes[: kept[-1] + 1], limit, options["needs"]))
    full = reference(source, kind, total, chunks, tokens, options["needs"])
    model, _ = load(path, model_class(path))
    injected = {new: full.inputs[kept[new]] for new in options["injections"]}
    part = run(model, len(kept), tokens, injected)
    rows = [_row(new, old, new in injected, full.outputs[old], part.outputs[new]) for new, old in enumerate(kept)]
    planted = run(model, len(kept), tokens, {**injected, 0: one_ulp(part.inputs[0])})
    return {
        "equal": all(row["equal"] for row in rows),
        "finite": all(bool(full.outputs[old].isfinite().all()) for old in kept),
        "self_test": {
            "planted": "one ulp in the hidden state that enters the first layer of the slice",
            "seen": not torch.equal(planted.outputs[0], part.outputs[0]),
        },
        "layers": rows,
        "mode": "full model in memory" if whole else f"layer by layer from the files, in {len(chunks)} parts",
        "elements": sum(full.outputs[old].numel() for old in kept),
        "tokens": int(tokens.numel()),
    }


def one_ulp(hidden: torch.Tensor) -> torch.Tensor:
    """The tensor with its largest element moved to the next number: the residual stream must carry that on."""
    changed = hidden.clone()
    flat, place = changed.view(-1), int(hidden.abs().argmax())
    flat[place] = torch.nextafter(flat[place], torch.zeros_like(flat[place]))
    return changed


def sample_tokens(options: Mapping[str, Any]) -> torch.Tensor:
    """Random tokens from the ordinary part of the vocabulary.

    Four sequences: a loop that unpacks two or three values from a layer must not take a batch for them.
    """
    limit = max(int(options["vocab_size"]) * 3 // 4, 2)
    return torch.randint(1, limit, (4, int(options["tokens"])))


def chunks_of(layer_bytes: Sequence[int], limit: int, needs: Mapping[str, Sequence[int]]) -> Iterator[list[int]]:
    """Runs of layers that fit `limit` bytes together with what they read from; at least one layer each."""
    chunk: list[int] = []
    for layer in range(len(layer_bytes)):
        grown = closed([*chunk, layer], needs)
        if chunk and sum(layer_bytes[i] for i in grown) > limit:
            yield chunk
            chunk = []
        chunk.append(layer)
    yield chunk


def closed(layers: Sequence[int], needs: Mapping[str, Sequence[int]]) -> set[int]:
    found: set[int] = set()
    todo = list(layers)
    while todo:
        layer = todo.pop()
        if layer not in found:
            found.add(layer)
            todo.extend(needs.get(str(layer), ()))
    return found


def reference(
    source: str,
    kind: Any,
    total: int,
    chunks: list[list[int]],
    tokens: torch.Tensor,
    needs: Mapping[str, Sequence[int]],
) -> Run:
    """Inputs and outputs of every layer up to the last one of the last chunk."""
    known = Run()
    for chunk in chunks:
        loaded = closed(chunk, needs)
        whole = len(chunks) == 1 and len(loaded) == total
        model, info = load(source, kind if whole else partial_class(kind, total, loaded))
        if info["missing_keys"]:
            raise RuntimeError(f"the source lacks {sorted(info['missing_keys'])[:3]}")
        given = {i: known.inputs[i] for i in loaded if i in known.inputs}
        given |= {chunk[0]: known.outputs[chunk[0] - 1]} if chunk[0] else {}
        part = run(model, total, tokens, given)
        known.inputs |= {i: part.inputs[i] for i in chunk}
        known.outputs |= {i: part.outputs[i] for i in chunk}
        del model
    return known


def run(model: Any, count: int, tokens: torch.Tensor, injected: Mapping[int, torch.Tensor]) -> Run:
    """One forward without a cache; `injected` replaces the hidden state that enters a layer."""
    layers, seen = layers_of(model, count), Run()
    handles = []
    for number, layer in enumerate(layers):
        handles.append(layer.register_forward_pre_hook(_entering(number, seen, injected.get(number)), with_kwargs=True))
        handles.append(layer.register_forward_hook(_leaving(number, seen)))
    with hooked(handles), torch.no_grad():
        _forward(model, tokens, [layer.forward for layer in layers if isinstance(layer.forward, Skip)])
    return seen


def _forward(model: Any, tokens: torch.Tensor, skipped: Sequence[Skip]) -> None:
    """Model loops unpack what a layer returns differently, and nothing announces it: try each way that exists."""
    for arity in (0, 2, 1, 3) if skipped else (0,):
        for skip in skipped:
            skip.arity = arity
        try:
            model(input_ids=tokens, use_cache=False)
            return
        except (ValueError, IndexError, TypeError, AttributeError, RuntimeError):
            if not skipped or arity == 3:
                raise


def _entering(number: int, seen: Run, given: torch.Tensor | None) -> Any:
    def hook(_: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            args = (args[0] if given is None else given, *args[1:])
        elif given is not None:
            options = {**options, "hidden_states": given}
        hidden = args[0] if args else options["hidden_states"]
        seen.inputs[number] = hidden.clone()
        return args, options

    return hook


def _leaving(number: int, seen: Run) -> Any:
    def hook(_: Any, __: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        seen.outputs[number] = hidden.clone()

    return hook


def _row(new: int, old: int, injected: bool, full: torch.Tensor, part: torch.Tensor) -> dict[str, Any]:
    """Bits, not values: two NaNs are equal when their bits are."""
    if full.shape != part.shape or full.dtype != part.dtype:
        return {"new": new, "old": old, "injected": injected, "equal": False, "different": full.numel()}
    same = full.contiguous().view(torch.uint8) == part.contiguous().view(torch.uint8)
    wrong = int((~same).reshape(full.numel(), -1).any(dim=1).sum())
    return {"new": new, "old": old, "injected": injected, "equal": wrong == 0, "different": wrong}
