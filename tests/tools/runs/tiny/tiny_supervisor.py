"""The real supervisor, which also knows the tiny tool and stages the tiny engine."""

from __future__ import annotations

import sys

import tiny_setup

from bitgate.tools.runs import job, supervisor

tiny_setup.install()
job.stage_worker = tiny_setup.stage_with_tiny
sys.exit(supervisor.main(sys.argv[1:]))
