"""What these modules refuse, each with the code that the verdict is looked up by."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine import EngineError


class KernelError(EngineError):
    """A refusal. Codes `unsupported_…` and `operator_without_entry` make the check inconclusive, others end the run."""

    reason = "engine_failed"

    def __init__(self, message: str) -> None:
        super().__init__(self.reason, message)


class OperatorWithoutEntry(KernelError):
    """The model, the platform or the configuration needs an operator that the table does not have."""

    reason = "operator_without_entry"

    def __init__(self, operator: str, found: str, do: str) -> None:
        self.operator = operator
        super().__init__(f"operator {operator}: the table has no entry for {found}; {do}")


class WeightsChanged(KernelError):
    """Master weights differ between a forward and its backward."""

    reason = "weights_changed_before_backward"

    def __init__(self, where: str, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(
            f"{where}: master weights changed between the forward and its backward: {', '.join(names)}; "
            "run the backward before the optimiser step, and load weights only between steps"
        )


class SequenceTooLong(KernelError):
    """A sequence does not fit the private KV cache, which is as long as the engine's."""

    reason = "unsupported_sequence_length"

    def __init__(self, index: int, length: int, allowed: int) -> None:
        super().__init__(
            f"sequence {index}: {length} tokens, at most {allowed} fit the KV cache (max_model_len); "
            "shorten it or raise max_model_len on both sides"
        )


class KvDtypeUnsupported(KernelError):
    """The platform's attention backend has no KV cache of this dtype."""

    reason = "unsupported_kv_cache_dtype"

    def __init__(self, given: str, allowed: Sequence[str], backend: str) -> None:
        super().__init__(
            f"option kv_cache_dtype: got {given!r}; {backend} on this platform takes {', '.join(allowed)}; "
            "choose one of them on both sides"
        )


class CheckpointMismatch(KernelError):
    """The checkpoint's tensors are not the ones the module has."""

    reason = "checkpoint_mismatch"

    def __init__(self, missing: Sequence[str], unexpected: Sequence[str]) -> None:
        super().__init__(
            f"checkpoint: missing {', '.join(missing[:4]) or 'none'}, unexpected {', '.join(unexpected[:4]) or 'none'} "
            f"({len(missing)} and {len(unexpected)}); the tensors must be the model's own, under unfused names"
        )
