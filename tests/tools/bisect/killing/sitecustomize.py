"""On PYTHONPATH of a side: its probe ends by SIGABRT where KILLED_AT says, `module:function` inside of probes."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from typing import Any

MODULE, _, FUNCTION = os.environ["KILLED_AT"].partition(":")


class Killing:
    """Finds the module as ever, and puts the end of the process in the place of the function."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not name.endswith(f"probes.{MODULE}"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def loaded(module: Any) -> None:
            load(module)
            setattr(module, FUNCTION, killed)

        spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


def killed(*_: Any) -> None:
    os.abort()


killed.__name__ = FUNCTION
sys.meta_path.insert(0, Killing())  # type: ignore[arg-type]
