from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bitgate.store.records import Reason
from bitgate.tools.checks.conclude import axis_report, canary_report, grade_of, joined, with_unreadable_weights
from bitgate.tools.checks.execute import Executed, merged_info, side_record
from bitgate.tools.checks.plan import CheckPlan, PlannedJob, Proof, StepRef, View
from bitgate.tools.checks.run import workload_facts
from bitgate.tools.compare.result import Comparison
from bitgate.tools.config.model import GeneratorConfig, SideConfig, WorkloadConfig
from bitgate.tools.config.sides import resolve_side
from bitgate.tools.config.workloads import Workload
from bitgate.tools.runs.results import Description, JobResult, RankResult, StepResult

CHUNKED = View(
    "chunked prefill against decode",
    StepRef("deployed", "decode"),
    StepRef("chunked_prefill", "decode"),
    ("chunked_prefill",),
    Proof("prefill_chunks", 2, "no prompt was prefilled in more than one chunk"),
)


def result(*ranks: dict[str, Any], stable: tuple[dict[str, Any], ...] = ()) -> JobResult:
    """A job's result whose ranks report these step infos: `{step: info}`."""
    made = tuple(
        RankResult(
            rank=i,
            world_size=len(ranks),
            describe=Description(stable=stable[i] if stable else {}),
            steps={name: StepResult(capture=f"captures/{name}", info=info) for name, info in steps.items()},
        )
        for i, steps in enumerate(ranks)
    )
    return JobResult("rollout", Path("jobs/0"), made, 1.0)


def plan(*axes: str, **changes: Any) -> CheckPlan:
    return CheckPlan((), (PlannedJob("deployed", ()),), (CHUNKED,), axes, **changes)


def codes(reasons: tuple[Reason, ...]) -> list[str]:
    return [item.code for item in reasons]


def test_an_axis_counts_only_when_the_steps_info_proves_it() -> None:
    once = Executed({"chunked_prefill": result({"decode": {"prefill_chunks": 1}})})
    twice = Executed({"chunked_prefill": result({"decode": {"prefill_chunks": 2}})})
    assert codes(axis_report(plan("chunked_prefill"), once).reasons) == ["axis_not_exercised"]
    assert axis_report(plan("chunked_prefill"), twice).coverage.exercised == ("chunked_prefill",)
    assert axis_report(plan("chunked_prefill"), twice).reasons == ()


def test_an_eager_pass_does_not_certify_graphs() -> None:
    """vllm#28131: equal in eager mode, different under CUDA graphs."""
    report = axis_report(plan("graphs"), Executed({"deployed": result({"decode": {}})}))
    assert codes(report.reasons) == ["axis_not_exercised"]
    assert set(report.coverage.missing) == {"graphs"}


def test_graphs_count_only_when_the_deployed_decode_replayed_some() -> None:
    proof = Proof("graph_replays", 1, "the deployed decode replayed no graph", StepRef("deployed", "decode"))
    view = View("eager", StepRef("deployed", "decode"), StepRef("graphs", "decode"), ("graphs",), proof)
    graphs = CheckPlan((), (PlannedJob("deployed", ()),), (view,), ("graphs",))
    eager = result({"decode": {"graph_replays": 0}})
    for replays, expected in ((0, ["axis_not_exercised"]), (12, [])):
        deployed = result({"decode": {"graph_replays": replays}})
        report = axis_report(graphs, Executed({"deployed": deployed, "graphs": eager}))
        assert codes(report.reasons) == expected


def test_an_axis_that_does_not_exist_here_is_not_applicable_and_limits_nothing() -> None:
    report = axis_report(plan("graphs", not_applicable={"graphs": "no graphs on a CPU"}), Executed())
    assert report.reasons == ()
    assert report.coverage.not_applicable == {"graphs": "no graphs on a CPU"}


def test_an_axis_whose_engine_did_not_start_is_missing_with_its_reason() -> None:
    report = axis_report(plan("chunked_prefill"), Executed(failed={"chunked_prefill": "unsupported_option: no chunks"}))
    assert report.coverage.missing == {"chunked_prefill": "unsupported_option: no chunks"}


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"changed": 3, "not_restored": 0}, []),
        ({"changed": 0, "not_restored": 0}, ["self_test_failed"]),
        ({"changed": 3, "not_restored": 1}, ["self_test_failed"]),
    ],
)
def test_the_canary_must_change_logprobs_and_be_undone(info: dict[str, int], expected: list[str]) -> None:
    report = canary_report({"rollout": result({"canary": {"weight": "w", **info}})})
    assert codes(report.reasons) == expected
    assert report.record["rollout"]["changed"] == info["changed"]  # type: ignore[index,call-overload]


def test_one_attested_step_makes_the_evidence_attested() -> None:
    assert grade_of([result({"a": {"grade": "observed"}, "b": {"grade": "observed"}})]) == "observed"
    assert grade_of([result({"a": {"grade": "observed"}, "b": {"grade": "attested"}})]) == "attested"
    assert grade_of([]) == "attested"


def test_weights_that_could_not_be_read_back_make_unequal_digests_inconclusive_not_invalid() -> None:
    different = Comparison({}, (Reason(code="weights_differ", detail="a and b"),), None, "")
    assert with_unreadable_weights(different, {}).verdict == "invalid"
    assert with_unreadable_weights(different, {"rollout": "w: packed"}).verdict == "inconclusive"


def test_a_reason_of_the_run_decides_even_when_every_bit_is_equal() -> None:
    clean = Comparison({}, (), None, "equal")
    missing = Reason(code="axis_not_exercised", detail="graphs: no graph was replayed")
    assert joined([clean], [missing]).verdict == "inconclusive"
    assert "graphs" in joined([clean], [missing]).summary


def test_ranks_whose_stable_facts_differ_have_another_side_digest() -> None:
    side = resolve_side("rollout", SideConfig(engine="vllm", python="python3"), Path("/nowhere"))
    alike = side_record(side, (), result({}, {}, stable=({"v": 1}, {"v": 1})))
    apart = side_record(side, (), result({}, {}, stable=({"v": 1}, {"v": 2})))
    assert alike.digest != apart.digest
    assert apart.stable["ranks_that_differ"] == {"rank1": {"v": 2}}


def test_numbers_of_a_steps_info_are_summed_over_ranks() -> None:
    merged = merged_info([{"cached_tokens": 2, "mode": "x"}, {"cached_tokens": 3, "mode": "y"}])
    assert merged == {"cached_tokens": 5, "mode": "x"}


def test_evidence_says_which_tokens_its_workload_was() -> None:
    def workload(seed: int) -> Workload:
        return Workload("short", WorkloadConfig(generator=GeneratorConfig(seed=seed, count=3)), None)

    facts = workload_facts(workload(1))["workload"]
    assert isinstance(facts, dict) and (facts["name"], facts["sequences"]) == ("short", 3)
    assert workload_facts(workload(1)) == {"workload": facts} != workload_facts(workload(2))
    assert workload_facts(None) == {}
