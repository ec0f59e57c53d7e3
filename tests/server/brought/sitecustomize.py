"""Adds the test's tools to the registry of every process that has this folder on its path: server and supervisor."""

try:
    from bitgate.tools.registry import TOOLS
except ImportError:  # an engine's interpreter
    pass
else:
    TOOLS.add("run_probe", "brought_tools:TOOL")
