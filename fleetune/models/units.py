"""Folds a recorded model into units, and says what crosses a cut between two of them."""

import dataclasses

from fleetune.models import graph as g


def fold(graph: g.Graph) -> g.Graph:
    """The graph with units: each leaf module with the glue before it; glue after the last one stays with it.

    A unit is named after its last module. A module that runs twice makes two units, the second called NAME@2.
    Cuts never separate a call from the items of what it returned.
    """
    groups: list[list[g.Node]] = [[]]
    work = [node for node in graph.nodes if node.kind not in (g.INPUT, g.ATTRIBUTE)]
    for place, node in enumerate(work):
        groups[-1].append(node)
        following = work[place + 1] if place + 1 < len(work) else None
        has_module = any(n.kind == g.MODULE for n in groups[-1])
        more_modules = any(n.kind == g.MODULE for n in work[place + 1 :])
        if has_module and more_modules and (following is None or following.kind != g.ITEM):
            groups.append([])
    units: list[g.UnitNodes] = []
    used: dict[str, int] = {}
    for group in groups:
        name = next((n.target for n in reversed(group) if n.kind == g.MODULE), "model")
        used[name] = used.get(name, 0) + 1
        spelled = name if used[name] == 1 else f"{name}@{used[name]}"
        units.append(g.UnitNodes(name=spelled, nodes=tuple(node.id for node in group)))
    return dataclasses.replace(graph, units=tuple(units))


def merge_uncuttable(graph: g.Graph) -> g.Graph:
    """Join units between which no cut is possible, so that every border of units is a place to cut."""
    merged: list[g.UnitNodes] = []
    for unit in graph.units:
        if merged and not cuttable(graph, merged[-1].nodes[-1]):
            before = merged.pop()
            unit = g.UnitNodes(name=unit.name, nodes=before.nodes + unit.nodes)
        merged.append(unit)
    return dataclasses.replace(graph, units=tuple(merged))


def crossing(graph: g.Graph, last: int) -> tuple[int, ...]:
    """Values that a cut right after node `last` separates from a reader: made (or given) before, read after."""
    made = {node.id for node in graph.nodes if node.id <= last and node.kind != g.ATTRIBUTE}
    made.update(graph.inputs.values())
    read = {r for node in graph.nodes if node.id > last and node.kind != g.INPUT for r in node.reads}
    return tuple(sorted(made & read))


def cuttable(graph: g.Graph, last: int) -> bool:
    """Whether everything that would cross can be divided by samples, or is the same for all of them."""
    return all(graph.batched(value) is not None for value in crossing(graph, last))
