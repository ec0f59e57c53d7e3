"""The tools, by name. A tool's module is imported when the tool is asked for, so that the server starts fast."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from bitgate.store.records import Finding
from bitgate.tools.errors import unknown_name

if TYPE_CHECKING:
    from bitgate.tools.config.project import Project
    from bitgate.tools.runs.context import RunContext


class ToolRequest(BaseModel):
    """Base of every tool's request: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


R = TypeVar("R", bound=ToolRequest)


@dataclass(frozen=True)
class Tool(Generic[R]):
    """`plan` refuses (RequestError) before any row is written; `run` concludes in the supervisor process."""

    name: str
    title: str
    description: str
    request: type[R]
    run: Callable[[RunContext, R], Awaitable[Finding]]
    plan: Callable[[Project, R], None]


class Registry(Mapping[str, Tool[Any]]):
    """Name -> tool, where the table holds `module:attribute`."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self._table = dict(table)

    def __getitem__(self, name: str) -> Tool[Any]:
        module, _, attribute = self._table[name].partition(":")
        tool = getattr(import_module(module), attribute)
        assert isinstance(tool, Tool) and tool.name == name, f"{self._table[name]} is not the tool {name!r}"
        return tool

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def find(self, name: str) -> Tool[Any]:
        """The tool, or a request error that names the nearest one."""
        if name not in self._table:
            raise unknown_name("tool", name, self._table)
        return self[name]

    def add(self, name: str, target: str) -> None:
        """Adds a tool that another package brings; `target` is `module:attribute`."""
        self._table[name] = target


TOOLS = Registry(
    {
        "run_compare": "bitgate.tools.run_compare:TOOL",
        "bisect_layer": "bitgate.tools.bisect_layer:TOOL",
        "slice_model": "bitgate.tools.slice_model:TOOL",
        "check_provenance": "bitgate.tools.check_provenance:TOOL",
        "ab_benchmark": "bitgate.tools.ab_benchmark:TOOL",
    }
)
