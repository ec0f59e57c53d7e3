"""The class of a difference, by experiments on the two programs. A label needs an experiment that shows it; what no
experiment shows is `unknown`.

Order matters: what makes a comparison meaningless (nondeterminism, garbage, other weights, other integers) comes before
what explains a difference exactly (another shape of the same kernel, one cast), and that before what bounds it (another
formula, another order).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from . import oracle
from .products import PRODUCTS, SUMS, order_of
from .program import Op, Program, materialised
from .program import call as run_op
from .rows import Shared, differing, rows_of, same_bits, same_values
from .toggles import explaining, operators
from .wide import SAME, apart, computed_in

FRESH = ("empty", "new_empty", "empty_like", "empty_strided")
REPEATS = 20
REPEAT_SECONDS = 5.0
FAR = 16.0
"""Times the rounding bound: a result further than this from the formula was not made by it."""


@dataclass
class Report:
    label: str = "unknown"
    mechanism: str = ""
    faulty: str | None = None
    leaf: dict[str, Any] = field(default_factory=dict)
    experiments: list[dict[str, str]] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    rounding: bool | None = None
    """In float64 both programs compute the same function; None where that could not be tried."""

    def tried(self, name: str, result: str) -> None:
        self.experiments.append({"experiment": name, "result": result[:300]})

    def is_(self, label: str, mechanism: str, faulty: str | None = None) -> bool:
        self.label, self.mechanism, self.faulty = label, mechanism[:400], faulty
        return True

    def excludes(self, label: str) -> bool:
        self.excluded.append(label)
        return False


@dataclass(frozen=True)
class Case:
    """Two programs of the same region; `same_side`: one engine under two conditions."""

    kind: str
    a: Program
    b: Program
    shared: Shared
    same_side: bool
    names: tuple[str, str] = ("a", "b")

    def outputs(self) -> tuple[Tensor, Tensor]:
        """The common rows of both outputs, as the engines had them."""
        a, b = (p.expected.reshape(p.expected.shape[0], -1) for p in (self.a, self.b))
        return a[self.shared.a], b[self.shared.b]

    def inputs(self, side: int) -> dict[str, Tensor]:
        program, rows = ((self.a, self.shared.a), (self.b, self.shared.b))[side]
        return {n: t.reshape(t.shape[0], -1)[rows] for n, t in program.canonical.items()}


def classify(case: Case) -> Report:
    report = Report()
    if not _replays(case, report):
        return report
    _leaf(case, report)
    for step in (
        _nondeterministic,
        _uninitialised,
        _inputs_unlike,
        _sign_only,
        _routing,
        _weights,
        _batch,
        _precision,
        _post_processing,
        _function,
        _semantic,
        _order,
    ):
        if step(case, report):
            return report
    return report


def _replays(case: Case, report: Report) -> bool:
    """Each program must give its own engine's bits; one that does not is incomplete, and shows nothing."""
    good = True
    for name, program in zip(case.names, (case.a, case.b), strict=True):
        result = _attempt(program)
        own = torch.tensor([n for n, key in enumerate(program.rows) if key[0] >= 0])
        canonical = rows_of(result, len(program.rows)) if isinstance(result, Tensor) else None
        wanted = program.expected.reshape(program.expected.shape[0], -1)
        same = canonical is not None and same_bits(canonical[own], wanted[own])
        report.tried(
            f"{name}: its own inputs through its own operators",
            "the engine's own bits"
            if same
            else f"not the engine's bits{'' if canonical is not None else ': ' + str(result)[:120]}",
        )
        if not same and canonical is not None and not same_bits(result, program.result()):
            report.tried(f"{name}: the same inputs twice", "other bits: it is not deterministic")
            return not _varying(name, program, "the same operators on the same inputs gave other bits", report)
        if not same and _reads_fresh(program):
            report.tried(f"{name}: fresh memory filled with zeros, then with NaN", "other bits")
            return not report.is_("uninitialised_read", "the output depends on memory that nobody wrote", name)
        good &= same
    if good:
        _cross(case, report)
    return good


