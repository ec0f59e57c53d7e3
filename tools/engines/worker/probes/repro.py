"""The repro: a folder with the tensors and one script that needs torch, and the engine's kernels if they are in it.

The script holds both regions as ordinary calls, checks the digest of its tensors, and exits with 1 while the rows
differ, 0 when they are equal, 2 when it cannot run.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from .experiments.case import Case
from .gaps import kept
from .gpu import KERNELS, SWITCH, registering
from .held import alike
from .launches import LAUNCH
from .narrow import narrowed
from .program import FRESH, Op, Program
from .repro_text import KERNEL, LOADER, MAIN, ROW, ROWS, ROWS_APART
from .rows import rows_of, same_bits
from .setting import environment_of, statements, unlike
from .shrink import fewest_rows

PROOFS = 3
PROOF_TIMEOUT_S = 120
SCRIPT = "repro.py"
TENSORS = "tensors.safetensors"


@dataclass(frozen=True)
class Small:
    """Both programs, cut down, and the place of the row in each."""

    a: Program
    b: Program
    row_a: int
    row_b: int


def shrunk(case: Case) -> Small:
    """Fewer rows on either side while the two still differ at the row in the same way as before."""
    target_a, target_b = (int(rows[case.shared.target]) for rows in (case.shared.a, case.shared.b))
    wanted_a, wanted_b = (t[case.shared.target] for t in case.outputs())

    def gives(wanted: Tensor, key: list[int]) -> Any:
        def fails(program: Program) -> bool:
            at = program.rows.index(key)
            result = rows_of(program.result(), len(program.rows))
            return result is not None and same_bits(result[at][None], wanted[None])

        return fails

    key = list(case.a.rows[target_a])
    a, row_a = fewest_rows(case.a, target_a, gives(wanted_a, key))
    b, row_b = fewest_rows(case.b, target_b, gives(wanted_b, key))
    a, b = narrowed(a, row_a, b, row_b)
    return Small(a, b, row_a, row_b)


def write_repro(
    folder: str, small: Small, about: dict[str, Any], *, proofs: int = PROOFS, poisoned: bool = False
) -> dict[str, Any]:
    """Writes it, and runs it in `proofs` fresh processes; returns what they said.

    poisoned: fresh memory is filled with NaN, as an unwritten lane may else hold the right value by chance.
    """
    os.makedirs(folder, exist_ok=True)
    tensors = {f"a.{n}": t for n, t in small.a.values.items()} | {f"b.{n}": t for n, t in small.b.values.items()}
    strides = {n: list(t.stride()) for n, t in tensors.items() if not t.is_contiguous() and 0 not in t.stride()}
    same = alike(list(tensors.items()))
    path = os.path.join(folder, TENSORS)
    parts = {n: kept(tensors[n]) for n in dict.fromkeys(same.values())}
    save_file({n: part.clone() for n, (part, _) in parts.items()}, path)
    gaps = {n: (list(tensors[n].shape), places) for n, (_, places) in parts.items() if places is not None}
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    twice = {name: (other, list(tensors[name].shape)) for name, other in same.items() if name != other}
    text = script(small, about, digest, strides, twice, gaps, poisoned=poisoned)
    with open(os.path.join(folder, SCRIPT), "w", encoding="utf-8") as script_file:
        script_file.write(text)
    codes = [_exit_code(folder) for _ in range(proofs)]
    return {
        "exit_codes": codes,
        "reproduces": bool(codes) and set(codes) == {1},
        "rows": [len(small.a.rows), len(small.b.rows)],
        "bytes": os.path.getsize(path) + len(text),
        "sha256": digest,
    }


def _exit_code(folder: str) -> int:
    try:
        done = subprocess.run(
            [sys.executable, SCRIPT], cwd=folder, capture_output=True, timeout=PROOF_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 2
    return done.returncode


def script(
    small: Small,
    about: dict[str, Any],
    digest: str,
    strides: dict[str, list[int]],
    same: dict[str, tuple[str, list[int]]] | None = None,
    gaps: dict[str, tuple[list[int], list[list[int]]]] | None = None,
    *,
    poisoned: bool = False,
) -> str:
    """`same`: tensor -> the one stored in its place, of the same bytes, and its own shape; `gaps`: tensor -> its shape,
    and which of its rows are stored, the others being zero."""
    programs = (small.a, small.b)
    spaces = {op.name.partition(".")[0] for p in programs for op in p.ops} - {"aten"}
    modules = sorted({module for space in spaces for module in registering(space)})
    invariant = any(p.notes.get("batch_invariant") for p in programs)
    on_gpu = [
        f"{side}.{n}" for side, p in zip("ab", programs, strict=True) for n in p.notes.get("gpu", ()) if n in p.values
    ]
    lines = [
        '"""' + str(about["title"]).replace('"""', "'''"),
        "",
        *(f"{name}: {value}" for name, value in about["lines"].items()),
        "",
        "Exits with 1 while the rows differ, 0 when they are equal, 2 when it cannot run.",
        '"""',
        "",
        "import hashlib, importlib, json, os, struct, subprocess, sys, tempfile",
        "",
        *_environment(programs),
        "try:",
        "    import torch",
        *(["    from vllm import _custom_ops as ops"] if KERNELS in modules else []),
        *(f"    import {module}" for module in modules if module != KERNELS),
        *([f"    from {SWITCH} import enable_batch_invariant_mode"] if invariant else []),
        "except ImportError as error:",
        '    print(f"cannot run: {error}", file=sys.stderr)',
        "    sys.exit(2)",
        "",
        f'SHA256 = "{digest}"',
        f"STRIDES = {json.dumps(strides)}",
        f"SAME = {json.dumps(same or {})}",
        f"GAPS = {json.dumps(gaps or {})}",
        f"HANDLERS = {_handlers(small)!r}",
        f"GPU = {sorted(on_gpu)!r}",
        f"ROW_A, ROW_B, ROWS_A, ROWS_B = {small.row_a}, {small.row_b}, {len(small.a.rows)}, {len(small.b.rows)}",
        *_mode(programs),
        LOADER,
        *([KERNEL] if "triton" in spaces else []),
        *_side("a", small.a, poisoned),
        *_side("b", small.b, poisoned),
        ROW,
        *([ROWS_APART] if _apart(programs) else [ROWS]),
        MAIN,
    ]
    return "\n".join(lines) + "\n"


