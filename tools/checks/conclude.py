"""From what a check ran to its finding: coverage of axes, the live canary, figures small enough to answer with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from bitgate.store.records import Coverage, Grade, Reason
from bitgate.tools.checks.execute import Executed
from bitgate.tools.checks.plan import CheckPlan, View
from bitgate.tools.compare.result import Comparison, PairResult, plain
from bitgate.tools.reasons import next_step, reason, verdict_of
from bitgate.tools.runs.results import JobResult

PASS_NEXT = "Submit this evidence to its gate, or go on with the next check."
VIEWS_IN_FIGURES = 40


@dataclass(frozen=True)
class AxisReport:
    coverage: Coverage
    reasons: tuple[Reason, ...]


def axis_report(plan: CheckPlan, executed: Executed) -> AxisReport:
    """Which of the declared axes were exercised, as shown by what the steps report, and why others were not."""
    missing = dict(plan.unreachable) | executed.failed
    exercised: list[str] = []
    for axis in plan.axes:
        if axis in plan.not_applicable or axis in missing:
            continue
        short = [why for view in plan.views if axis in view.axes and (why := unproven(view, executed))]
        if short or not any(axis in view.axes for view in plan.views):
            missing[axis] = short[0] if short else "no part of the check exercises it"
        else:
            exercised.append(axis)
    reasons = tuple(reason("axis_not_exercised", f"{axis}: {why}") for axis, why in sorted(missing.items()))
    return AxisReport(
        Coverage(exercised=tuple(exercised), not_applicable=dict(plan.not_applicable), missing=missing), reasons
    )


def unproven(view: View, executed: Executed) -> str | None:
    """Why a view did not exercise its axis; None when it did."""
    if not executed.captures(view.step):
        return f"{view.label}: nothing was captured"
    if view.proof is None:
        return None
    seen = executed.info(view.proof.step or view.step).get(view.proof.key)
    if isinstance(seen, int | float) and seen >= view.proof.least:
        return None
    return f"{view.label}: {view.proof.otherwise} ({view.proof.key} = {seen})"


@dataclass(frozen=True)
class CanaryReport:
    record: dict[str, JsonValue]
    reasons: tuple[Reason, ...]


def canary_report(results: Mapping[str, JobResult]) -> CanaryReport:
    """The live canary of each side: ulps in one weight must have changed logprobs, and undoing it restored them."""
    record: dict[str, JsonValue] = {}
    reasons: list[Reason] = []
    for side, result in results.items():
        seen = [rank.steps["canary"].info for rank in result.ranks if "canary" in rank.steps]
        if not seen:
            continue
        changed, unrestored = (sum(_count(info, key) for info in seen) for key in ("changed", "not_restored"))
        shown = ("weight", "index", "before", "after", "ulps")
        record[side] = {"changed": changed, "not_restored": unrestored, **{k: seen[0].get(k) for k in shown}}
        if changed == 0:
            said = f"{side}: {seen[0].get('ulps', 1)} ulps in {seen[0].get('weight')} changed no logprob"
            reasons.append(reason("self_test_failed", said))
        if unrestored:
            reasons.append(reason("self_test_failed", f"{side}: {unrestored} rows differ after the canary was undone"))
    return CanaryReport(record, tuple(reasons))


def _count(info: Mapping[str, JsonValue], key: str) -> int:
    value = info.get(key)
    return value if isinstance(value, int) else 0


def grade_of(results: Iterable[JobResult]) -> Grade:
    """`observed` when every step of every rank ran under bitgate's eyes; nothing run at all is `attested`."""
    grades = {s.info.get("grade", "observed") for r in results for rank in r.ranks for s in rank.steps.values()}
    return "observed" if grades == {"observed"} else "attested"


