"""What a person reads: the census as a table, the plan in a few lines, and what a slice leaves untested. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from bitgate.tools.slice.census import Census, Module, shown
from bitgate.tools.slice.family import Model
from bitgate.tools.slice.operators import OPERATORS
from bitgate.tools.slice.plan import Plan, ranges

COLUMNS: Final = ("operator", "precision", "parallel role", "layers", "modules", "example")


def census_rows(census: Census) -> list[tuple[str, ...]]:
    """One row for each operator, precision and role, in the order of the operator table."""
    groups: dict[tuple[str, str, str], list[Module]] = defaultdict(list)
    for module in census.modules:
        groups[module.operator, module.precision, module.role].append(module)
    order = {name: number for number, name in enumerate(OPERATORS)}

    def rank(key: tuple[str, str, str]) -> tuple[int, tuple[str, str, str]]:
        return order.get(key[0].partition(":")[0], len(order)), key

    return [
        (*key, layers_text(found), str(sum(item.count for item in found)), found[0].path)
        for key, found in sorted(groups.items(), key=lambda item: rank(item[0]))
    ]


def layers_text(modules: Iterable[Module]) -> str:
    numbers = sorted({item.layer for item in modules if item.layer is not None})
    return ranges(numbers) or "-"


def table(rows: Sequence[Sequence[str]], columns: Sequence[str] = COLUMNS) -> str:
    """Plain text in columns; cells come from the files of others, so what does not print is escaped."""
    rows = [[shown(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    lines = [columns, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def layer_classes(census: Census) -> dict[str, str]:
    """Each class of layers and where it occurs."""
    places: dict[str, list[int]] = defaultdict(list)
    for number, item in enumerate(census.layers):
        places[f"{item.name} [{', '.join(item.precisions)}]"].append(number)
    return {name: ranges(numbers) for name, numbers in places.items()}


def census_text(model: Model, census: Census) -> str:
    head = (
        f"{model.family.names[0]}, {model.total} layers, {len({item.name for item in census.layers})} layer classes\n"
    )
    classes = table([(name, where) for name, where in layer_classes(census).items()], ("layer class", "layers"))
    unknown = "".join(f"\nunknown: {name}" for name in (*census.unknown, *census.unknown_keys))
    return f"{head}\n{classes}\n\n{table(census_rows(census))}{unknown}\n"


def untested(
    model: Model, plan: Plan, window_run: bool, too_long: Mapping[str, int], not_loaded: Mapping[str, str]
) -> list[str]:
    """What no proof on this slice can show about the full model."""
    found = [
        f"depth: {model.total - len(plan.kept)} of {model.total} layers, and how error grows over them",
        "long context: sequences longer than those run, and what changes with them (rope scaling, index top-k, chunks)",
        "layouts over several devices: tensor, expert, pipeline and context parallelism",
        "routing statistics: experts see other inputs than in the full model",
    ]
    found += [f"sequences past {name} = {length} tokens" for name, length in too_long.items()]
    found += [f"adjacency {left} -> {right} exists only in the slice" for left, right in plan.synthetic]
    found += [
        f"adjacent pair {left} -> {right} of the full model is not in the slice" for left, right in plan.pairs_missed
    ]
    found += [f"layer class {name} is not in the slice" for name in plan.classes_missed]
    found += [f"loading in {engine}: {why}" for engine, why in not_loaded.items()]
    found += [] if window_run else ["equality of the computation with the full model's (bytes are equal)"]
    return [*found, *model.family.notes]
