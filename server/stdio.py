"""stdio: one client on standard input and output.

Holds against clients that send server/discover and then initialize on one connection (anthropics/claude-code#96183,
github/copilot-cli#4525), against signals while the SDK's reader thread sits in read() (python-sdk#3551), and against
text that cannot be encoded, which would end the SDK's writer; and it answers a request that cannot be read, which the
SDK drops without a word, so that its client waits for ever.
"""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any, Final

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.shared._context_streams import ContextReceiveStream, ContextSendStream, create_context_streams
from mcp.shared.message import SessionMessage
from mcp.types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse
from mcp_types import jsonrpc_message_adapter
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import PydanticSerializationError, ValidationError

from bitgate.server.about import NAME, version
from bitgate.server.sanitise import Cleaner

GRACE_S: Final = 5.0

# A key with its colon, another string, a whole number, a bracket. A string without its end takes the rest of the line.
_PARTS: Final = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*+")\s*+:|"(?:[^"\\]|\\.)*+(?:"|$)|(?<![\w.+-])-?\d{1,15}(?![\w.+-])|[{}\[\]]'
)

Incoming = SessionMessage | Exception


async def serve_stdio(server: MCPServer[None]) -> None:
    """Serves until end of input; on SIGTERM or SIGINT runs every `finally`, then leaves with 143 or 130."""
    ended = anyio.Event()
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as serving:
            tasks.start_soon(_leave_on_signal, serving, ended)
            await _serve(server, ended)
        tasks.cancel_scope.cancel()


async def _leave_on_signal(serving: anyio.CancelScope, ended: anyio.Event) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            serving.cancel()
            with anyio.CancelScope(shield=True), anyio.move_on_after(GRACE_S):
                await ended.wait()
            # The thread that reads standard input sits in read(); nothing wakes it, and exit would wait for it.
            os._exit(128 + number)


async def _serve(server: MCPServer[None], ended: anyio.Event) -> None:
    low = server._lowlevel_server
    async with stdio_server() as (raw_read, raw_write), anyio.create_task_group() as tasks:
        to_server, from_client = create_context_streams[Incoming](0)
        from_server, to_client = create_context_streams[SessionMessage](0)
        tasks.start_soon(_answer_probe, server, raw_read, to_server, raw_write)
        tasks.start_soon(_make_sendable, to_client, raw_write)
        try:
            await low.run(from_client, from_server, low.create_initialization_options())
        finally:
            # Not after stdio_server: leaving that waits for the reader thread.
            ended.set()
        tasks.cancel_scope.cancel()


async def _answer_probe(
    server: MCPServer[None],
    raw: ContextReceiveStream[Incoming],
    to_server: ContextSendStream[Incoming],
    to_client: ContextSendStream[SessionMessage],
) -> None:
    """Passes messages on. server/discover as the first requests is answered here: the SDK would lock to its era."""
    async with to_server:
        opened = False
        async for item in raw:
            if (refusal := _refusal(item)) is not None:
                await to_client.send(SessionMessage(refusal))
                continue
            if not opened and isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCRequest):
                if item.message.method == "server/discover":
                    await to_client.send(SessionMessage(_discovered(server, item.message)))
                    continue
                opened = True
            await to_server.send(item)


def _refusal(item: Incoming) -> JSONRPCError | None:
    """The answer to a request that cannot be read: a lone surrogate in it, too deep, too long a number."""
    if not isinstance(item, ValidationError):
        return None
    problem = item.errors(include_url=False, include_context=False)[0]
    line = problem["input"]
    id = request_id(line) if problem["type"] == "json_invalid" and isinstance(line, str) else None
    if id is None:
        return None
    said = ErrorData(code=PARSE_ERROR, message=f"The request cannot be read: {problem['msg']}. Send it without that.")
    return JSONRPCError(jsonrpc="2.0", id=id, error=said)


def request_id(line: str) -> int | str | None:
    """The id of a request whose JSON no parser takes, found by brackets and strings alone."""
    depth, key, found, has_method = 0, "", None, False
    for match in _PARTS.finditer(line):
        part = match[0]
        depth += (part in "{[") - (part in "}]")
        if depth != 1:
            continue
        if match["key"] is not None:
            key = match["key"]
            has_method = has_method or key == '"method"'
        elif key == '"id"' and found is None and part not in "{}[]":
            found = _sendable_id(part)
    return found if has_method else None


def _sendable_id(text: str) -> int | str | None:
    try:
        id: int | str = json.loads(text)
        str(id).encode()
    except ValueError:
        return None
    return id


def _discovered(server: MCPServer[None], request: JSONRPCRequest) -> JSONRPCResponse:
    capabilities = server._lowlevel_server.get_capabilities(protocol_version=MODERN_PROTOCOL_VERSIONS[-1])
    result: dict[str, Any] = {
        "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
        "capabilities": capabilities.model_dump(mode="json", by_alias=True, exclude_none=True),
        "instructions": server.instructions,
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": NAME, "version": version()}},
    }
    return JSONRPCResponse(jsonrpc="2.0", id=request.id, result=result)


async def _make_sendable(
    messages: ContextReceiveStream[SessionMessage], raw: ContextSendStream[SessionMessage]
) -> None:
    """The last look before the wire: a message that cannot be encoded is cleaned, whoever made it."""
    async with raw:
        async for item in messages:
            await raw.send(item if _encodes(item) else _cleaned(item))


def _encodes(item: SessionMessage) -> bool:
    try:
        item.message.model_dump_json(by_alias=True, exclude_unset=True)
    except PydanticSerializationError:
        return False
    return True


def _cleaned(item: SessionMessage) -> SessionMessage:
    body = Cleaner().clean(item.message.model_dump(mode="python", by_alias=True, exclude_unset=True))
    return SessionMessage(jsonrpc_message_adapter.validate_python(body), metadata=item.metadata)


def run_stdio(server: MCPServer[None]) -> None:
    anyio.run(serve_stdio, server)
