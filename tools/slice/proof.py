"""Judge the proofs of a slice: digests, load reports, window equivalence. Pure but for `available_memory`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from bitgate.store.records import Reason
from bitgate.tools.reasons import reason
from bitgate.tools.slice.census import Census, place
from bitgate.tools.slice.checkpoint import Checkpoint
from bitgate.tools.slice.cut import CutResult
from bitgate.tools.slice.family import LAYER, Model
from bitgate.tools.slice.layout import Layout
from bitgate.tools.slice.plan import Plan
from bitgate.tools.slice.quant.precision import cpu_can_compute

Proof = Literal["transformers", "vllm", "window"]
PROOFS: Final[tuple[Proof, ...]] = ("transformers", "window", "vllm")
SHARE_OF_MEMORY: Final = 0.6
MIN_TOKENS, MAX_SPAN = 24, 256
Report = Mapping[str, Any]


def job_options(
    checkpoint: Checkpoint, model: Model, plan: Plan, layout: Layout, proofs: Sequence[Proof], memory: int
) -> dict[str, Any]:
    """What the worker is told, see worker/slicing."""
    needs = model.family.needs(model.text, list(model.kinds))
    return {
        "proofs": list(proofs),
        "source": str(checkpoint.root),
        "kept": list(plan.kept),
        "total": model.total,
        "injections": list(plan.injections),
        "needs": {str(layer): list(sources) for layer, sources in needs.items()},
        "layer_bytes": layer_bytes(checkpoint, model),
        "memory_bytes": memory,
        "size": layout.size,
        "vocab_size": vocabulary(model),
        "mtp_prefixes": mtp_prefixes(model, layout),
        "tokens": token_count(model),
    }


def vocabulary(model: Model) -> int:
    found = (part.get("vocab_size") for part in (model.text, model.config))
    return next((size for size in found if type(size) is int and size > 0), 1000)


def spans(model: Model) -> dict[str, int]:
    """Lengths of the configuration at which layers begin to compute otherwise, in tokens."""
    names = ("sliding_window", "attention_chunk_size", "index_topk", "chunk_size", "mamba_chunk_size", "block_size")
    found = {name: model.text.get(name) for name in names}
    rates = model.text.get("compress_ratios") or model.text.get("compress_rates") or ()
    rates = list(rates.values()) if isinstance(rates, dict) else rates if isinstance(rates, list) else ()
    found["compress_ratios"] = max((rate for rate in rates if type(rate) is int), default=None)
    return {name: value for name, value in found.items() if type(value) is int and value > 0}


def token_count(model: Model) -> int:
    """Long enough to pass every such length that a CPU can afford."""
    return max([MIN_TOKENS, *(value + 17 for value in spans(model).values() if value <= MAX_SPAN)])


def layer_bytes(checkpoint: Checkpoint, model: Model) -> list[int]:
    sizes = [0] * model.total
    for name, entry in checkpoint.tensors.items():
        where = place(model, name)
        if where.part == "layer" and where.layer is not None:
            sizes[where.layer] += entry.size
    return sizes


def mtp_prefixes(model: Model, layout: Layout) -> list[str]:
    """Where the MTP blocks lie in the slice: engines without MTP do not build them."""
    found = {new for old, new in layout.mapping.items() if place(model, old).part == "mtp"}
    return sorted({_prefix(name) for name in found})


def _prefix(name: str) -> str:
    layer = LAYER.fullmatch(name)
    return f"{layer['head']}layers.{layer['layer']}." if layer else re.sub(r"(.*?mtp\.).*", r"\1", name)


def wanted_proofs(asked: Sequence[Proof], census: Census) -> tuple[tuple[Proof, ...], str]:
    """The proofs to run, and why window equivalence is not among them (empty when it is, or was not asked)."""
    if "window" not in asked or cpu_can_compute(census.precisions):
        return tuple(asked), ""
    formats = ", ".join(sorted(item for item in census.precisions if not cpu_can_compute({item})))
    return tuple(item for item in asked if item != "window"), f"a CPU has no kernel for {formats}"


def judge(
    census: Census, plan: Plan, result: CutResult, reports: Mapping[str, Report], skipped_window: str
) -> tuple[Reason, ...]:
    """Every reason why the slice is not proved; none means pass."""
    found = [
        *_bytes(result),
        *_names(census),
        *_cover(plan),
        *_loads(reports),
        *_window(reports.get("window"), skipped_window),
    ]
    return tuple(found)


def _bytes(result: CutResult) -> list[Reason]:
    if not result.different:
        return []
    first = result.different[0]
    return [
        reason(
            "slice_bytes_differ",
            f"{len(result.different)} of {len(result.tensors)} tensors, first {first.name}: "
            f"{first.copy_digest[:16]}… instead of {first.source_digest[:16]}…",
        )
    ]


def _names(census: Census) -> list[Reason]:
    unknown = (*census.unknown, *census.unknown_keys)
    return [reason("slice_names_unknown", f"{len(unknown)}: {', '.join(unknown[:8])}")] if unknown else []


def _cover(plan: Plan) -> list[Reason]:
    missed = [*plan.classes_missed, *(f"{left} -> {right}" for left, right in plan.pairs_missed)]
    return [reason("slice_not_covering", f"not in the slice: {'; '.join(missed[:8])}")] if missed else []


def _loads(reports: Mapping[str, Report]) -> list[Reason]:
    found: list[Reason] = []
    for engine in ("transformers", "vllm"):
        report = reports.get(engine, {})
        wrong = {key: report[key] for key in ("missing", "unexpected", "mismatched", "errors") if report.get(key)}
        if wrong:
            text = "; ".join(f"{key} {', '.join(map(str, names[:3]))}" for key, names in wrong.items())
            found.append(reason("slice_load_differs", f"{engine}: {text}"))
    ran = [
        name for name in ("transformers", "vllm") if reports.get(name, {}).get("mode") in ("loaded", "names and shapes")
    ]
    found += [
        reason("slice_not_proved", f"{name}: the load report failed: {reports[name].get('why')}")
        for name in ("transformers", "vllm")
        if ran and reports.get(name, {}).get("mode") == "failed"
    ]
    if not ran:
        why = "; ".join(f"{name}: {reports[name].get('why')}" for name in ("transformers", "vllm") if name in reports)
        found.append(
            reason("slice_not_proved", f"no load report: {why or 'none was asked for, or no side has an interpreter'}")
        )
    return found


def _window(report: Report | None, skipped: str) -> list[Reason]:
    if report is None:
        return (
            [] if skipped else [reason("slice_not_proved", "window equivalence was not asked for or could not be run")]
        )
    if "equal" not in report:
        return [reason("slice_not_proved", f"window equivalence: {report.get('why', 'no result')}")]
    if not report["self_test"]["seen"]:
        return [reason("self_test_failed", f"window equivalence did not see {report['self_test']['planted']}")]
    if not report["equal"]:
        first = next(row for row in report["layers"] if not row["equal"])
        return [
            reason(
                "slice_window_differs",
                f"layer {first['new']} (layer {first['old']} of the full model): {first['different']} elements differ",
            )
        ]
    return (
        [] if report["finite"] else [reason("slice_not_proved", "window equivalence: the hidden states are not finite")]
    )


def available_memory() -> int:
    """Bytes that the proofs may use: a share of what the kernel says is available."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    return int(int(found[1]) * 1024 * SHARE_OF_MEMORY) if found else 4 << 30
