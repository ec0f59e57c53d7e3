"""Adapter of a server that somebody else started: ab_benchmark puts load on it; nothing can be looked into."""

from __future__ import annotations

from bitgate.tools.config.sides import Side
from bitgate.tools.engines.base import Adapter, refuse_options


class ServerAdapter(Adapter):
    def check_options(self, side: Side) -> None:
        refuse_options(side, "Whoever started the server chose them; bitgate only sends requests.")

    def default_axes(self, side: Side) -> tuple[str, ...]:
        return ()


ADAPTER = ServerAdapter("server", decodes=True, trains=False, packings=("engine",), grade="attested")
