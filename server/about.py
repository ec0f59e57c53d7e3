"""Who we are, told to clients."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Final

NAME: Final = "bitgate"
TITLE: Final = "bitgate: bitwise train-inference consistency"
INSTRUCTIONS: Final = """\
Instruments for bitwise train-inference consistency of RL stacks, and a ledger that keeps what they found.
Start with run_compare check 'batch' on the rollout side: is a token's logprob the same alone and in company? Then
'phase', then 'rollout_vs_trainer'. Sides, models and workloads are named in bitgate.toml, which no tool writes.
Verdicts: pass, fail (compared and different), invalid (not comparable), inconclusive (not enough observed). There is no
tolerance. A run that outlasts wait_s goes on: get_run(run_id) waits for it, cancel_run ends it. Every answer's
`next` says what to do.
Guides: bitgate://guides/start, bitgate://guides/verdicts, bitgate://guides/reasons."""


def version() -> str:
    try:
        return installed_version("bitgate")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"
