"""Fixtures of the gates' tests: a project in miniature (tests/kits/gate_world.py)."""

from __future__ import annotations

from gate_world import forger, new_world, signers, ssh_keys, world

__all__ = ["forger", "new_world", "signers", "ssh_keys", "world"]
