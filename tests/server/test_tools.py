"""What clients see of the tools, over stdio and HTTP, against the real server process."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from bitgate.store.store import Store

pytestmark = pytest.mark.anyio


async def called(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """The structured answer, checked to be the same facts as the text and under 10 kB in all."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    assert json.loads(text(result)) == result.structured_content
    assert len(result.model_dump_json(by_alias=True, exclude_none=True)) < 10_000
    return result.structured_content


async def refused(client: Client, name: str, **arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    assert result.is_error
    return text(result)


def text(result: Any) -> str:
    [block] = result.content
    words: str = block.text
    return words


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_tools_are_listed_with_schemas_that_every_client_takes(connect_any: Any, mode: str) -> None:
    async with connect_any(mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}

    assert {"run_compare", "get_run", "cancel_run", "get_evidence"} <= set(tools)
    for tool in tools.values():
        assert 0 < len(tool.description.encode()) < 2048
        assert tool.input_schema["type"] == "object" and not {"anyOf", "oneOf", "allOf", "$ref"} & set(
            tool.input_schema
        )
        assert "$ref" not in json.dumps(tool.input_schema) and "$defs" not in tool.input_schema
        assert tool.output_schema["required"] == ["summary", "next"]
        assert all(field.get("description") for field in tool.input_schema["properties"].values()), tool.name
    assert tools["run_compare"].input_schema["properties"]["wait_s"]["maximum"] == 55.0
    assert tools["get_evidence"].annotations.read_only_hint and not tools["run_compare"].annotations.read_only_hint


async def test_a_run_that_ends_in_time_answers_with_its_verdict(connect_any: Any) -> None:
    async with connect_any() as client:
        answer = await called(client, "run_probe", verdict="fail", figures={"different": 3})
        whole = await called(client, "get_evidence", evidence_id=answer["evidence_id"])
        again = await called(client, "get_run", run_id=answer["run_id"])

    assert (answer["state"], answer["verdict"], answer["figures"]) == ("finished", "fail", {"different": 3})
    assert answer["reasons"] == [{"code": "logprobs_differ", "detail": "as told"}]
    assert whole["evidence"]["run_id"] == answer["run_id"] and whole["evidence"]["verdict"] == "fail"
    assert again == answer


async def test_a_run_that_takes_longer_is_waited_for_and_cancelled(connect_any: Any) -> None:
    async with connect_any() as client:
        answer = await called(client, "run_probe", seconds=300, steps=1000, wait_s=1)
        run_id = answer["run_id"]
        waited = answer
        while "progress" not in waited or waited["progress"]["total"] is None:
            waited = await called(client, "get_run", run_id=run_id, wait_s=0.5)
        ended = await called(client, "cancel_run", run_id=run_id)
        again = await called(client, "cancel_run", run_id=run_id)

    assert (answer["state"], answer["verdict"]) == ("running", None)
    assert answer["next"] == f"get_run(run_id='{run_id}', wait_s=50), or cancel_run(run_id='{run_id}')"
    assert waited["state"] == "running" and waited["progress"]["total"] == 1000
    assert ended["state"] == "cancelled" and ended["verdict"] is None and "evidence_id" not in ended
    assert again["state"] == "cancelled"


async def test_giving_up_a_wait_does_not_end_the_run(connect: Any, project: Path) -> None:
    async with connect() as client:
        with anyio.move_on_after(3) as given_up:
            await client.call_tool("run_probe", {"seconds": 6})
        with Store.open(project / ".bitgate" / "ledger.db") as store:
            [run] = store.running_runs()
        answer = await called(client, "get_run", run_id=run.id, wait_s=30)

    assert given_up.cancelled_caught and answer["verdict"] == "pass"


async def test_progress_reaches_the_client_at_most_five_times_a_second_and_increases(connect_any: Any) -> None:
    notes: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        notes.append((progress, total, message))

    async with connect_any() as client:
        started = time.monotonic()
        await client.call_tool("run_probe", {"seconds": 2, "steps": 300}, progress_callback=on_progress)
        seconds = time.monotonic() - started

    values = [value for value, _, _ in notes]
    assert 3 <= len(values) <= 5 * seconds + 1 and values == sorted(set(values))
    assert all(total in (None, 300) for _, total, _ in notes)


async def test_errors_say_what_to_change(connect_any: Any, project: Path) -> None:
    async with connect_any() as client:
        unknown = await refused(client, "run_probe", side="rolout")
        typo = await refused(client, "run_probe", verdct="pass")
        value = await refused(client, "run_probe", verdict="maybe")
        wait = await refused(client, "run_probe", wait_s=600)
        run = await refused(client, "get_run", run_id="run_00000000000000000000")
        shape = await refused(client, "get_run", run_id="x")
        both = await refused(client, "get_evidence", evidence_id="ev_00000000000000000000", verdict="pass")
        planned = await refused(client, "run_probe", text="refused")
        nothing = await called(client, "get_evidence")

    assert "side: got 'rolout'; allowed: rollout. Did you mean 'rollout'?" in unknown
    assert "Did you mean 'verdict'?" in typo
    assert "verdict: got 'maybe'; allowed: input should be 'pass', 'fail', 'invalid' or 'inconclusive'" in value
    assert "wait_s: got 600; allowed: seconds from 0 to 55" in wait
    assert "no run 'run_00000000000000000000'" in run and "run_id: got 'x'" in shape
    assert "leave out tool, check, verdict" in both
    assert "text: got 'refused'; allowed: any other text. Say something else." in planned
    assert nothing["summary"] == "no evidence fits these filters"
    with Store.open(project / ".bitgate" / "ledger.db") as store:
        assert store.list_runs() == [], "a refused call writes nothing"


@pytest.mark.parametrize(("ends", "code"), [("worker_error", "engine_exited"), ("crash", "internal")])
async def test_a_run_that_breaks_has_no_verdict_and_a_log_without_secrets(connect: Any, ends: str, code: str) -> None:
    async with connect() as client:
        answer = await called(client, "run_probe", ends=ends)
        [log] = (await client.read_resource(f"bitgate://runs/{answer['run_id']}/log")).contents

    assert (answer["state"], answer["verdict"], answer["error_code"]) == ("failed", None, code)
    assert f"bitgate://runs/{answer['run_id']}/log" in answer["next"]
    assert "hf_abcdefghijklmnopqrstuvwxyz" not in log.text + json.dumps(answer)


async def test_the_ledger_is_listed_in_pages_that_lose_nothing(connect: Any) -> None:
    async with connect() as client:
        made = [(await called(client, "run_probe", text=f"{n} " + "é" * 400))["evidence_id"] for n in range(3)]
        first = await called(client, "get_evidence", limit=2)
        second = await called(client, "get_evidence", limit=2, before=first["next_before"])
        filtered = await called(client, "get_evidence", verdict="fail")

    assert [item["id"] for item in first["items"] + second["items"]] == made[::-1]
    assert "next_before" not in second and "items" not in filtered


async def test_an_answer_too_large_is_cut_and_the_whole_is_a_resource(connect: Any) -> None:
    async with connect() as client:
        answer = await called(client, "run_probe", items=20_000)
        [whole] = (await client.read_resource(f"bitgate://evidence/{answer['evidence_id']}")).contents

    assert answer["cut"] == f"the whole is bitgate://evidence/{answer['evidence_id']}"
    assert len(json.loads(whole.text)["figures"]["list"]) == 20_000


async def test_resources_are_evidence_artifacts_logs_and_guides(connect: Any) -> None:
    async with connect() as client:
        answer = await called(client, "run_probe")
        templates = {t.uri_template for t in (await client.list_resource_templates()).resource_templates}
        guides = [str(resource.uri) for resource in (await client.list_resources()).resources]
        texts = [(await client.read_resource(uri)).contents[0].text for uri in guides]
        [artifact] = (await client.read_resource(answer["artifacts"][0]["uri"])).contents

    assert templates == {
        "bitgate://evidence/{id}",
        "bitgate://gates/{id}",
        "bitgate://runs/{id}/log",
        "bitgate://artifacts/{digest}",
    }
    assert "bitgate://guides/start" in guides and all(len(guide) > 100 for guide in texts)
    assert artifact.blob == "c2VxdWVuY2UsdG9rZW4KMCwxCg=="


@pytest.mark.parametrize(
    "uri",
    [
        "bitgate://evidence/ev_00000000000000000000",
        "bitgate://evidence/..%2F..%2Fetc",
        "bitgate://runs/run_00000000000000000000/log",
        "bitgate://runs/..%2F..%2F..%2Fetc/log",
        "bitgate://artifacts/..%2Fledger.db",
        "bitgate://artifacts/" + "0" * 64,
        "bitgate://guides/none",
    ],
)
async def test_a_resource_that_is_not_there_is_an_error_and_never_a_file(connect: Any, uri: str) -> None:
    async with connect() as client:
        with pytest.raises(MCPError):
            await client.read_resource(uri)
        assert (await client.list_tools()).tools