def _side(side: str, program: Program, poisoned: bool) -> list[str]:
    lines = ["", "", f"def side_{side}(t):", *(f"    {line}" for line in statements(program.notes))]
    lines += [f'    {name} = t["{side}.{name}"]' for name in program.values]
    for op in program.ops:
        if op.name.startswith(LAUNCH):
            lines.append(f"    {_launch(op)}")
            continue
        arguments = [_text(a) for a in op.args] + [f"{k}={_text(v)}" for k, v in op.kwargs.items()]
        call = f"torch.ops.{op.name}({', '.join(arguments)})"
        names = [n or "_" for n in op.outs]
        if not names or names == ["_"]:
            lines.append(f"    {call}")
        else:
            lines.append(f"    {', '.join(names)}{',' if _many(op) else ''} = {call}")
        if poisoned and op.name.split(".")[1] in FRESH:
            lines += [f"    {name}.is_floating_point() and {name}.fill_(float('nan'))" for name in names if name != "_"]
    return [*lines, f"    return {program.output}"]


def _environment(programs: tuple[Program, Program]) -> list[str]:
    """What kernels look up in the environment, once in a process: set before anything is loaded."""
    a, b = (environment_of(program.notes) for program in programs)
    if not _apart(programs):
        return [f"ENVIRONMENT = {(a | b)!r}", *_SET, ""]
    return [
        "# The two sides ran in unlike environments: each has a process of its own.",
        f"ENVIRONMENTS = { ({'a': a, 'b': b})!r}",
        "SIDE = sys.argv[1] if len(sys.argv) > 1 else None",
        "ENVIRONMENT = ENVIRONMENTS.get(SIDE, {})",
        *_SET,
        "",
    ]


_SET = (
    "for name, value in ENVIRONMENT.items():",
    "    os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)",
)


def _apart(programs: tuple[Program, Program]) -> bool:
    """Whether one process cannot run both."""
    a, b = (program.notes for program in programs)
    modes = {bool(notes.get("batch_invariant")) for notes in (a, b) if notes.get("gpu")}
    return bool(unlike(a, b, "environment")) or len(modes) > 1


def _mode(programs: tuple[Program, Program]) -> list[str]:
    """vLLM's batch-invariant mode: for the process, or for that of one side."""
    wanted = [side for side, program in zip("ab", programs, strict=True) if program.notes.get("batch_invariant")]
    if not wanted:
        return []
    return [f"if SIDE in {wanted!r}:", "    enable_batch_invariant_mode()"] if _apart(programs) else [_ENABLE]


_ENABLE = "enable_batch_invariant_mode()"


def _launch(op: Op) -> str:
    grid, positional = op.args
    arguments = [_argument(a) for a in positional] + [f"{k}={_argument(v)}" for k, v in op.kwargs.items()]
    return f"kernel({op.name.removeprefix(LAUNCH)!r})[{tuple(grid)!r}]({', '.join(arguments)})"


def _argument(value: Any) -> str:
    """Of a launch: Triton takes tuples where JSON has lists."""
    if isinstance(value, list):
        return f"({''.join(_argument(item) + ', ' for item in value)})"
    kind = next(iter(value)) if isinstance(value, dict) else ""
    if kind == "triton.dtype":
        return f'importlib.import_module("triton.language").dtype({value[kind]!r})'
    return f"kernel({value[kind]!r})" if kind == "triton.kernel" else _text(value)


def _handlers(small: Small) -> list[str]:
    sides = (("a", small.a), ("b", small.b))
    return sorted(f"{side}.{name}" for side, program in sides for name in program.notes.get("handlers", {}))


def _many(op: Any) -> bool:
    return len(op.outs) == 1 and op.name.split(".")[1] in ("split", "chunk", "unbind", "split_with_sizes")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        kind, text = next(iter(value.items()))
        if kind == "t":
            return str(text)
        if kind == "float":
            return f'float("{text}")'
        return f'torch.device("{text}")' if kind == "device" else f"torch.{text}"
    return repr(value)
