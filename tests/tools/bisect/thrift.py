"""Run by the engine's interpreter: what is left out of what a localisation writes; facts as JSON, true or false.

`thrift.py FOLDER`
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from bitgate.tools.engines.worker.probes.experiments.case import Case
from bitgate.tools.engines.worker.probes.gaps import kept, restored
from bitgate.tools.engines.worker.probes.held import Checkpoint, read_held
from bitgate.tools.engines.worker.probes.lean import lean
from bitgate.tools.engines.worker.probes.narrow import _candidates, narrowed
from bitgate.tools.engines.worker.probes.program import Op, Program
from bitgate.tools.engines.worker.probes.recorder import Recorder
from bitgate.tools.engines.worker.probes.repro import shrunk, write_repro
from bitgate.tools.engines.worker.probes.rows import own_rows, same_bits, shared_rows
from bitgate.tools.engines.worker.probes.shrink import with_rows
from bitgate.tools.engines.worker.probes.stored import load_program, save_programs
from bitgate.tools.engines.worker.probes.tracer import Tracer

Facts = Iterator[tuple[str, bool]]
GENERATOR = torch.Generator().manual_seed(4)


def whole(*shape: int) -> Tensor:
    """Small integers: products and sums are exact, whatever the kernel."""
    return torch.randint(-3, 4, shape, generator=GENERATOR).to(torch.float32)


def traced(run: Callable[..., Tensor], x: Tensor, *constants: Tensor, keys: Any = None) -> Program:
    tracer = Tracer()
    with torch.no_grad(), tracer:
        tracer.mark((0, "in"), x, x)
        made = run(x, *constants)
        tracer.mark((0, "out"), made, made)
    keys = np.stack([np.zeros(len(x), np.int64), np.arange(len(x))], axis=1) if keys is None else keys
    program = tracer.program([(0, "in")], (0, "out"), keys)
    assert program is not None
    return program


def checkpoint(folder: Path) -> Facts:
    torch.manual_seed(1)
    q, k, v = (torch.randn(n, 96).to(torch.bfloat16) for n in (128, 64, 64))
    experts = torch.randn(3, 32, 96).to(torch.bfloat16)
    folder.mkdir()
    save_file({"q": q, "k": k, "experts": experts}, folder / "model-1.safetensors")
    save_file({"v": v, "norm": torch.ones(96)}, folder / "model-2.safetensors")
    held, fused = Checkpoint(str(folder)), torch.cat([q, k, v])

    def read(value: Tensor) -> bool:
        found = held.find(value)
        return found is not None and same_bits(read_held(json.loads(json.dumps(found))), value)

    yield "one tensor of the checkpoint", read(q)
    yield "three that were fused", read(fused)
    yield "fused in another order", read(torch.cat([v, q, k]))
    yield "loaded in a wider dtype", read(fused.float())
    yield "held transposed", read(fused.t()) and held.find(fused.t())["turned"]  # type: ignore[index]
    yield "experts in one tensor", read(experts) and read(experts.flatten(0, 1))
    other = fused.clone()
    other.view(torch.int16)[200, 7] ^= 1
    yield "one bit of another value is not named", held.find(other) is None
    yield "nor is a shard", held.find(torch.cat([q[:64], k])) is None and held.find(q[1:]) is None
    yield "nor what is small", held.find(q[:2]) is None and Checkpoint("").find(q) is None
    reference = held.find(q)
    save_file({"q": q + 1, "k": k, "experts": experts}, folder / "model-1.safetensors")
    try:
        read_held(reference or {})
        yield "another file afterwards is noticed", False
    except ValueError as error:
        yield "another file afterwards is noticed", "other bytes" in str(error)


def stored(folder: Path) -> Facts:
    weight = whole(256, 128)
    folder.mkdir()
    save_file({"w": weight}, folder / "model.safetensors")
    program = traced(lambda x, w: x @ w.t(), whole(80, 128), weight)
    for name, place in (("named", str(folder)), ("written", "")):
        save_programs(str(folder / name), [program], place)
        back = load_program(str(folder / name))
        kept = all(
            same_bits(back.values[n], t) and back.values[n].stride() == t.stride() for n, t in program.values.items()
        )
        yield f"weights {name}: the program is the same when read", kept and same_bits(back.expected, program.expected)
        yield f"weights {name}: it gives the same bits", same_bits(back.result(), program.expected)
    named, written = ((folder / n / "program0.safetensors").stat().st_size for n in ("named", "written"))
    yield "named weights are not written", written - named >= weight.nbytes
    # Input, raw and canonical, are one tensor.
    yield "tensors that are alike are written once", named < (80 * 128 + 80 * 256) * 4 + 2000


def rows(folder: Path) -> Facts:
    x, w = whole(1000, 32), whole(32, 32)
    program = traced(lambda x, w: torch.relu(x @ w), x, w)
    cut = lean(program, 0, 700)
    yield "rows around the one asked for", len(cut.rows) == 64 and [0, 700] in cut.rows
    yield "with their bits", same_bits(cut.result(), program.expected[[key[1] for key in cut.rows]])
    mean = traced(lambda x: x - x.mean(0), torch.randn(1000, 32))
    yield "all rows where bits depend on them", lean(mean, 0, 700) is mean
    keys = np.stack([np.where(np.arange(1000) < 900, 0, -1), np.arange(1000)], axis=1)
    padded = traced(lambda x, w: x @ w, x, w, keys=keys)
    yield "all rows where some belong to nobody", lean(padded, 0, 700) is padded
    square = traced(lambda x, w: x @ w, whole(128, 128), w[:, :8].repeat(4, 1))
    own = [Op("own.kernel.default", [{"t": "v1"}], {}, [None]), *square.ops]
    yield (
        "never rows that may be columns, where a kernel would not notice",
        with_rows(replace(square, ops=own), [0]) is None,
    )
    yield "all rows of a small forward", lean(small := traced(lambda x: x + 1, x[:40]), 0, 3) is small


def blanks(folder: Path) -> Facts:
    """Two sequences of 150 rows; only the row's own past, or its own row, is needed, but the number of rows counts."""
    keys = np.array([[n // 150, n % 150] for n in range(300)])
    x, window = whole(300, 64), slice(64, 128)

    def named(run: Callable[[Tensor], Tensor], name: str) -> Program:
        made = traced(run, x, keys=keys)
        return lean(replace(made, notes={**made.notes, "output": [0, name]}), 0, 100)

    past, alone = named(lambda x: x.cumsum(0), "attn_out"), named(lambda x: x * x.new_ones(len(x)).sum(), "act")
    for name, program, first, expected in (
        ("past", past, 0, x.cumsum(0)), ("alone", alone, 64, x * 300)
    ):  # fmt: skip
        yield (
            f"{name}: more rows stay, with the bits of those around it",
            len(program.rows) > 128 and same_bits(program.result()[window], expected[window]),
        )
        left = next(iter(program.values.values()))
        yield f"{name}: what it reads is as it was", same_bits(left[first:128], x[first:128])
        yield f"{name}: the rest is zeros", not bool(left[:first].any()) and not bool(left[128:].any())
        yield f"{name}: only what stays is compared", own_rows(program) == list(range(64, 128))
        save_programs(str(folder / name), [program], "")
        back = load_program(str(folder / name))
        yield (
            f"{name}: the same when read",
            same_bits(back.expected, program.expected)
            and all(same_bits(back.values[n], value) for n, value in program.values.items()),
        )
        size = (folder / name / "program0.safetensors").stat().st_size
        yield f"{name}: zeros are not written", size < (128 - first + 64) * 64 * 4 + 1000
    late = named(lambda x: x.flip(0).cumsum(0).flip(0), "attn_out")
    yield "nothing is blanked where later rows are read", "window" not in late.notes
    signs = torch.zeros(64, 32)
    signs[3] = -0.0
    part, places = kept(signs)
    yield "a row of negative zeros is kept", places == [[3, 4]] and same_bits(restored(part, [64, 32], places), signs)


def columns(folder: Path) -> Facts:
    for name, width in (("wide", 1024), ("square", 512)):
        x, w, bias = whole(4, 512), whole(width, 512), whole(width)
        other = w.clone()
        other[300, 5] += 1
        run = torch.nn.functional.linear
        a, b = traced(run, x, w, bias), traced(run, x, other, bias)
        row = int((x[:, 5] != 0).nonzero()[0])
        cut_a, cut_b = narrowed(a, row, b, row)
        sizes = {tuple(t.shape) for p in (cut_a, cut_b) for t in p.values.values()}
        yield f"{name}: 64 of the weight's rows", sizes == {(4, 512), (64, 512), (64,)}
        made = cut_a.result(), cut_b.result()
        yield (
            f"{name}: their bits, and the difference",
            same_bits(made[0], a.expected[:, 256:320])
            and not same_bits(made[0][row : row + 1], made[1][row : row + 1]),
        )
    fused = whole(2048, 512)
    changed = fused.clone()
    changed[700, 5] += 1
    one, two = (traced(lambda x, w: torch.nn.functional.linear(x, w)[:, 512:1024], x, w) for w in (fused, changed))
    row = int((x[:, 5] != 0).nonzero()[0])
    thin_a, thin_b = narrowed(one, row, two, row)
    weights = [next(v for v in p.values.values() if len(v) == 2048) for p in (thin_a, thin_b)]
    yield "fused with others: zeros but for 64 of its rows", all(int((w != 0).any(1).sum()) == 64 for w in weights)
    yield "fused with others: the difference stays", not same_bits(thin_a.result()[row], thin_b.result()[row])
    custom = Op("own.kernel.default", [{"t": a.ops[0].outs[0]}], {}, [None])
    unknown = [replace(p, ops=[*p.ops, custom]) for p in (a, b)]
    yield "nothing that a kernel reads which would not notice", list(_candidates(unknown[0], width)) == []
    soft = [traced(lambda x, w: (x @ w.t()).softmax(-1), x, weight) for weight in (w, other)]
    both = narrowed(soft[0], row, soft[1], row)
    yield "all of them where one column's bits depend on the others", [p.result().shape for p in both] == [(4, 512)] * 2


def heads(folder: Path) -> Facts:
    """vLLM's attention over a paged cache, as its operators are recorded."""
    rows, heads, keys, size = 40, 8, 4, 64

    def ref(name: str) -> dict[str, str]:
        return {"t": name}

    def op(name: str, args: list[Any], outs: list[str | None], *writes: str, **kwargs: Any) -> Op:
        return Op(name, args, kwargs, outs, writes)

    view, cached = "aten.view.default", [1, keys, 256, -1]
    plan = [1, heads, keys, size, ref("lengths"), {"dtype": "float32"}, ref("starts"), True, -1, "vec", False, None]
    attention = [ref("q3"), ref("kc"), ref("vc"), ref("o3"), ref("starts"), ref("lengths"), 0.125, True, None, -1]
    attention += [ref("table"), 0.0, ref("plan"), None, None]
    written = [ref(name) for name in ("k3", "v3", "kc", "vc", "slots")]
    ops = [
        op("aten.empty.memory_format", [[rows, heads * size]], ["o"], dtype={"dtype": "float32"}),
        op(view, [ref("q"), [-1, heads, size]], ["q3"]),
        op(view, [ref("o"), [-1, heads, size]], ["o3"]),
        op(view, [ref("k"), [-1, keys, size]], ["k3"]),
        op(view, [ref("v"), [-1, keys, size]], ["v3"]),
        op(view, [ref("cache"), cached], ["c"]),
        op("aten.chunk.default", [ref("c"), 2, 2], ["kc", "vc"]),
        op("_C.cpu_attn_reshape_and_cache.default", [*written, "vec"], [None], "cache"),
        op("_C.get_scheduler_metadata.default", [*plan, "auto"], ["plan"]),
        op("_C.cpu_attention_with_kv_cache.default", attention, [None], "o"),
        op(view, [ref("o3"), [-1, heads * size]], ["out"]),
    ]
    values = {"q": torch.randn(rows, heads * size), "cache": torch.zeros(1, keys, 128, 128)}
    values |= {name: torch.randn(rows, keys * size) for name in "kv"} | {"slots": torch.arange(rows)}
    integers = {"lengths": [rows], "starts": [0, rows], "table": [[0]]}
    values |= {name: torch.tensor(given, dtype=torch.int32) for name, given in integers.items()}
    inputs = {f"0.{name}": name for name in "qkv"}
    program = Program(ops, inputs, "out", values, torch.zeros(0), [[0, n] for n in range(rows)])
    made = program.result()
    other = replace(program, values={**values, "q": values["q"].clone()})
    other.values["q"][7, 300] += 1
    a, b = narrowed(program, 7, other, 7)
    yield "one group of query heads and its keys", [tuple(a.values[n].shape) for n in ("q", "k", "cache")] == [
        (rows, 128), (rows, 64), (1, 1, 128, 128)
    ]  # fmt: skip
    yield "with the bits that it had among all", same_bits(a.result(), made[:, 256:384])
    yield "and the difference", not same_bits(a.result()[7:8], b.result()[7:8])
    planned = next(number for number, op in enumerate(ops) if "metadata" in op.name)
    for said, given, unfit in (
        ("of other lengths", program, {"lengths": torch.tensor([rows - 1], dtype=torch.int32)}),
        ("of a block that is not there", program, {"table": torch.tensor([[3]], dtype=torch.int32)}),
        ("of a slot that is not there", program, {"slots": torch.arange(rows) + 100}),
        ("of a plan made elsewhere", replace(program, ops=[op for n, op in enumerate(ops) if n != planned]),
         {"plan": torch.zeros(4000, dtype=torch.int8)}),
        ("of a plan for other queries", replace(program, ops=[
            replace(op, args=[ref("other") if a == ref("starts") else a for a in op.args]) if n == planned else op
            for n, op in enumerate(ops)
        ]), {"other": torch.tensor([10, rows], dtype=torch.int32)}),
    ):  # fmt: skip
        yield f"refused before it runs: attention {said}", refused(given, unfit)


def refused(program: Program, unfit: dict[str, Tensor]) -> bool:
    try:
        replace(program, values={**program.values, **unfit}).result()
    except RuntimeError as error:
        return ": got " in str(error)
    return False


def repro(folder: Path) -> Facts:
    """A product of full size: neither the other rows nor the rest of the weight are handed over."""
    x, w = whole(200, 512), whole(2048, 512)
    other = w.clone()
    other[1000, 5] += 1
    a, b = traced(torch.nn.functional.linear, x, w), traced(torch.nn.functional.linear, x, other)
    row = int((x[:, 5] != 0).nonzero()[0])
    case = Case("linear", a, b, shared_rows(a, b, 0, row), False)
    proof = write_repro(str(folder), shrunk(case), {"title": "t", "lines": {}})
    yield "the repro reproduces", proof["exit_codes"] == [1, 1, 1]
    yield "in a hundredth of the bytes", proof["bytes"] < (2 * w.nbytes + 2 * x.nbytes) / 25
    same = traced(torch.nn.functional.linear, x, w)
    case = Case("linear", a, same, shared_rows(a, same, 0, row), False)
    proof = write_repro(str(folder / "equal"), shrunk(case), {"title": "t", "lines": {}})
    yield (
        "equal sides are stored once, and give 0",
        proof["exit_codes"] == [0, 0, 0] and proof["bytes"] < 1.1 * w.nbytes,
    )


def clean(folder: Path) -> Facts:
    """A pass that only hashes leaves hashes, and nothing of a tensor's size."""
    recorder = Recorder()
    recorder.begin(np.stack([np.zeros(512, np.int64), np.arange(512)], axis=1))
    for layer in range(4):
        for name in ("q", "mlp_out"):
            recorder.point(layer, name, torch.randn(512, 1024).to(torch.bfloat16))
    recorder.save(str(folder), "")
    yield "two files", sorted(os.listdir(folder)) == ["hashes.safetensors", "points.json"]
    size = sum(path.stat().st_size for path in folder.iterdir())
    yield "at most a hundredth of the tensors", size < 8 * 512 * 1024 * 2 / 100


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    parts = (checkpoint, stored, rows, blanks, columns, heads, repro, clean)
    facts = {f"{part.__name__}: {name}": bool(holds) for part in parts for name, holds in part(folder / part.__name__)}
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
