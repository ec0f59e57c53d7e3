"""`python -m bitgate.server`: the `bitgate` command where no script is installed."""

from __future__ import annotations

from bitgate.server.cli import main

main()
