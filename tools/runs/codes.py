"""The error codes of runs that end without a verdict: one table, from which messages and docs come."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

ADVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bad_module": "Correct the side's `module`; docs/engines.md has its two functions.",
        "bad_module_result": "Correct what the module's score() returns; docs/engines.md says what is expected.",
        "bad_result": "The worker's result.json is damaged; look at the rank's log.",
        "canary_not_restored": "Start it again; the engine's weights were not what they had been after the canary.",
        "cancelled": "Start it again when wanted.",
        "checkpoint_damaged": "Copy or download the checkpoint's file again; the message names it.",
        "checkpoint_mismatch": "Correct [model.…] path: the tensors must be the architecture's own, unfused.",
        "disk_full": "Free space on the disk that holds .bitgate, or lower [policy] disk_reserve, then run again.",
        "disk_limit": "Use a smaller workload, or raise [policy] run_disk.",
        "engine_exited": "The last lines of its log say why; run it again after fixing that.",
        "engine_failed": "The last lines of its log hold the traceback.",
        "engine_import": "Install what is missing into the side's interpreter; `bitgate doctor` lists it.",
        "engine_killed": "Look at `dmesg` and at the scheduler; on SIGKILL the usual cause is that memory ran out.",
        "forced_decode_failed": "Report it with the log: the engine sampled other tokens than it was told to.",
        "internal": "This is a defect of bitgate; the run's supervisor.log holds the traceback.",
        "interpreter_lacks": "Install the missing packages into the side's interpreter; `bitgate doctor` lists them.",
        "interpreter_not_found": "Correct `python` of the side; it names an executable Python interpreter.",
        "interpreter_not_python": "Correct `python` of the side; it names an executable Python of 3.10 or newer.",
        "launcher_failed": "The launcher's own lines say why.",
        "launcher_not_found": "Install the launcher's program on this host, or choose another launcher for the side.",
        "lease_lost": "The supervisor stopped renewing the lease, or the run's folder is not shared between the hosts.",
        "lost": "Its supervisor ended without a word; start it again.",
        "model_not_found": "Correct [model.…] path; it names a checkpoint directory with config.json.",
        "module_not_found": "Correct `module` of the side.",
        "no_result": "The rank ended well but left no result; look at its log.",
        "option_conflict": "Remove the option, or the variable in the side's env that says the opposite.",
        "out_of_memory": "Use a smaller workload, fewer sequences at once, or a smaller cache.",
        "parent_gone": "The process that started the run ended; start it again and keep that process until the end.",
        "request_refused": "Use prompts and lengths that the engine takes; the message says which sequence it refused.",
        "server_unreachable": "Start the server first, and correct `url` of the side.",
        "start_timed_out": "Raise [policy] start_timeout; the log shows where every thread was.",
        "timed_out": "Use a smaller workload or raise [policy] run_timeout; the log shows where every thread was.",
        "unknown_engine": "Correct `engine` of the side.",
        "weights_changed_before_backward": "Run the backward before the optimiser step; load weights between steps.",
    }
)


def advice(code: str) -> str:
    """What to do about a run that ended with `code`; empty for an engine's own code."""
    return ADVICE.get(code, "")


def render() -> str:
    """docs/run-errors.md."""
    lines = [
        "# Runs that end without a verdict",
        "",
        "A run that failed, timed out, was cancelled or lost has an error code and no evidence. The page is made from",
        "the table in `tools/runs/codes.py`: `python -m bitgate.tools.runs.codes > docs/run-errors.md`.",
        "Codes that begin with `unsupported_` are an engine's own; their message says what it cannot do.",
        "",
        "| code | what to do |",
        "|---|---|",
        *(f"| `{code}` | {words} |" for code, words in ADVICE.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
