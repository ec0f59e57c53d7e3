"""Runs: folders, supervisor, launchers, leases. `control` starts and follows them; `context` is what a tool gets."""
