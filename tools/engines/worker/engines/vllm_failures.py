"""vLLM's exceptions as error codes with words that say what to do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ..engine import EngineError

_MEMORY = (
    "out of memory",
    "available memory",
    "no available memory",
    "can't allocate memory",
    "bad_alloc",
    "kv cache is needed",
)
_UNSUPPORTED = (
    "are not supported for now",
    "model architectures",
    "is not supported",
    "does not recognize this architecture",
)


@contextlib.contextmanager
def explained(model_path: str) -> Iterator[None]:
    """Turns what vLLM raises inside into an EngineError where the cause is known; anything else passes through."""
    _refuse_missing(model_path)
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        known = _known(error, model_path)
        if known is None:
            raise
        raise known from error


def _refuse_missing(path: str) -> None:
    if not os.path.isdir(path):
        raise EngineError("model_not_found", f"model path {path!r} is no directory; correct [model.…] path")
    if not os.path.isfile(os.path.join(path, "config.json")):
        raise EngineError(
            "model_not_found", f"model path {path!r} has no config.json, so it is not a checkpoint directory"
        )


def _known(error: Exception, path: str) -> EngineError | None:
    text = _chain(error)
    lowered = text.lower()
    if isinstance(error, MemoryError) or any(word in lowered for word in _MEMORY):
        return EngineError(
            "out_of_memory",
            f"vLLM has too little memory: {text}. Lower kv_cache_memory_bytes, max_model_len or max_num_seqs",
        )
    if "CPU Generator does not use offset" in text:
        return EngineError(
            "unsupported_sampling",
            "this CPU engine cannot combine chunked prefill with a seed of its own per request; sample greedily, leave "
            "sampling.seed out, or force the tokens",
        )
    if type(error).__name__ == "VLLMValidationError" or "maximum context length" in lowered:
        return EngineError("request_refused", f"vLLM refuses a sequence: {text}")
    if isinstance(error, NotImplementedError) or any(word in lowered for word in _UNSUPPORTED):
        return EngineError("unsupported_model", f"vLLM does not support {path}: {text}")
    return None


def _chain(error: BaseException | None) -> str:
    """The messages of an exception and its causes, in short: vLLM's last one often only says that the engine failed."""
    words: list[str] = []
    while error is not None and len(words) < 4:
        text = f"{type(error).__name__}: {str(error).strip()[:600]}"
        if text not in words:
            words.append(text)
        error = error.__cause__ or error.__context__
    return " | ".join(words)