def joined(comparisons: Sequence[Comparison], extra: Iterable[Reason]) -> Comparison:
    """One comparison of several that share a verdict, with reasons of the run itself."""
    pairs = {label: pair for c in comparisons for label, pair in c.pairs.items()}
    reasons = tuple(dict.fromkeys([item for c in comparisons for item in c.reasons] + list(extra)))
    coverage = {label: seen for c in comparisons for label, seen in c.coverage.items()}
    # One stands for all: the first that missed something, so that no record says less than the verdict.
    tests = sorted((c.self_test for c in comparisons if c.self_test is not None), key=lambda test: test.passed)
    return Comparison(pairs, reasons, tests[0] if tests else None, summary_of(pairs, reasons), coverage)


def summary_of(pairs: Mapping[str, PairResult], reasons: Sequence[Reason]) -> str:
    """One sentence: the verdict's figure and where it is worst."""
    verdict = verdict_of(reasons)
    compared, different = (sum(getattr(p, name) for p in pairs.values()) for name in ("compared", "different"))
    differing = {label: pair for label, pair in pairs.items() if pair.different}
    if verdict == "pass":
        return f"Equal to the last bit: {compared} rows over {len(pairs)} comparisons, 0 different."
    if verdict == "fail" and differing:
        worst, pair = max(differing.items(), key=lambda item: item[1].different / max(item[1].compared, 1))
        return (
            f"{different} of {compared} rows differ in {len(differing)} of {len(pairs)} comparisons; "
            f"worst is '{worst}': {pair.different} of {pair.compared}{_largest(pair)}."
        )
    deciding = [item for item in reasons if verdict_of([item]) == verdict]
    more = f" (and {len(deciding) - 1} more)" if len(deciding) > 1 else ""
    also = f" {different} rows differ." if different else ""
    return f"{'Not comparable' if verdict == 'invalid' else 'Not enough observed'}: {deciding[0].detail}{more}.{also}"


def _largest(pair: PairResult) -> str:
    if pair.statistics is None:
        return ""
    return f", largest difference {pair.statistics.logprob_difference.max:.3g} ({pair.statistics.ulp_max} ulp)"


def figures_of(comparison: Comparison) -> dict[str, JsonValue]:
    """Totals, a line a comparison, and the whole of the worst; the rest is in the artifact `comparison.json`."""
    pairs = comparison.pairs
    lines: dict[str, JsonValue] = {
        label: {
            "compared": p.compared,
            "different": p.different,
            "max_ulp": p.statistics.ulp_max if p.statistics else None,
        }
        for label, p in sorted(pairs.items(), key=lambda item: -item[1].different)[:VIEWS_IN_FIGURES]
    }
    made: dict[str, JsonValue] = {
        "rows_compared": sum(p.compared for p in pairs.values()),
        "rows_different": sum(p.different for p in pairs.values()),
        "comparisons": lines,
    }
    if len(pairs) > VIEWS_IN_FIGURES:
        made["comparisons_cut"] = len(pairs) - VIEWS_IN_FIGURES
    if pairs:
        worst, pair = max(pairs.items(), key=lambda item: item[1].different)
        made["worst"] = {"comparison": worst, **pair.figures()}
    return made


def next_of(comparison: Comparison) -> str:
    return next_step(comparison.reasons) or PASS_NEXT


def whole(comparison: Comparison) -> JsonValue:
    """Everything, for the artifact."""
    reasons = [item.model_dump() for item in comparison.reasons]
    return plain(
        {"summary": comparison.summary, "verdict": comparison.verdict, "reasons": reasons, **comparison.figures()}
    )


def with_unreadable_weights(comparison: Comparison, unreadable: Mapping[str, str]) -> Comparison:
    """Where an engine's weights could not all be read back, unequal digests say nothing: inconclusive, not invalid."""
    if not unreadable:
        return comparison
    kept = tuple(item for item in comparison.reasons if item.code != "weights_differ")
    added = tuple(reason("weights_unreadable", f"{side}: {why}") for side, why in sorted(unreadable.items()))
    return replace(comparison, reasons=kept + added, summary=summary_of(comparison.pairs, kept + added))
