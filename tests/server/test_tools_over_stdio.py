from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.anyio


async def test_a_tool_call(connect: Any) -> None:
    async with connect() as client:
        tools = await client.list_tools()
        print([t.name for t in tools.tools])
        result = await client.call_tool("run_probe", {"verdict": "fail"})
        print(result)
        r = await client.call_tool("get_evidence", {})
        print(r)
