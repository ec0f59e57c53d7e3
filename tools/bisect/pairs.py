"""Which two computations a localisation watches: pure plans of sides, options and steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from bitgate.tools.bisect.graph import AFTER, BEFORE, Node, Point
from bitgate.tools.checks.plan import alone, together
from bitgate.tools.engines.jobs import Decode, Groups, Observe, Packing, Prefill, Target

Watched = Prefill | Decode
BESIDE: Final = {
    "q": ((0, "k_norm"), (0, "k_proj")),
    "k": ((0, "q_norm"), (0, "q_proj")),
    "attn_norm": ((-1, "mlp_out"), (-1, "resid_mid")),
    "mlp_norm": ((0, "o_proj"), (0, "resid_pre")),
}
"""Further inputs of a fused operator, (layers up, point): rotary kernels take queries and keys in one call, and a norm
that adds the residual first reads both terms, not their rounded sum."""


@dataclass(frozen=True)
class Leg:
    """One computation: which start of an engine (`engine` names it within the run), and the step it is."""

    name: str
    engine: str
    step: Watched

    def hashing(self) -> Watched:
        return self.step.model_copy(update={"name": f"{self.step.name}.hash", "observe": Observe()})

    def recording(self, target: Target) -> Watched:
        return self.step.model_copy(update={"name": f"{self.step.name}.ops", "observe": Observe(target=target)})


@dataclass(frozen=True)
class Pair:
    label: str
    a: Leg
    b: Leg

    @property
    def same_side(self) -> bool:
        return self.a.engine.partition("+")[0] == self.b.engine.partition("+")[0]


@dataclass(frozen=True)
class Start:
    """One start of a side's engine; `options` are laid over the side's own."""

    name: str
    side: str
    options: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    starts: tuple[Start, ...]
    pairs: tuple[Pair, ...]


def batch_plan(side: str, count: int, *, decodes: bool) -> Plan:
    """Each sequence alone against all together."""
    own = Start(side, side)
    pairs = [
        Pair(
            "prefill: alone against together",
            Leg("alone", side, Prefill(name="prefill_alone", groups=alone(count))),
            Leg("together", side, Prefill(name="prefill_together", groups=together(range(count)))),
        )
    ]
    if decodes:
        pairs.append(
            Pair(
                "decode: alone against together",
                Leg("alone", side, _decode("decode_alone", alone(count))),
                Leg("together", side, _decode("decode_together", together(range(count)))),
            )
        )
    return Plan((own,), tuple(pairs))


def phase_plan(side: str, count: int, chunked: Mapping[str, JsonValue] | None) -> Plan:
    """Whole prefill against decode, and against chunked prefill where the engine can be brought to it."""
    own = Start(side, side)
    whole = Leg("whole", side, Prefill(name="prefill_whole", groups=together(range(count))))
    starts, pairs = [own], []
    if chunked is not None:
        cut = f"{side}+chunked"
        starts.append(Start(cut, side, chunked))
        step = Prefill(name="prefill_chunked", groups=together(range(count)))
        pairs.append(Pair("prefill: whole against chunked", whole, Leg("chunked", cut, step)))
    pairs.append(Pair("prefill against decode", whole, Leg("decode", side, _decode("decode", together(range(count))))))
    return Plan(tuple(starts), tuple(pairs))


def sides_plan(rollout: str, trainer: str, count: int, *, decodes: bool, packing: Packing) -> Plan:
    """The rollout against the trainer's recompute of the same tokens, as run_compare has them."""
    groups = together(range(count))
    a = _decode("rollout", groups) if decodes else Prefill(name="rollout", groups=groups)
    b = Prefill(name="recompute", groups=alone(count), packing=packing)
    pair = Pair(f"{rollout} against {trainer}", Leg(rollout, rollout, a), Leg(trainer, trainer, b))
    return Plan((Start(rollout, rollout), Start(trainer, trainer)), (pair,))


def _decode(name: str, groups: Groups) -> Decode:
    return Decode(name=name, groups=groups, reset_cache=True)


def target_of(node: Node, row: tuple[int, int], layers: int) -> Target:
    """The operators to record: from the node's inputs to its output, in the layers that they may lie in."""
    layer, name = node.point
    if name == "final_norm":
        beside = [(layers - 1, "mlp_out"), (layers - 1, "resid_mid")]
    else:
        beside = [(layer + up, other) for up, other in BESIDE.get(name, ()) if layer + up >= 0]
    points: Sequence[Point] = tuple(dict.fromkeys((*node.parents, *node.context, *beside)))
    near = {layer, *(at for at, _ in points if at != BEFORE or layer == BEFORE)}
    if any(at == layers - 1 for at in near) or layer == AFTER:
        near.add(AFTER)
    near |= {at + 1 for at in near if 0 <= at < layers - 1}
    return Target(layers=sorted(near), inputs=list(points), output=node.point, sequence=row[0], position=row[1])
