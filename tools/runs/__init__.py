"""Runs: the supervisor process, launchers, leases, and what a server needs to start and watch them."""
