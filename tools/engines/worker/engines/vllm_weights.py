"""The weights that vLLM really computes with, under the checkpoint's own (unfused) names.

Plain parameters are read as they are. On the CPU engine a linear's weight is dropped after packing (its parameter has
shape [0]); what it computes with is read back by multiplying with the identity, which is exact: each result is one
weight plus zeros. Packed experts are unpacked by the inverse of the packing, which is found by packing the numbers of
the positions, and proved by packing the result again. A tensor that cannot be read yields the reason instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..engine import EngineError
from ..weights import CheckpointReader
from .readback import PackedExperts, from_product, identity_rows, restored_zeros

Named = tuple[str, "torch.Tensor | str"]


def resident_weights(
    llm: Any, model: torch.nn.Module, path: str, platform: str, report: dict[str, Any]
) -> Iterator[Named]:
    """Every checkpoint tensor as it is resident; `report` is filled with what the reading observed.

    Raises: EngineError `checkpoint_mismatch` when it computes with tensors that the checkpoint lacks.
    """
    reader = _Reader(model, CheckpointReader(path), platform)
    seen, made_up = set(), []
    for name, value in reader.everything(llm.llm_engine.vllm_config.parallel_config.world_size):
        seen.add(name)
        if name not in reader.checkpoint and not isinstance(value, str):
            made_up.append(name)
        yield name, value
    left = sorted(set(reader.checkpoint) - seen)
    # Where some are left over, the names may only differ. Else vLLM, which does not complain, left them as allocated.
    if made_up and not left:
        raise EngineError(
            "checkpoint_mismatch",
            f"{path}: has no tensor {', '.join(made_up[:8])} ({len(made_up)} missing); vLLM loads the rest and "
            "computes with whatever these held",
        )
    for name in left:
        yield name, "the engine holds no tensor that bitgate knows to be this one"
    report |= reader.report


class _Reader:
    def __init__(self, model: torch.nn.Module, checkpoint: CheckpointReader, platform: str) -> None:
        self.model, self.checkpoint, self.platform = model, checkpoint, platform
        self.packed: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", None) or {}
        self.report: dict[str, Any] = {"direct": 0, "read_back": 0, "unreadable": 0, "zeros_taken_from_checkpoint": 0}

    def everything(self, world_size: int) -> Iterator[Named]:
        for prefix, module in self.model.named_modules(remove_duplicate=True):
            for name, value in self._module(prefix, module):
                if world_size > 1:
                    value = f"the engine is split over {world_size} ranks; only whole tensors are digested"
                key = "unreadable" if isinstance(value, str) else "direct" if module_is_plain(module) else "read_back"
                self.report[key] += 1
                yield name, value

    def _module(self, prefix: str, module: Any) -> Iterator[Named]:
        if hasattr(module, "w13_weight"):
            yield from self._experts(prefix, module)
        elif hasattr(module, "num_embeddings_padded"):
            yield from self._vocabulary(prefix, module)
        elif _is_quantised(module):
            yield from self._quantised(prefix, module)
        else:
            for leaf, parameter in module.named_parameters(recurse=False):
                value = self._own(prefix, module, leaf, parameter)
                through_product = leaf == "weight" and hasattr(module, "cpu_linear")
                for name, piece in self._split(prefix, module, leaf, value):
                    # What is read directly is digested as it is: there a zero has its sign.
                    yield name, self._exact(name, piece) if through_product else piece

    def _own(self, prefix: str, module: Any, leaf: str, parameter: torch.Tensor) -> torch.Tensor | str:
        if leaf == "weight" and hasattr(module, "cpu_linear"):
            return self._product(module)
        if parameter.numel() == 0:
            return "its parameter was emptied, and no product computes with it"
        dtype = getattr(module, "params_dtype", parameter.dtype)
        # Some CPU kernels want the bias in float32; the way back is exact.
        return parameter.detach().to(dtype)

    def _product(self, module: Any) -> torch.Tensor | str:
        rows = identity_rows(module)
        product = getattr(module, "native_cpu_linear", module.cpu_linear)
        return from_product(lambda x: product(x, module.weight, None), rows, module.params_dtype)

    def _split(self, prefix: str, module: Any, leaf: str, value: torch.Tensor | str) -> Iterator[Named]:
        parent, _, last = prefix.rpartition(".")
        parts = self.packed.get(last, [last]) if hasattr(module, "output_sizes") else [last]
        names = [".".join(filter(None, [parent, part, leaf])) for part in parts]
        if isinstance(value, str) or len(parts) == 1:
            for name in names:
                yield name, value
            return
        sizes = module.output_sizes
        if len(sizes) != len(parts):
            for name in names:
                yield name, f"{prefix} holds {len(sizes)} parts where {len(parts)} are named"
            return
        yield from zip(names, value.split(list(sizes)), strict=True)

    def _exact(self, name: str, value: torch.Tensor | str) -> torch.Tensor | str:
        """The sign of a zero, and numbers the kernel takes for zero, do not show in a product."""
        if isinstance(value, str) or name not in self.checkpoint:
            return value
        restored, count = restored_zeros(value, self.checkpoint.tensor(name))
        self.report["zeros_taken_from_checkpoint"] += count
        return restored

    def _vocabulary(self, prefix: str, module: Any) -> Iterator[Named]:
        """Embedding and head. The head computes with its packed copy, the embedding looks up its plain weight."""
        name, plain = f"{prefix}.weight", module.weight.detach()[: module.org_vocab_size]
        is_head = hasattr(module, "cpu_linear") and prefix.endswith("lm_head")
        value = self._packed_vocabulary(module, name) if is_head else plain
        if name not in self.checkpoint and prefix.endswith("lm_head"):
            yield from self._tied_head(name, value)
        else:
            yield name, value
        bias = getattr(module, "bias", None)
        if isinstance(bias, torch.nn.Parameter):
            yield f"{prefix}.bias", bias.detach()[: module.org_vocab_size].to(plain.dtype)

    def _tied_head(self, name: str, value: torch.Tensor | str) -> Iterator[Named]:
        """A tied head has no tensor in the checkpoint; what it computes with must be the embedding's."""
        embedding = next((n for n in self.checkpoint if n.endswith("embed_tokens.weight")), None)
        stored = None if embedding is None else self.checkpoint.tensor(embedding)
        if stored is None or isinstance(value, str):
            yield name, value if isinstance(value, str) else "the checkpoint has no embedding that it could be tied to"
            return
        restored, _ = restored_zeros(value.cpu(), stored)
        if not torch.equal(restored, stored):
            yield (
                name,
                "the head is tied to the embedding, but computes with other values than the checkpoint's embedding",
            )

    def _packed_vocabulary(self, module: Any, name: str) -> torch.Tensor | str:
        product = getattr(module, "native_cpu_linear", module.cpu_linear)
        read = from_product(lambda x: product(x, module.weight, None), module.embedding_dim, module.weight.dtype)
        return read if isinstance(read, str) else self._exact(name, read[: module.org_vocab_size])

    def _experts(self, prefix: str, module: Any) -> Iterator[Named]:
        kernel = PackedExperts.of(module, self.platform)
        for leaf, parameter in module.named_parameters(recurse=False):
            full = f"{prefix}.{leaf}"
            targets = self._expert_names(module, full)
            if not targets:
                yield full, "the model does not say which checkpoint tensors these experts are"
                continue
            for expert, shards in targets.items():
                value = kernel.unpacked(leaf, parameter, expert)
                yield from self._expert(shards, value, kernel)

    def _expert(self, shards: Mapping[str, str], value: torch.Tensor | str, kernel: PackedExperts) -> Iterator[Named]:
        for shard, name in shards.items():
            piece = value if isinstance(value, str) else kernel.shard(value, shard)
            if self.platform != "cpu" and isinstance(piece, torch.Tensor) and not self._is_checkpoints(name, piece):
                # Kernels on GPUs may hold experts in a layout of their own, which looks the same from outside.
                piece = (
                    "the resident bytes are not the checkpoint's in the plain layout: another layout, or other weights"
                )
            yield name, piece

    def _is_checkpoints(self, name: str, piece: torch.Tensor) -> bool:
        if name not in self.checkpoint:
            return False
        stored = self.checkpoint.tensor(name)
        return bool(stored.shape == piece.shape and torch.equal(stored, piece.cpu()))

    def _expert_names(self, module: Any, full: str) -> dict[int, dict[str, str]]:
        """expert -> shard (w1, w2, w3) -> checkpoint name, as the model's own loader maps them."""
        found: dict[int, dict[str, str]] = {}
        # Newer engines keep the mapping in the layer, and name its parameters without the container inside it.
        owners = (module, self.model, getattr(self.model, "model", None))
        mapping: Any = next((o.get_expert_mapping for o in owners if hasattr(o, "get_expert_mapping")), None)  # type: ignore[union-attr]
        for parameter, weight, expert, shard in mapping() if mapping else ():
            for name in (full.replace(".routed_experts.", "."), full):
                if parameter in name:
                    found.setdefault(expert, {})[shard] = name.replace(parameter, weight)
                    break
        return found

    def _quantised(self, prefix: str, module: Any) -> Iterator[Named]:
        parent, _, last = prefix.rpartition(".")
        method = type(module.quant_method).__name__
        for part in self.packed.get(last, [last]):
            stem = ".".join(filter(None, [parent, part]))
            names = [name for name in self.checkpoint if name.startswith(f"{stem}.")] or [f"{stem}.weight"]
            for name in names:
                yield name, f"it is quantised ({method}), and no checked way back exists"


def module_is_plain(module: Any) -> bool:
    return not hasattr(module, "cpu_linear") and not hasattr(module, "w13_weight")


def _is_quantised(module: Any) -> bool:
    method = type(getattr(module, "quant_method", None)).__name__
    return method not in (
        "NoneType",
        "UnquantizedLinearMethod",
        "UnquantizedEmbeddingMethod",
        "_GateLinearMethod",
    ) and any(True for _ in module.named_parameters(recurse=False))
