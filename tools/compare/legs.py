"""The two shapes of a comparison: legs of one step that must all be equal, and views of one reference."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import combinations
from typing import Final

from bitgate.store.records import Reason
from bitgate.tools.captures.format import Computation
from bitgate.tools.captures.read import Capture
from bitgate.tools.captures.rows import FileRows
from bitgate.tools.compare.pair import compare_pair
from bitgate.tools.compare.result import Comparison, PairResult, SelfTest
from bitgate.tools.compare.selftest import self_test
from bitgate.tools.reasons import reason, verdict_of

THREE_LEGS: Final = ("rollout", "recompute", "first_train_forward")
TRAIN_LEG: Final = "first_train_forward"


def compare_legs(legs: Mapping[str, Capture], *, required: Iterable[str] = THREE_LEGS) -> Comparison:
    """Compare every pair of legs: the same tokens, computed independently, must have the same logprob bits.

    A leg of `required` that is not there makes the result inconclusive (`leg_missing`); a leg without evidence of its
    own computation makes it invalid. For two legs of any kind pass their names as `required`.
    """
    reasons: list[Reason] = [
        reason("leg_missing", f"no capture for leg {name}; given: {', '.join(sorted(legs)) or 'none'}")
        for name in required
        if name not in legs
    ]
    reasons += [*evidence_reasons(legs), *role_reasons(legs)]
    pairs = {f"{a}/{b}": compare_pair(legs[a], legs[b]) for a, b in combinations(legs, 2)}
    return _comparison(pairs, reasons, _tested(legs))


def compare_views(
    reference: Capture, views: Mapping[str, Capture], *, partial: Collection[str] = frozenset()
) -> Comparison:
    """Compare captures of one side with a reference: other batch sizes, phases, layouts of the same tokens.

    A view must hold every masked row of the reference, otherwise the result is inconclusive (`partial_coverage`);
    those named in `partial` may hold fewer.
    """
    pairs = {name: compare_pair(reference, view, subset=True) for name, view in views.items()}
    every = {reference.name: reference, **views}
    # A difference stands without a record of how the two were computed; that they are equal proves nothing then.
    equal = not any(pair.different for pair in pairs.values())
    reasons: list[Reason] = [*(_unrecorded(every) if equal else ()), *_shared_reasons(every)]
    reasons += [
        reason("partial_coverage", f"{name}: {pair.compared} of {reference.masked} rows were compared")
        for name, pair in pairs.items()
        if pair.compared < reference.masked and name not in partial and pair.verdict != "invalid"
    ]
    coverage = {name: {"compared": pair.compared, "of": reference.masked} for name, pair in pairs.items()}
    return _comparison(pairs, reasons, _tested(every), coverage)


def role_reasons(legs: Mapping[str, Capture]) -> tuple[Reason, ...]:
    """A capture that calls itself another leg than the one it was handed in as. Roles of one's own are no leg."""
    return tuple(
        reason("role_differs", f"the capture handed in as {name} says that it is {leg.meta.role}")
        for name, leg in legs.items()
        if leg.meta.role in THREE_LEGS and name in THREE_LEGS and leg.meta.role != name
    )


def evidence_reasons(legs: Mapping[str, Capture]) -> tuple[Reason, ...]:
    """Whether each leg was computed, on its own, and the train leg in training."""
    trained = _not_training(TRAIN_LEG, legs[TRAIN_LEG]) if TRAIN_LEG in legs else ()
    return (*_unrecorded(legs), *trained, *_shared_reasons(legs))


def _unrecorded(captures: Mapping[str, Capture]) -> Iterable[Reason]:
    """A rank that was given no rows need not have computed."""
    for name, capture in captures.items():
        for meta in capture.metas:
            done = meta.computation
            if meta.rows.count and (done is None or done.passes == 0):
                what = "no computation record" if done is None else "no forward pass was made"
                yield reason("no_evidence_of_recompute", f"{name}: {what} in shard {meta.shard.index}")


def _not_training(name: str, leg: Capture) -> Iterable[Reason]:
    for meta in leg.metas:
        done = meta.computation
        if not meta.rows.count or done is None or done.passes == 0:
            continue
        if not (done.mode == "train" and done.grad and done.backward):
            yield reason(
                "not_the_train_forward",
                f"{name}: mode {done.mode}, gradients {'on' if done.grad else 'off'}, "
                f"backward {'seen' if done.backward else 'not seen'} in shard {meta.shard.index}",
            )


def _shared_reasons(captures: Mapping[str, Capture]) -> Iterable[Reason]:
    for (a, left), (b, right) in combinations(captures.items(), 2):
        shared = _shared(left, right)
        if shared:
            yield reason("no_evidence_of_recompute", f"{a} and {b} {shared}")


def _shared(a: Capture, b: Capture) -> str:
    """What two captures have in common that two computations cannot; empty when nothing."""
    if _files(a) & _files(b):
        return "are the same file"
    done_a, done_b = _computations(a), _computations(b)
    if {done.id for done in done_a} & {done.id for done in done_b}:
        return "record the same computation"
    if _buffers(done_a) & _buffers(done_b):
        return "took their logprobs from the same buffer: one was copied from the other"
    return ""


def _files(capture: Capture) -> set[tuple[int, int]]:
    rows = capture.rows
    return {(item.stamp.device, item.stamp.inode) for item in rows.layouts} if isinstance(rows, FileRows) else set()


def _computations(capture: Capture) -> list[Computation]:
    return [meta.computation for meta in capture.metas if meta.computation is not None]


def _buffers(computations: Iterable[Computation]) -> set[tuple[str, str, int]]:
    return {
        (done.host, done.process, buffer.serial) for done in computations for buffer in done.buffers if buffer.bytes
    }


def _tested(captures: Mapping[str, Capture]) -> SelfTest | None:
    listed = list(captures.values())
    return self_test(listed[0], listed[1]) if len(listed) > 1 else None


def _comparison(
    pairs: Mapping[str, PairResult],
    reasons: Iterable[Reason],
    tested: SelfTest | None,
    coverage: Mapping[str, object] | None = None,
) -> Comparison:
    every = [*reasons, *(item for pair in pairs.values() for item in pair.reasons)]
    if not pairs:
        every.append(reason("partial_coverage", "there was nothing to compare with"))
    if tested is not None and not tested.passed and verdict_of(every) != "invalid":
        missed = ", ".join(tested.missed) or "nothing could be planted"
        every.append(reason("self_test_failed", f"not found: {missed}"))
    if verdict_of(every) == "fail":
        every.append(reason("cause_unresolved", "logprobs alone say that and where rows differ, not why"))
    unique = tuple(dict.fromkeys(every))
    return Comparison(pairs, unique, tested, _summary(pairs, unique), coverage or {})


def _summary(pairs: Mapping[str, PairResult], reasons: tuple[Reason, ...]) -> str:
    verdict = verdict_of(reasons)
    if verdict == "pass":
        compared = sum(pair.compared for pair in pairs.values())
        return f"All {compared} rows compared in {len(pairs)} pairs have equal fp32 bits."
    if verdict == "fail":
        worst = max(pairs.items(), key=lambda item: item[1].different)
        first = worst[1].first
        place = f", first at sequence {first.sequence}, position {first.position}" if first else ""
        return f"{worst[1].different} of {worst[1].compared} rows differ in {worst[0]}{place}."
    deciding = next(item for item in reasons if verdict_of([item]) == verdict)
    return f"{'Not comparable' if verdict == 'invalid' else 'Not enough observed'}: {deciding.detail}."
