"""The MCP server: every tool of the registry, the ledger tools, and resources, over one session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools.base import Tool as ServedTool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp.types import CallToolResult, InputRequiredResult, TextContent, ToolAnnotations
from pydantic import BaseModel, JsonValue

from bitgate.server import calls
from bitgate.server.about import INSTRUCTIONS, NAME, TITLE, version
from bitgate.server.answers import RunAnswer, fitted
from bitgate.server.arguments import input_schema, parse, split_wait
from bitgate.server.asking import offer_of, offered
from bitgate.server.gate_resources import add_gate_resources, add_prompts
from bitgate.server.gate_tools import GATE_TOOLS
from bitgate.server.ledger_tools import LEDGER_TOOLS, LedgerTool
from bitgate.server.progress import OnProgress
from bitgate.server.resources import add_resources
from bitgate.server.sanitise import clean_text, compact_json
from bitgate.server.session import Session
from bitgate.server.tokens import role_named
from bitgate.store.errors import StoreError
from bitgate.tools.errors import BitgateError
from bitgate.tools.registry import TOOLS, Tool

Handler = Callable[[Session, Mapping[str, Any], OnProgress], Awaitable[dict[str, JsonValue]]]

READS: Final = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
RUNS: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False
)
ENDS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)


class AnyArguments(ArgModelBase):
    """Stands in for the SDK's own argument model: arguments are checked by `arguments.parse`, whose errors say more."""


class RawArguments(FuncMetadata):
    """Hands a call's arguments on as they came."""

    def validate_arguments(self, arguments_to_validate: dict[str, Any]) -> dict[str, Any]:
        return {"arguments": arguments_to_validate}


def build_server(
    session: Session, *, auth: AuthSettings | None = None, token_verifier: TokenVerifier | None = None
) -> MCPServer[None]:
    """The server of `session`. Importing this module never imports torch, nor starting it numpy."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[None]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            session.workplace.close()

    server = MCPServer[None](
        NAME,
        title=TITLE,
        version=version(),
        instructions=INSTRUCTIONS,
        lifespan=lifespan,
        tools=served_tools(session),
        auth=auth,
        token_verifier=token_verifier,
        log_level="WARNING",
    )
    add_resources(server, session)
    add_gate_resources(server, session)
    add_prompts(server)
    return server


def served_tools(session: Session) -> list[ServedTool]:
    runs = [_run_tool(session, TOOLS[name]) for name in TOOLS]
    return runs + [_ledger_tool(session, tool) for tool in (*LEDGER_TOOLS.values(), *GATE_TOOLS)]


def _run_tool(session: Session, tool: Tool[Any]) -> ServedTool:
    async def handle(who: Session, arguments: Mapping[str, Any], on_progress: OnProgress) -> dict[str, JsonValue]:
        rest, wait_s = split_wait(arguments)
        run = await calls.start(who, tool.name, rest)
        answer = await calls.wait(who, run.id, wait_s, on_progress)
        return fitted(answer, calls.rest_of(answer))

    return _served(session, tool.name, tool.title, tool.description, tool.request, RunAnswer, RUNS, handle, waits=True)


def _ledger_tool(session: Session, tool: LedgerTool) -> ServedTool:
    async def handle(who: Session, arguments: Mapping[str, Any], on_progress: OnProgress) -> dict[str, JsonValue]:
        return await tool.run(who, parse(tool.request, arguments), on_progress)

    hints = READS if tool.read_only else ENDS
    return _served(
        session, tool.name, tool.title, tool.description, tool.request, tool.answer, hints, handle, waits=False
    )


def _served(
    session: Session,
    name: str,
    title: str,
    description: str,
    request: type[BaseModel],
    answer: type[BaseModel],
    annotations: ToolAnnotations,
    handle: Handler,
    *,
    waits: bool,
) -> ServedTool:
    async def call(arguments: dict[str, Any], ctx: Context[None]) -> CallToolResult | InputRequiredResult:
        async def on_progress(done: float, total: float | None, message: str) -> None:
            await ctx.report_progress(done, total, message)

        acting = _acting(session)
        try:
            body = await handle(acting, arguments, on_progress)
            if (offer := offer_of(acting, body)) is not None:
                answer = await offered(ctx, offer, body)
                if isinstance(answer, InputRequiredResult):
                    return answer
                body = answer
        except (BitgateError, StoreError) as error:
            raise ToolError(clean_text(str(error))[:4000]) from error
        except OSError as error:
            raise ToolError(f"{clean_text(str(error))}. Make room or give access there, then call again.") from error
        return CallToolResult(content=[TextContent(type="text", text=compact_json(body))], structured_content=body)

    return ServedTool(
        fn=call,
        name=name,
        title=title,
        description=description,
        parameters=input_schema(request, waits=waits),
        fn_metadata=RawArguments(arg_model=AnyArguments, output_schema=_output_schema(answer)),
        is_async=True,
        context_kwarg="ctx",
        annotations=annotations,
    )


def _output_schema(answer: type[BaseModel]) -> dict[str, Any]:
    schema = input_schema(answer, waits=False)
    return {**schema, "required": ["summary", "next"]}


def _acting(session: Session) -> Session:
    """Over HTTP a call acts as its token's name and role; over stdio as whoever started the server."""
    token = get_access_token()
    return session.acting_as(token.client_id, role_named(token.scopes)) if token else session