def _attempt(program: Program) -> Any:
    try:
        return program.result()
    except (RuntimeError, ImportError, AttributeError, KeyError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def _cross(case: Case, report: Report) -> None:
    """A's captured inputs through B's operators, and the other way: the output must be the operator's."""
    for (name, giver, from_rows), (other, taker, to_rows) in (
        ((case.names[0], case.a, case.shared.a), (case.names[1], case.b, case.shared.b)),
        ((case.names[1], case.b, case.shared.b), (case.names[0], case.a, case.shared.a)),
    ):
        overrides = _transplanted(giver, from_rows, taker, to_rows)
        what = f"inputs of {name} through the operators of {other}"
        if overrides is None:
            report.tried(what, "not done: the two keep these inputs in layouts without a checked way over")
            continue
        result = rows_of(taker.result(overrides), len(taker.rows))
        wanted = taker.expected.reshape(taker.expected.shape[0], -1)[to_rows]
        same = result is not None and same_bits(result[to_rows], wanted)
        report.tried(what, f"{other}'s output" if same else f"another output than {other}'s")


def _transplanted(giver: Program, rows: Tensor, taker: Program, places: Tensor) -> dict[str, Tensor] | None:
    overrides: dict[str, Tensor] = {}
    for point, name in taker.inputs.items():
        value, given = taker.values[name], giver.canonical.get(point)
        flat = rows_of(value, len(taker.rows))
        if given is None or flat is None or value.dtype != given.dtype:
            return None
        width = given.reshape(given.shape[0], -1).shape[1]
        own = taker.canonical[point].reshape(taker.canonical[point].shape[0], -1)
        if flat.shape[1] != width or not same_bits(flat[places], own[places]):
            return None
        made = overrides.get(name, value).clone()
        view = made.reshape(flat.shape)
        view[places] = given.reshape(given.shape[0], -1)[rows]
        overrides[name] = view.reshape(value.shape)
    return overrides


def _leaf(case: Case, report: Report) -> None:
    """The operator inside the region: the first whose row differs although all before it agree."""
    a, b = operators(case.a), operators(case.b)
    names = [op.name for _, op in a], [op.name for _, op in b]
    report.leaf = {case.names[0]: _short(names[0]), case.names[1]: _short(names[1])}
    if [_plain(n) for n in names[0]] != [_plain(n) for n in names[1]]:
        return
    seen_a, seen_b = _row_values(case.a, case.shared.a), _row_values(case.b, case.shared.b)
    for (i, op), (j, _) in zip(a, b, strict=True):
        if i not in seen_a or j not in seen_b:
            continue
        rows = differing(seen_a[i], seen_b[j])
        if bool(rows.any()):
            report.leaf["first"] = op.name
            report.leaf["rows"] = f"{int(rows.sum())} of {len(rows)}"
            return


def _plain(name: str) -> str:
    """Casts are named by how they were reached (`to.dtype` above autograd, `_to_copy` below)."""
    return "cast" if name in ("aten.to.dtype", "aten._to_copy.default") else name


def _short(names: list[str]) -> list[str]:
    kept = list(dict.fromkeys(names))
    return kept if len(kept) <= 12 else [*kept[:11], f"… {len(kept) - 11} more"]


def _row_values(program: Program, rows: Tensor) -> dict[int, Tensor]:
    seen: dict[int, Tensor] = {}

    def hook(number: int, op: Op, env: dict[str, Any]) -> None:
        name = next((n for n in op.outs if n is not None), None) or next(iter(op.writes), None)
        value = rows_of(env.get(name), len(program.rows)) if name else None
        if value is not None:
            seen[number] = value[rows].clone()

    program.run(hook=hook)
    return seen


def _nondeterministic(case: Case, report: Report) -> bool:
    for name, program in zip(case.names, (case.a, case.b), strict=True):
        first, count, until = program.result(), 1, time.monotonic() + REPEAT_SECONDS
        while count < REPEATS and time.monotonic() < until:
            count += 1
            if not same_bits(first, program.result()):
                report.tried(f"{name}: the same inputs {count} times", "other bits: it is not deterministic")
                return _varying(name, program, f"run {count} of the same operators gave other bits", report)
        report.tried(f"{name}: the same inputs {count} times", "the same bits")
    return report.excludes("nondeterminism")


def _reads_fresh(program: Program) -> bool:
    if not any(op.name.split(".")[1] in FRESH for op in program.ops):
        return False
    try:
        return not same_bits(_poisoned(program, 0.0), _poisoned(program, float("nan")))
    except (RuntimeError, ImportError, KeyError, TypeError):
        return False


def _varying(name: str, program: Program, said: str, report: Report) -> bool:
    """What varies may vary because fresh memory does: filled with one value, it would not."""
    fresh = any(op.name.split(".")[1] in FRESH for op in program.ops)
    filled = [_poisoned(program, 0.0) for _ in range(4)] if fresh else []
    if filled and all(same_bits(filled[0], other) for other in filled[1:]):
        report.tried(f"{name}: fresh memory filled with zeros, four times", "the same bits each time")
        return report.is_("uninitialised_read", "the output depends on memory that nobody wrote", name)
    return report.is_("nondeterminism", said, name)


def _uninitialised(case: Case, report: Report) -> bool:
    for name, program, rows in ((case.names[0], case.a, case.shared.a), (case.names[1], case.b, case.shared.b)):
        plain = rows_of(program.result(), len(program.rows))
        for poison in (float("nan"), 1e30):
            result = rows_of(_poisoned(program, poison), len(program.rows))
            if plain is not None and result is not None and not same_bits(plain[rows], result[rows]):
                report.tried(f"{name}: fresh memory and padding rows filled with {poison}", "the output changes")
                return report.is_("uninitialised_read", "the output depends on memory that nobody wrote", name)
    report.tried("fresh memory and padding rows filled with NaN and with 1e30", "no output changes")
    return report.excludes("uninitialised_read")


def _poisoned(program: Program, poison: float) -> Any:
    nobody = [n for n, key in enumerate(program.rows) if key[0] < 0]
    overrides: dict[str, Tensor] = {}
    for name in program.inputs.values():
        value = program.values[name]
        if nobody and value.is_floating_point() and value.ndim == 2 and value.shape[0] == len(program.rows):
            made = value.clone()
            made[torch.tensor(nobody)] = poison
            overrides[name] = made
    env: dict[str, Any] = {n: materialised(n, program, overrides.get(n, v)) for n, v in program.values.items()}
    with torch.no_grad():
        for op in program.ops:
            run_op(op, env)
            if op.name.split(".")[1] in FRESH:
                for out in op.outs:
                    if out is not None and env[out].is_floating_point():
                        env[out].fill_(poison)
    return env[program.output]


def _inputs_unlike(case: Case, report: Report) -> bool:
    """Integers that the region reads (positions, lengths, tables of the same shape) must be the same."""
    ours, theirs = case.inputs(0), case.inputs(1)
    unlike = [n for n in ours if n in theirs and bool(differing(ours[n], theirs[n])[case.shared.target])]
    if unlike and all(not ours[n].is_floating_point() for n in unlike):
        return report.is_("layout_mask", f"{', '.join(unlike)} differ at this row")
    if unlike:
        report.tried("inputs at the row", f"{', '.join(unlike)} differ there")
        return False
    report.tried("inputs at the row, and the integers among them", "equal on both sides")
    return report.excludes("input_layout")


def _sign_only(case: Case, report: Report) -> bool:
    a, b = case.outputs()
    if a.dtype == b.dtype and same_values(a, b) and not same_bits(a, b):
        return report.is_("sign_or_payload", "equal as numbers: only the sign of zeros or the payload of NaNs differs")
    return report.excludes("sign_or_payload")


def _routing(case: Case, report: Report) -> bool:
    """Discrete choices from equal scores: a tie broken differently, or another order of the same set."""
    if case.kind != "topk":
        return False
    a, b = case.outputs()
    scores = next((t for n, t in case.inputs(0).items() if n.endswith("router_logits")), None)
    if a.is_floating_point() or scores is None:
        return False
    sets = bool((a.sort(dim=1).values == b.sort(dim=1).values).all())
    if sets:
        report.tried("the chosen experts as sets", "the same; only their order differs")
        return report.is_("index_order", "the same experts in another order")
    rows = (a.sort(dim=1).values != b.sort(dim=1).values).any(dim=1)
    ranked = scores[rows].to(torch.float64).sort(dim=1, descending=True).values
    margin = ranked[:, a.shape[1] - 1] - ranked[:, a.shape[1]]
    tie = margin == 0
    report.tried("margin between the last chosen and the first left out", f"largest {float(margin.max()):.3g}")
    if bool(tie.all()):
        return report.is_(
            "routing_tie", f"{int(rows.sum())} rows with exactly equal scores at the edge, broken differently"
        )
    return report.is_("semantic", f"equal scores with a margin up to {float(margin.max()):.3g}, but other experts")


def _weights(case: Case, report: Report) -> bool:
    """Constants of the two programs: equal bytes, or equal after a split or transpose that the bytes prove."""
    ours, theirs = _tables(case.a), _tables(case.b)
    proofs, unlike = [], []
    for tensor in ours:
        how = next((h for other in theirs if (h := _same_table(tensor, other))), None)
        if how:
            proofs.append(how)
        elif any(other.shape == tensor.shape for other in theirs):
            unlike.append(tensor)
    if unlike:
        tensor = unlike[0]
        other = next(t for t in theirs if t.shape == tensor.shape)
        return _weights_differ(case, report, tensor, other)
    if proofs:
        report.tried("bytes of the weights and tables", "; ".join(dict.fromkeys(proofs)))
        return report.excludes("weight_bytes")
    if ours or theirs:
        report.tried("bytes of the weights and tables", "held in forms without a checked way over")
    return False


def _weights_differ(case: Case, report: Report, a: Tensor, b: Tensor) -> bool:
    count = int((a != b).sum()) if a.dtype == b.dtype else a.numel()
    report.tried("bytes of the weights and tables", f"{list(a.shape)}: {count} of {a.numel()} values differ")
    for narrow in (torch.bfloat16, torch.float16):
        if a.dtype == b.dtype == torch.float32 and (
            torch.equal(a.to(narrow).float(), b) or torch.equal(b.to(narrow).float(), a)
        ):
            return report.is_("precision", f"a table of shape {list(a.shape)} was rounded to {narrow} on one side")
    if a.dtype == b.dtype and a.ndim == 2 and a.shape[0] == a.shape[1] and torch.equal(a, b.t()):
        return report.is_("semantic", f"a table of shape {list(a.shape)} is transposed on one side")
    return report.is_("weight_bytes", f"{count} of {a.numel()} values of a table of shape {list(a.shape)} differ")


def _tables(program: Program) -> list[Tensor]:
    given = set(program.inputs.values())
    rows = len(program.rows)
    return [
        v
        for n, v in program.values.items()
        if n not in given
        and v.is_floating_point()
        and v.ndim
        and v.numel() > 1
        and rows not in v.shape[:2]
        and v.ndim < 4
    ]


def _same_table(a: Tensor, b: Tensor) -> str | None:
    if a.dtype != b.dtype or a.ndim != b.ndim:
        return None
    if a.shape == b.shape and torch.equal(a, b):
        return f"{list(a.shape)} equal"
    if a.ndim == 2 and a.shape == b.t().shape and torch.equal(a, b.t()):
        return f"{list(a.shape)} equal to the transpose"
    if a.ndim == 2 and a.shape[1:] == b.shape[1:]:
        small, large = sorted((a, b), key=len)
        for start in torch.nonzero((large == small[0]).all(dim=1)).flatten().tolist():
            if torch.equal(large[start : start + len(small)], small):
                return f"{list(small.shape)} equal to rows {start}:{start + len(small)} of {list(large.shape)}"
    return None


def _batch(case: Case, report: Report) -> bool:
    """The same operators with the same weights and the same row: only the row's company is different."""
    a, b = operators(case.a), operators(case.b)
    same = [_plain(op.name) for _, op in a] == [_plain(op.name) for _, op in b]
    tables = all(any(_same_table(t, o) for o in _tables(case.b)) for t in _tables(case.a))
    if not (same and tables):
        if case.same_side:
            report.tried("operators of the two conditions", "other kernels are called")
            return report.is_(
                "batch_variance", "one side takes other kernels under the two conditions: " + _difference(a, b)
            )
        return False
    shapes = _shapes(case)
    if shapes[0] == shapes[1] and not _attention(case.a):
        report.tried("operators, weights and shapes", "all the same, and yet other bits")
        return False
    split = _split_toggled(case, report)
    if split:
        return report.is_("batch_variance", split)
    orders = [
        order_of(p, int(rows[case.shared.target])) for p, rows in ((case.a, case.shared.a), (case.b, case.shared.b))
    ]
    if orders[0] and orders[1]:
        _say_orders(case, report, orders)
        if orders[0]["order"] != orders[1]["order"]:
            rows = " and ".join(str(o["rows"]) for o in orders if o)
            return report.is_("batch_variance", f"{orders[0]['operator']} sums in another order for {rows} rows")
    if _cut_equal(case, report):
        return report.is_("batch_variance", "the row's bits change with the number of rows beside it")
    if case.same_side and "input_layout" in report.excluded and shapes[0] != shapes[1]:
        return report.is_(
            "batch_variance", f"{_first(report)} gives this row other bits in other company; how is not shown"
        )
    return False


def _first(report: Report) -> str:
    return str(report.leaf.get("first") or "a kernel of the region")


def _difference(a: list[tuple[int, Op]], b: list[tuple[int, Op]]) -> str:
    ours, theirs = {op.name for _, op in a}, {op.name for _, op in b}
    return f"{', '.join(sorted(ours - theirs)) or 'none'} against {', '.join(sorted(theirs - ours)) or 'none'}"


def _shapes(case: Case) -> list[list[list[int]]]:
    return [[list(p.values[n].shape) for n in p.inputs.values()] for p in (case.a, case.b)]


def _attention(program: Program) -> bool:
    return any("attention" in op.name for op in program.ops)


def _split_toggled(case: Case, report: Report) -> str | None:
    """vLLM's CPU attention: plan the work without splitting the keys, on both sides."""
    plans = [op for op in (*case.a.ops, *case.b.ops) if op.name == "_C.get_scheduler_metadata.default"]
    if not plans or not any(op.args[10] for op in plans):
        return None
    results = []
    for program, rows in ((case.a, case.shared.a), (case.b, case.shared.b)):
        ops = [
            Op(op.name, [*op.args[:10], False, *op.args[11:]], op.kwargs, op.outs, op.writes) if op in plans else op
            for op in program.ops
        ]
        changed = Program(
            ops, program.inputs, program.output, program.values, program.expected, program.rows, program.notes
        )
        result = rows_of(changed.result(), len(program.rows))
        if result is None:
            return None
        results.append(result[rows])
    equal = same_bits(*results)
    left, before = int(differing(*results).sum()), int(differing(*case.outputs()).sum())
    report.tried(
        "attention planned without splitting the keys, on both sides",
        "equal" if equal else f"{left} rows still differ, of {before} before",
    )
    return "attention splits the keys by the load (VLLM_CPU_ATTN_SPLIT_KV=0 makes it equal)" if equal else None


def _say_orders(case: Case, report: Report, orders: list[Any]) -> None:
    for name, order in zip(case.names, orders, strict=True):
        report.tried(
            f"{name}: accumulation order of {order['operator']} with {order['rows']} rows",
            f"fingerprint {order['order']} ({order['levels']} levels over {order['probes']} probes)",
        )


def _cut_equal(case: Case, report: Report) -> bool:
    """The larger program cut to the rows of the smaller one: if that gives the smaller one's bits, company matters."""
    from .shrink import with_rows

    small, large, places = (case.a, case.b, case.shared.b)
    wanted = case.outputs()[0]
    if len(case.a.rows) > len(case.b.rows):
        small, large, places, wanted = case.b, case.a, case.shared.a, case.outputs()[1]
    cut = with_rows(large, places.tolist())
    result = rows_of(_attempt(cut), len(cut.rows)) if cut is not None else None
    if result is None or len(small.rows) != len(places):
        return False
    equal = same_bits(result, wanted)
    report.tried("the larger batch cut to the rows of the smaller", "the smaller one's bits" if equal else "other bits")
    return equal


def _precision(case: Case, report: Report) -> bool:
    a, b = case.outputs()
    for name, program, rows, wanted in (
        (case.names[0], case.a, case.shared.a, b),
        (case.names[1], case.b, case.shared.b, a),
    ):
        found = explaining(program, wanted, rows)
        if found:
            report.tried(
                f"one cast of {name} changed at a time", f"{len(found)} single changes give the other side's bits"
            )
            return report.is_("precision", f"{found[0].said()} on {name} gives the other side's bits exactly")
        once = computed_in(program, torch.float32)
        if once is not None and same_bits(once[rows].to(wanted.dtype), wanted) and not _sums(program):
            report.tried(f"{name}: computed in float32 and rounded once", "the other side's bits")
            said = f"{name} rounds between its operators, the other side once at the end"
            return report.is_("precision", said)
    report.tried("one cast changed at a time, and all between left out, on either side", "none gives the other's bits")
    return report.excludes("precision (one cast)")


def _sums(program: Program) -> bool:
    """With a product or a sum inside, a wide run is another kernel too, and shows nothing about casts."""
    return any(op.name in (*PRODUCTS, *SUMS) for op in program.ops)


def _post_processing(case: Case, report: Report) -> bool:
    if case.kind != "logprob":
        return False
    from .heads import explained_logprobs

    logits = next((t for n, t in case.inputs(0).items() if n.endswith("logits")), None)
    if logits is None:
        return False
    said = explained_logprobs(logits, *case.outputs())
    report.tried("temperature, padded lanes and other transforms of the same logits", said or "none explains it")
    return report.is_("post_processing", said) if said else report.excludes("post_processing")


def _function(case: Case, report: Report) -> bool:
    """In float64 without casts: other values there mean another function, which rounding cannot explain."""
    wide = [computed_in(program, torch.float64) for program in (case.a, case.b)]
    if wide[0] is None or wide[1] is None:
        report.tried("both in float64 without casts", "not possible: a kernel that is not torch's own")
        return False
    far = apart(wide[0][case.shared.a], wide[1][case.shared.b])
    report.tried(
        "both in float64 without casts", f"{'the same function' if far < SAME else 'other functions'} ({far:.2g})"
    )
    report.rounding = far < SAME
    if report.rounding:
        return False
    # Stays only if nothing below finds the reason.
    report.mechanism = "even in float64 the two compute other functions; which of them is right is not known"
    return _transposed(case, report, wide[1][case.shared.b])


def _transposed(case: Case, report: Report, wanted: Tensor) -> bool:
    """A square table used the other way round explains it, if turning it makes them one function in float64."""
    given = set(case.a.inputs.values())
    for table, value in case.a.values.items():
        if table in given or value.ndim != 2 or value.shape[0] != value.shape[1] or not value.is_floating_point():
            continue
        turned = replace(case.a, values={**case.a.values, table: value.t().contiguous()})
        result = computed_in(turned, torch.float64)
        if result is not None and apart(result[case.shared.a], wanted) < SAME:
            report.tried(f"a table of shape {list(value.shape)} turned, in float64", "the same function")
            return report.is_("semantic", f"a table of shape {list(value.shape)} is transposed on one side")
    return False


def _semantic(case: Case, report: Report) -> bool:
    far: dict[str, float] = {}
    for side, (name, program) in enumerate(zip(case.names, (case.a, case.b), strict=True)):
        output = case.outputs()[side]
        found = oracle.truth(case.kind, program, case.inputs(side), output)
        if found is None or not output.is_floating_point():
            report.tried(f"{name}: against its formula in float64", "no formula is declared for this operator")
            return False
        far[name] = float(oracle.errors(output, found).max())
        report.tried(f"{name}: {found.formula} in float64", f"largest error {far[name]:.3g} times the rounding bound")
    wrong = [name for name, error in far.items() if error > FAR]
    if len(wrong) == 1:
        return report.is_(
            "semantic", f"{wrong[0]} is {far[wrong[0]]:.3g} times the rounding bound from the formula", wrong[0]
        )
    return report.excludes("semantic") if not wrong and report.rounding is not False else False


def _order(case: Case, report: Report) -> bool:
    """Another order of summation: both near the formula, and the fingerprints of the two kernels unlike."""
    if "semantic" not in report.excluded:
        return False
    steps: list[Callable[[], Any]] = [
        lambda: order_of(case.a, int(case.shared.a[case.shared.target])),
        lambda: order_of(case.b, int(case.shared.b[case.shared.target])),
    ]
    orders = [step() for step in steps]
    if not (orders[0] and orders[1]):
        report.tried("accumulation order", "no product or sum to fingerprint on one of the sides")
        return False
    _say_orders(case, report, orders)
    if orders[0]["order"] == orders[1]["order"]:
        return report.excludes("reduction_order (the probed order is the same)")
    kinds = f"{orders[0]['operator']} and {orders[1]['operator']}"
    return report.is_("reduction_order", f"{kinds} sum the same products in another order; both are within the bound")
