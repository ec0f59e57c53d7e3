"""Which layers to keep: the shortest contiguous window that covers every layer class and every adjacent pair.

Pairs are pairs of kinds; classes also tell precision and modules apart. Pure: works on a census.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bitgate.tools.slice.census import Census, LayerClass
from bitgate.tools.slice.family import Kind, Model, rewritten
from bitgate.tools.slice.keys import Selection
from bitgate.tools.slice.refusal import NEEDS_MORE_LAYERS, NOT_EXPRESSIBLE, Refusal

DEFAULT_LIMIT: Final = 6
Pair = tuple[Kind, Kind]


@dataclass(frozen=True)
class Plan:
    """`chosen` is the window or the user's pick; `closure` what it depends on; `kept` both, ascending.

    `synthetic` are the neighbours in the slice that are not neighbours in the full model: (left, right), where
    "embedding" and "final norm" stand for the ends.
    """

    selection: Selection
    chosen: tuple[int, ...]
    closure: tuple[int, ...]
    synthetic: tuple[tuple[str, str], ...]
    classes_missed: tuple[str, ...]
    pairs_missed: tuple[tuple[str, str], ...]
    by_user: bool

    @property
    def kept(self) -> tuple[int, ...]:
        return self.selection.kept

    @property
    def contiguous(self) -> bool:
        return self.selection.contiguous

    @property
    def injections(self) -> tuple[int, ...]:
        """New numbers of the layers whose input is not what the layer before them in the slice gives."""
        kept = self.kept
        return tuple(new for new, old in enumerate(kept) if old != (kept[new - 1] + 1 if new else 0))


def ranges(numbers: Sequence[int]) -> str:
    """`0-3, 7`."""
    parts: list[str] = []
    start = 0
    for place, number in enumerate(numbers):
        if place + 1 == len(numbers) or numbers[place + 1] != number + 1:
            first = numbers[start]
            parts.append(str(first) if first == number else f"{first}-{number}")
            start = place + 1
    return ", ".join(parts)


def make_plan(model: Model, census: Census, layers: Sequence[int] | None = None, limit: int = DEFAULT_LIMIT) -> Plan:
    """The plan for the user's `layers`, or for the shortest window.

    Raises:
        Refusal: the model needs more layers than `limit`, or its configuration cannot describe the pick.
    """
    needs = closure_of(model)
    if layers is None:
        chosen = _shortest(model, census, needs, limit)
    else:
        chosen = tuple(sorted(set(layers)))
        rewritten(model, Selection(closed(chosen, needs), model.total))
    kept = closed(chosen, needs)
    return _described(census, Selection(kept, model.total), chosen, layers is not None)


def closure_of(model: Model) -> Callable[[int], tuple[int, ...]]:
    needed = model.family.needs(model.text, list(model.kinds))
    return lambda layer: needed.get(layer, ())


def closed(layers: Iterable[int], needs: Callable[[int], tuple[int, ...]]) -> tuple[int, ...]:
    """The layers with everything that they read from, ascending."""
    found: set[int] = set()
    todo = list(layers)
    while todo:
        layer = todo.pop()
        if layer not in found:
            found.add(layer)
            todo.extend(needs(layer))
    return tuple(sorted(found))


def pairs_of(layers: Sequence[LayerClass]) -> set[Pair]:
    return {(left.kind, right.kind) for left, right in zip(layers, layers[1:], strict=False)}


def _shortest(model: Model, census: Census, needs: Callable[[int], tuple[int, ...]], limit: int) -> tuple[int, ...]:
    """Growing windows; the first that covers everything, once what it depends on is counted, wins."""
    layers = census.layers
    names, pairs = {item.name for item in layers}, pairs_of(layers)
    lengths = _covering_lengths(layers)
    best: tuple[int, ...] | None = None
    problem = ""
    for length in range(1, len(layers) + 1):
        if best is not None and length >= len(closed(best, needs)):
            break
        for start in (at for at, needed in enumerate(lengths) if needed <= length <= len(layers) - at):
            window = tuple(range(start, start + length))
            kept = closed(window, needs)
            if best is not None and len(kept) >= len(closed(best, needs)):
                continue
            try:
                rewritten(model, Selection(kept, model.total))
            except Refusal as refusal:
                problem = refusal.detail
                continue
            best = window
    return _within(best, needs, limit, problem, len(names), len(pairs))


def _covering_lengths(layers: Sequence[LayerClass]) -> list[int]:
    """For each first layer, how long a window from there must be to cover every class and pair, while one can be."""
    marks = [
        (item.name, (item.kind, layers[place + 1].kind) if place + 1 < len(layers) else None)
        for place, item in enumerate(layers)
    ]
    wanted = len({item.name for item in layers}) + len(pairs_of(layers))
    inside: Counter[object] = Counter()
    found: list[int] = []
    end = 0
    for start in range(len(layers)):
        while len(inside) < wanted and end < len(layers):
            inside[marks[end][0]] += 1
            if end > start:
                inside[marks[end - 1][1]] += 1
            end += 1
        if len(inside) < wanted:
            break
        found.append(end - start)
        _leave(inside, marks[start][0])
        if end - start > 1:
            _leave(inside, marks[start][1])
    return found


def _leave(inside: Counter[object], mark: object) -> None:
    inside[mark] -= 1
    if not inside[mark]:
        del inside[mark]


def _within(
    best: tuple[int, ...] | None,
    needs: Callable[[int], tuple[int, ...]],
    limit: int,
    problem: str,
    classes: int,
    pairs: int,
) -> tuple[int, ...]:
    if best is None:
        raise Refusal(NOT_EXPRESSIBLE, problem or "no window of layers can be described by the configuration")
    size = len(closed(best, needs))
    if size > limit:
        raise Refusal(
            NEEDS_MORE_LAYERS,
            f"this model needs {size} layers ({ranges(closed(best, needs))}) to show its {classes} layer "
            f"classes and {pairs} adjacent pairs; the limit is {limit}: pass max_layers={size}, or name `layers`",
        )
    return best


def _described(census: Census, sel: Selection, chosen: tuple[int, ...], by_user: bool) -> Plan:
    layers, kept = census.layers, [census.layers[i] for i in sel.kept]
    real = {(a, b) for a, b in zip(sel.kept, sel.kept[1:], strict=False) if b == a + 1}
    covered = {(layers[a].kind, layers[b].kind) for a, b in real}
    missed = sorted({item.name for item in layers} - {item.name for item in kept})
    pairs = sorted(("+".join(a), "+".join(b)) for a, b in pairs_of(layers) - covered)
    closure = tuple(layer for layer in sel.kept if layer not in chosen)
    return Plan(sel, chosen, closure, _synthetic(layers, sel), tuple(missed), tuple(pairs), by_user)


def _synthetic(layers: Sequence[LayerClass], sel: Selection) -> tuple[tuple[str, str], ...]:
    kept = sel.kept
    found = [] if kept[0] == 0 else [("embedding", f"layer {kept[0]} ({layers[kept[0]].name})")]
    found += [
        (f"layer {a} ({layers[a].name})", f"layer {b} ({layers[b].name})")
        for a, b in zip(kept, kept[1:], strict=False)
        if b != a + 1
    ]
    last = kept[-1]
    return tuple(found if last == sel.total - 1 else [*found, (f"layer {last} ({layers[last].name})", "final norm")])
