"""The engines that this worker has, by name. To add one: a module with `ENGINE`, and one row here."""

from __future__ import annotations

import importlib

from .engine import Engine, EngineError
from .job import Job

ENGINES = {
    "vllm": "engines.vllm",
    "transformers": "engines.transformers",
    "megatron": "engines.megatron",
    "python": "engines.python",
    "vllm_kernels": "kernels.engine",
    "slice_proof": "slicing.engine",
    "bisect_probe": "probes.probe",
}
"""Engine name -> module of this package, whose `ENGINE(model_path, options, job)` builds it."""


def load_engine(job: Job) -> Engine:
    """Raises EngineError `unknown_engine`; whatever importing or starting the engine raises passes through."""
    if job.engine not in ENGINES:
        known = ", ".join(sorted(ENGINES))
        raise EngineError(
            "unknown_engine", f"engine {job.engine!r} is not one that this worker knows; it knows {known}"
        )
    module = importlib.import_module(f"{__package__}.{ENGINES[job.engine]}")
    engine: Engine = module.ENGINE(job.model_path, job.options, job)
    return engine
