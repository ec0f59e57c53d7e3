"""Every rank starts here, by path, in the user's interpreter: `python …/bitgate_worker/run.py JOB --rank --world`.

Only this file's folder is on the path then, where our `capture.py` or `engines` would shadow the user's modules; its
parent takes that place.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bitgate_worker")
    parser.add_argument("job")
    parser.add_argument("--rank", required=True, help="a number, or env:NAME")
    parser.add_argument("--world", required=True, type=int)
    parser.add_argument("--local-rank", type=int)
    parser.add_argument("--master-addr")
    parser.add_argument("--master-port", type=int)
    parser.add_argument("--env-file")
    parser.add_argument("--watch-stdin", action="store_true")
    return parser.parse_args()


def take_environment(path: str | None) -> None:
    """Start again under the side's environment, for launchers that cannot pass it: much of it is read at start only."""
    if path is None or os.environ.get("BITGATE_ENV_FILE") == path:
        return
    with open(path, encoding="utf-8") as file:
        os.environ.update(json.load(file))
    os.environ["BITGATE_ENV_FILE"] = path
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main() -> int:
    options = arguments()
    take_environment(options.env_file)
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and os.path.abspath(sys.path[0]) == here:
        sys.path[0] = os.path.dirname(here)
    else:
        sys.path.insert(0, os.path.dirname(here))
    guard = importlib.import_module("bitgate_worker.guard")
    code: int = guard.main(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
