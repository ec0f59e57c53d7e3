"""Two FSDP2 ranks whose forward values are the rollout engine's: the same operator table, sharded weights.

    torchrun --nproc-per-node 2 docs/examples/fsdp2_trainer.py MODEL SEQUENCES.json OUT.json

SEQUENCES.json: {"sequences": [[token, ...], ...], "response_starts": [...], "options": {vLLM engine arguments}}.
OUT.json: the logprob bits of every token but the first, before and after one optimiser step, and what was checked.
With --save FOLDER the stepped weights are written as a checkpoint under their own names.

Run it with the interpreter that has vLLM. Each rank holds half of every weight; a layer is gathered for its forward and
again for its backward, and the operators see ordinary tensors.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import types
from pathlib import Path

WORKER = Path(__file__).resolve().parents[2] / "tools" / "engines" / "worker"


def worker_package() -> None:
    """Make the worker importable as a package without bitgate being installed, as a staged copy of it would be."""
    package = types.ModuleType("bitgate_worker")
    package.__path__ = [str(WORKER)]
    sys.modules["bitgate_worker"] = package


worker_package()
importlib.import_module("bitgate_worker.engines.vllm_environment").prepare_environment()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

checkpoint = importlib.import_module("bitgate_worker.kernels.checkpoint")
guard = importlib.import_module("bitgate_worker.kernels.guard")
model_module = importlib.import_module("bitgate_worker.kernels.model")
stack_module = importlib.import_module("bitgate_worker.kernels.stack")
table = importlib.import_module("bitgate_worker.kernels.table")
update = importlib.import_module("bitgate_worker.kernels.update")


def sharded(path: str, options: dict, recompute: bool):  # type: ignore[no-untyped-def]
    """The model of the single-process trainer, loaded on every rank and then cut: each layer is one group."""
    stack = stack_module.build_stack(path, batch_invariant=True, engine_options=options)
    model = model_module.CausalLM(table.Operators(stack), recompute=recompute)
    checkpoint.load(model, path)
    for layer in model.model.layers:
        fully_shard(layer)
    # Also the root: outside a forward or backward every parameter is then a shard, which is what the checks look at.
    fully_shard(model, reshard_after_forward=True)
    return model


def logprob_bits(model, sequences) -> list[int]:  # type: ignore[no-untyped-def]
    with torch.no_grad():
        return model(sequences).view(torch.int32).tolist()


def step(model, sequences, starts, learning_rate: float) -> dict:  # type: ignore[no-untyped-def]
    """One update on all sequences; every rank computes the same loss on its own data here."""
    names = dict(model.named_parameters())
    masters = guard.watch_parameters(names.items())
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    logprobs = model(sequences, masters=masters)
    train_bits = logprobs.detach().view(torch.int32).tolist()
    rows = logprobs.split([len(s) - 1 for s in sequences])
    loss = -torch.cat([r[max(start, 1) - 1 :] for r, start in zip(rows, starts, strict=True)]).mean()
    loss.backward()
    grads = {name: p.grad.full_tensor() for name, p in names.items() if p.grad is not None}
    optimiser.step()
    return {
        "train_bits": train_bits,
        "unreached": sorted(set(names) - set(grads)),
        "not_finite": sorted(name for name, g in grads.items() if not bool(g.isfinite().all())),
        "zero": sorted(name for name, g in grads.items() if not bool(g.any())),
        "shard_elements": sum(p.to_local().numel() for p in names.values()),
        "elements": sum(p.numel() for p in names.values()),
    }


def save(model, source: str, out: str) -> None:  # type: ignore[no-untyped-def]
    tensors = {name: p.full_tensor().detach() for name, p in model.named_masters()}
    if dist.get_rank() == 0:
        checkpoint.write(tensors, source, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("sequences", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--save", help="a new folder for the stepped checkpoint")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    job = json.loads(args.sequences.read_text(encoding="utf-8"))
    sequences = [torch.tensor(tokens) for tokens in job["sequences"]]
    model = sharded(args.model, job["options"], args.recompute)
    before = logprob_bits(model, sequences)
    report = step(model, sequences, job["response_starts"], args.learning_rate)
    report |= {"before": before, "after": logprob_bits(model, sequences), "ranks": dist.get_world_size()}
    if args.save:
        save(model, args.model, args.save)
    if dist.get_rank() == 0:
        args.out.write_text(json.dumps(report, allow_nan=False), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
