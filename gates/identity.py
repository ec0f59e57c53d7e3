"""Whether evidence was made by today's sides on today's model; if not, what changed, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from bitgate.gates.today import ModelToday, SideToday, Today
from bitgate.store.records import Evidence, ModelRecord, SideRecord

MAX_VALUE = 60


def side_changes(role: str, before: SideRecord, now: SideRecord) -> list[str]:
    """What differs between two records of a side. Empty when the digests are equal: volatile facts never count."""
    if before.digest == now.digest:
        return []
    named = [
        *_configured_changes(role, before, now),
        *_differences(f"side {role}: observed", before.stable, now.stable),
    ]
    return named or [
        f"side {role}: digest {before.digest[:12]} -> {now.digest[:12]}, although every recorded fact is equal"
    ]


def configured_changes(role: str, before: SideRecord, now: SideRecord) -> list[str]:
    """What differs in the configured part alone (for a side whose stable facts are unknown today)."""
    return list(_configured_changes(role, before, now))


def _configured_changes(role: str, before: SideRecord, now: SideRecord) -> Iterator[str]:
    if before.engine != now.engine:
        yield f"side {role}: engine {before.engine} -> {now.engine}"
    yield from _differences(f"side {role}: option", before.options, now.options)
    if set(before.axes) != set(now.axes):
        yield f"side {role}: axes {_shown(sorted(before.axes))} -> {_shown(sorted(now.axes))}"
    yield from _differences(f"side {role}: env", before.env, now.env)


def model_changes(role: str, before: ModelRecord, now: ModelRecord) -> list[str]:
    """What differs in a model's identity: its architecture or its weights, never its name."""
    fields = (
        ("architecture", before.architecture_digest, now.architecture_digest),
        ("weights", before.weights_digest, now.weights_digest),
    )
    return [f"model {role}: {what} {old[:12]} -> {new[:12]}" for what, old, new in fields if old != new]


def _differences(prefix: str, before: Mapping[str, JsonValue], now: Mapping[str, JsonValue]) -> Iterator[str]:
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        if key in before and key in now and old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(f"{prefix} {key}", old, new)
        else:
            yield f"{prefix} {key} {_value(before, key)} -> {_value(now, key)}"


def _value(values: Mapping[str, JsonValue], key: str) -> str:
    return _shown(values[key]) if key in values else "(unset)"


def _shown(value: object) -> str:
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"


def record_of(evidence: Evidence, side: SideToday) -> SideRecord | None:
    """The evidence's record of a side, by the side's name."""
    return next((record for record in evidence.sides.values() if record.name == side.name), None)


def side_mismatch(role: str, evidence: Evidence, side: SideToday) -> list[str]:
    """Why the evidence's record of this side is not today's; empty when it is."""
    record = record_of(evidence, side)
    if record is None:
        return [f"side {role} ({side.name}) is not in it"]
    if not record.configured:
        return [f"side {role} ran with options that are not configured"]
    if side.record is None:
        return [side.unknown or f"side {role} ({side.name}) was not observed since it was configured as it is"]
    return side_changes(role, record, side.record)


def model_mismatch(role: str, evidence: Evidence, model: ModelToday) -> list[str]:
    """Why no model of the evidence is today's; empty when one is."""
    if model.record is None:
        return [model.unknown or f"the identity of model {model.name} is not known"]
    wanted = model.record
    if any(not model_changes(role, record, wanted) for record in evidence.models.values()):
        return []
    named = next((record for record in evidence.models.values() if record.name == wanted.name), None)
    return model_changes(role, named, wanted) if named else [f"it was not made on the {role} model ({model.name})"]


def unknown_identities(sides: tuple[str, ...], models: tuple[str, ...], today: Today) -> list[str]:
    """What of today is not known, so that nothing can be said to be equal to it."""
    found = [_unknown_side(role, today) for role in sides] + [_unknown_model(role, today) for role in models]
    return [text for text in found if text]


def _unknown_side(role: str, today: Today) -> str:
    side = next((side for name, side in today.sides.items() if name == role), None)
    if side is None:
        return f"no side named {role} is configured"
    return (
        ""
        if side.record
        else (side.unknown or f"side {role} ({side.name}) was not observed since it was configured as it is")
    )


def _unknown_model(role: str, today: Today) -> str:
    model = next((model for name, model in today.models.items() if name == role), None)
    if model is None:
        return "no slice of the model is registered" if role == "slice" else "no full model is configured"
    return "" if model.record else (model.unknown or f"the identity of model {model.name} is not known")
