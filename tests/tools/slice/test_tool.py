"""The tool as a caller has it: requests refused, a census, a whole run with its proofs, and a cancelled one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from checkpoints import names, write
from pydantic import ValidationError

from bitgate.store import Store
from bitgate.store.records import Evidence, RegisteredModel, Run
from bitgate.tools.config.project import Project
from bitgate.tools.errors import RequestError
from bitgate.tools.registry import TOOLS
from bitgate.tools.runs.control import cancel_run, start_run, wait_run
from bitgate.tools.slice.cut import PARTIAL
from bitgate.tools.slice_model import SliceRequest, plan


def project_of(root: Path, model: Path, python: str | None = None) -> Project:
    side = (
        f'[side.rollout]\nengine = "vllm"\npython = "{python}"\nenv = {{ OMP_NUM_THREADS = "1" }}\n' if python else ""
    )
    text = f'[model.full]\npath = "{model}"\n[policy]\ndisk_reserve = 0\n{side}'
    (root / "bitgate.toml").write_text(text, encoding="utf-8")
    return Project.load(root)


def run(project: Project, **request: Any) -> tuple[Run, Evidence | None]:
    async def to_end() -> Run:
        started = await start_run(project, "slice_model", SliceRequest(**request), actor="tester")
        return await wait_run(project, started.id, 400)

    ended = anyio.run(to_end)
    with Store.open(project.ledger) as store:
        return ended, store.get_evidence(ended.evidence_id) if ended.evidence_id else None


def evidence_of(project: Project, **request: Any) -> Evidence:
    ended, evidence = run(project, **request)
    assert evidence is not None, ended.error
    return evidence


def test_the_tool_is_registered_under_its_name() -> None:
    assert TOOLS.find("slice_model").request is SliceRequest


@pytest.mark.parametrize(
    "request_",
    [
        {"name": "../out"},
        {"name": ""},
        {"name": "a/b"},
        {"layers": []},
        {"layers": [-1]},
        {"layers": "0,x"},
        {"layers": ""},
        {"max_layers": 0},
        {"odd": 1},
    ],
)
def test_requests_that_cannot_be_are_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SliceRequest(**request_)


@pytest.mark.parametrize(
    ("given", "layers"), [("0,3,9", [0, 3, 9]), (3, [3]), ([3, 1], [3, 1]), ("4", [4]), ("0, 2", [0, 2])]
)
def test_layers_may_be_written_as_on_a_command_line(given: Any, layers: list[int]) -> None:
    assert SliceRequest(layers=given).layers == layers


def test_proofs_may_be_written_as_on_a_command_line() -> None:
    assert SliceRequest(proofs="window,transformers").proofs == ["window", "transformers"]  # type: ignore[arg-type]


def test_a_default_name_that_is_too_long_is_refused_before_a_run_exists(tmp_path: Path) -> None:
    text = f'[model.{"m" * 60}]\npath = "{write(tmp_path / "model")}"\n'
    (tmp_path / "bitgate.toml").write_text(text, encoding="utf-8")
    project = Project.load(tmp_path)
    with pytest.raises(RequestError, match="default is too long"):
        plan(project, SliceRequest())
    plan(project, SliceRequest(name="short"))


def test_names_that_are_taken_are_refused_before_a_run_exists(tmp_path: Path) -> None:
    project = project_of(tmp_path, write(tmp_path / "model"))
    with pytest.raises(RequestError, match="no configured model"):
        plan(project, SliceRequest(name="full"))
    (project.state / "models" / "mine").mkdir(parents=True)
    with pytest.raises(RequestError, match="not taken"):
        plan(project, SliceRequest(name="mine"))
    with pytest.raises(RequestError, match="nowhere"):
        plan(project, SliceRequest(side="nowhere"))
    assert not project.ledger.exists()


def test_a_model_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is not one"):
        plan(project_of(tmp_path, tmp_path / "none"), SliceRequest())


def test_a_census_is_a_table_and_writes_no_slice(tmp_path: Path) -> None:
    project = project_of(tmp_path, write(tmp_path / "model"))
    found = evidence_of(project, plan_only=True)
    assert (found.verdict, found.check, found.grade) == ("pass", "census", "observed")
    table = str(found.figures["table"])
    assert "attention:full_attention" in table and "dense_linear" in table and "vocabulary" in table
    assert [ref.name for ref in found.artifacts] == ["census.txt", "census.json"]
    assert found.models["full"].slice_of is None
    assert not (project.state / "models").exists()


def test_a_refused_model_ends_in_a_verdict_with_its_reason(tmp_path: Path) -> None:
    project = project_of(tmp_path, write(tmp_path / "model", model_type="gpt_neo"))
    found = evidence_of(project)
    assert (found.verdict, found.check, [r.code for r in found.reasons]) == (
        "inconclusive",
        "cut",
        ["slice_family_unknown"],
    )


def test_without_an_interpreter_the_bytes_are_proved_and_the_rest_is_not(tmp_path: Path) -> None:
    project = project_of(tmp_path, write(tmp_path / "model"))
    found = evidence_of(project, layers=[1, 4])
    assert found.verdict == "inconclusive"
    assert {reason.code for reason in found.reasons} == {"slice_not_proved", "slice_not_covering"}
    assert (found.figures["tensors_different"], found.figures["plan"]["by_user"]) == (0, True)  # type: ignore[index,call-overload]
    with Store.open(project.ledger) as store:
        model = store.get_model("full-slice")
    assert isinstance(model, RegisteredModel)
    assert (model.slice_of, model.layers) == ("full", (1, 4))
    assert model.source_layout == found.figures["source_layout"]
    assert project.model("full-slice").path == Path(model.path)


def test_layers_that_the_model_does_not_have_end_the_run_and_leave_nothing(tmp_path: Path) -> None:
    project = project_of(tmp_path, write(tmp_path / "model"))
    ended, _ = run(project, layers=[6])
    assert (ended.state, ended.error_code) == ("failed", "bad_request")
    assert "from 0 to 5" in str(ended.error)


def test_a_cancelled_cut_leaves_nothing_behind(tmp_path: Path) -> None:
    root = write(tmp_path / "model", dict.fromkeys(names(), bytes(64)))
    sparse(root, 40 << 20)
    project = project_of(tmp_path, root)

    async def cancelled() -> Run:
        started = await start_run(project, "slice_model", SliceRequest(layers=list(range(6))), actor="tester")
        moving = anyio.Event()

        async def look(_: float, __: float | None, message: str) -> None:
            if " bytes, " in message:
                moving.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_run, project, started.id, 100, look)
            await moving.wait()
            written = list((project.state / "models").glob(f"{PARTIAL}*"))
            ended = await cancel_run(project, started.id)
        assert written
        return ended

    ended = anyio.run(cancelled)
    assert ended.state == "cancelled"
    assert os.listdir(project.state / "models") == []


def sparse(root: Path, size: int) -> None:
    """Make every tensor large without writing its bytes."""
    for path in root.glob("*.safetensors"):
        data = path.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        for number, entry in enumerate(header.values()):
            entry["shape"], entry["data_offsets"] = [size], [number * size, (number + 1) * size]
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        os.truncate(path, 8 + len(text) + size * len(header))


@pytest.mark.engine
def test_a_whole_run_passes_with_every_proof(tiny: Path, tmp_path: Path, engine_python: str) -> None:
    project = project_of(tmp_path, tiny / "qwen3_next_mtp", engine_python)
    found = evidence_of(project, name="small")
    assert found.verdict == "pass", found.reasons
    assert found.self_test["seen"] is True
    figures: dict[str, Any] = dict(found.figures)
    assert figures["plan"]["kept"] == [1, 2, 3, 4]
    assert figures["loads"]["transformers"]["mode"] == "loaded"
    assert (figures["loads"]["vllm"]["mode"], figures["loads"]["vllm"]["missing"]) == ("loaded", [])
    assert figures["window"]["equal"] and figures["window"]["mode"] == "full model in memory"
    assert any("depth" in line for line in figures["untested"])
    assert any("embedding -> layer 1" in line for line in figures["untested"])


@pytest.mark.engine
def test_a_format_without_a_cpu_kernel_is_proved_by_bytes_and_says_so(
    tiny: Path, tmp_path: Path, engine_python: str
) -> None:
    project = project_of(tmp_path, tiny / "gpt_oss_mxfp4", engine_python)
    found = evidence_of(project, proofs=["transformers", "window"])
    assert found.verdict == "pass", found.reasons
    assert found.figures["window"] == {"mode": "not run", "why": "a CPU has no kernel for mxfp4"}
    assert "was not run: a CPU has no kernel for mxfp4" in found.summary
    assert "equality of the computation" in str(found.figures["untested"])
