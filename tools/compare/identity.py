"""Identity first: what two captures must share before a difference of their logprobs means anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from pydantic import JsonValue

from bitgate.store.records import Reason
from bitgate.tools.captures.format import CaptureMeta
from bitgate.tools.captures.read import Capture
from bitgate.tools.errors import shown
from bitgate.tools.reasons import reason

RAW_MODE: Final = "raw_logprobs"
FULL_DTYPES: Final = frozenset({"float32", "float64"})

_NEUTRAL: Final[Mapping[str, tuple[JsonValue, ...]]] = {
    "temperature": (0, 1),
    "top_p": (1, None),
    "top_k": (0, -1, None),
    "min_p": (0, None),
    "typical_p": (1, None),
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "repetition_penalty": (1, None),
    "length_penalty": (1, None),
    "min_tokens": (0, None),
    "logit_bias": (None, {}),
    "allowed_token_ids": (None, []),
    "bad_words": (None, []),
    "logits_processors": (None, []),
    "structured_outputs": (None,),
    "guided_decoding": (None,),
    "extra_args": (None, {}),
    "thinking_token_budget": (None,),
    "watermarking": (None, False),
    "use_beam_search": (None, False),
    "num_beams": (1, None),
    "num_beam_groups": (1, None),
    "top_a": (0, None),
    "tfs": (1, None),
    "epsilon_cutoff": (0, None),
    "eta_cutoff": (0, None),
    "no_repeat_ngram_size": (0, None),
    "encoder_repetition_penalty": (1, None),
    "exponential_decay_length_penalty": (None,),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "bad_words_ids": (None, []),
    "sequence_bias": (None, {}),
    "guidance_scale": (1, None),
    "min_length": (0, None),
    "min_new_tokens": (0, None),
}
_HARMLESS: Final = frozenset(
    {
        "seed", "n", "max_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs", "prompt_logprobs", "detokenize",
        "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "output_kind",
        "truncate_prompt_tokens", "best_of", "do_sample", "max_new_tokens", "max_length", "num_return_sequences",
        "eos_token_id", "pad_token_id", "bos_token_id", "stop_strings", "use_cache", "return_logprob", "stream",
        "flat_logprobs", "stream_interval", "prompt_logprob_token_ids", "prompt_logprob_start", "logprob_token_ids",
        "skip_reading_prefix_cache", "repetition_detection",
    }
)  # fmt: skip
SAMPLING_ALLOWED: Final[Mapping[str, tuple[JsonValue, ...] | None]] = MappingProxyType(
    {**_NEUTRAL, **dict.fromkeys(_HARMLESS)}
)
"""The allow-list: parameter -> the values that leave the distribution alone; None where any value does."""


def capture_reasons(capture: Capture) -> tuple[Reason, ...]:
    """Why this capture can be compared with nothing, from what its capture.json states."""
    meta, found = capture.meta, []
    if meta.logprobs.mode != RAW_MODE:
        found.append(reason("logprobs_mode", f"{capture.name}: {shown(meta.logprobs.mode)}; allowed: {RAW_MODE!r}"))
    if meta.logprobs.dtype not in FULL_DTYPES:
        found.append(reason("logprob_precision", f"{capture.name}: logprobs were {shown(meta.logprobs.dtype)}"))
    if meta.logprobs.temperature != 1:
        detail = f"{capture.name}: logprobs at temperature {meta.logprobs.temperature}; allowed: 1"
        found.append(reason("temperature_differs", detail))
    return (*found, *_sampling_reasons(capture))


def _sampling_reasons(capture: Capture) -> tuple[Reason, ...]:
    outside = []
    for name, value in (capture.meta.sampling or {}).items():
        if name not in SAMPLING_ALLOWED:
            outside.append(f"{shown(name, 60)} (unknown parameter)")
        elif (allowed := SAMPLING_ALLOWED[name]) is not None and not _neutral(value, allowed):
            outside.append(f"{name}={shown(value, 60)} (allowed: {', '.join(map(repr, allowed))})")
    return (reason("sampling_contract", f"{capture.name}: {'; '.join(outside)}"),) if outside else ()


def _neutral(value: JsonValue, allowed: tuple[JsonValue, ...]) -> bool:
    """`true` is no 1, and a number as text is no number."""
    return any(value == item and isinstance(value, bool) is isinstance(item, bool) for item in allowed)


Part = Callable[[CaptureMeta], object]

_SHARED: Final[tuple[tuple[str, str, Part], ...]] = (
    ("weights_differ", "weights digest", lambda meta: meta.weights.digest),
    ("weight_version_differs", "weight version", lambda meta: meta.weights.version),
    ("weights_differ", "architecture digest", lambda meta: meta.model.architecture_digest),
    ("tokenizer_differs", "tokenizer digest", lambda meta: meta.tokenizer_digest),
    ("vocabulary_differs", "vocabulary size", lambda meta: meta.model.vocab_size),
    ("temperature_differs", "logprob temperature", lambda meta: meta.logprobs.temperature),
    ("logprobs_mode", "logprobs mode", lambda meta: meta.logprobs.mode),
)


def identity_reasons(a: Capture, b: Capture) -> tuple[Reason, ...]:
    """Every stated difference that makes the two incomparable; what one side does not state is no difference."""
    found = [*capture_reasons(a), *capture_reasons(b)]
    for code, what, part in _SHARED:
        left, right = part(a.meta), part(b.meta)
        if left is not None and right is not None and left != right:
            found.append(reason(code, f"{what}: {a.name} has {shown(left, 80)}, {b.name} has {shown(right, 80)}"))
    return tuple(found)
