"""Adapter of a user's own module with two functions; what it hands back is somebody's word: grade `attested`."""

from __future__ import annotations

from bitgate.tools.config.sides import Side
from bitgate.tools.engines.base import Adapter
from bitgate.tools.errors import RequestError


class PythonAdapter(Adapter):
    def check_options(self, side: Side) -> None:
        """Its options are the user's own and may name anything, files included: only the configuration gives them."""
        if side.tried:
            raise RequestError(
                f"options.{side.name}",
                dict(side.tried),
                "no options in a call",
                f"A python module's options mean what its author wants; put them into [side.{side.name}.options].",
            )


ADAPTER = PythonAdapter("python", decodes=False, trains=True, packings=("engine",), grade="attested")
