from __future__ import annotations

import pytest

from bitgate.gates.errors import RoleRefused
from bitgate.server.exits import exit_for
from bitgate.server.gate_tools import GateRefused
from bitgate.store.errors import Damaged, NotFound
from bitgate.tools.errors import ConfigError, RequestError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError("side", "x", "rollout"), 2),
        (ConfigError("bitgate.toml: side"), 2),
        (NotFound("unknown_run", "no run x"), 2),
        (GateRefused(RoleRefused("only a baseline agent")), 2),
        (Damaged("ledger_damaged", "row 3"), 1),
    ],
)
def test_what_the_caller_can_put_right_is_wrong_usage_and_the_rest_internal(error: Exception, code: int) -> None:
    assert exit_for(error) == code
