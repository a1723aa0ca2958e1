"""The frozen first units of a model: where they end, and the graph of what follows them.

What they make of a sample never changes, so that it can be computed once and read as data from then on (Ouyang et al.,
Pluto and Charon, arXiv:2408.10746, "activation cache"). Values behind the cut that depend on no weight, such as masks
and positions, are computed again; they are small to make and large to store.
"""

import dataclasses
from dataclasses import dataclass

from torch import nn

from fleetune.models import graph as g
from fleetune.models.units import crossing_values, state_by_unit

CACHED = "cached_{}"


@dataclass(frozen=True)
class FrozenPrefix:
    """Units [0, count) of a graph, which no training changes."""

    count: int
    cached: dict[str, int]
    """Name of an array -> the value that crosses the cut and is stored; each can be divided by samples."""


def frozen_prefix(graph: g.Graph, skeleton: nn.Module) -> FrozenPrefix | None:
    """Return the longest prefix whose results can be stored; None if the first unit is trained already.

    skeleton: the whole model on the meta device.
    """
    trained = {name for name, parameter in skeleton.named_parameters() if parameter.requires_grad}
    state = state_by_unit(graph, skeleton)
    frozen = 0
    while frozen < len(graph.units) - 1 and not trained & set(state[graph.units[frozen].name]):
        frozen += 1
    weighted = _weighted(graph, skeleton)
    for count in range(frozen, 0, -1):
        crossing = crossing_values(graph, graph.units[count - 1].nodes[-1])
        stored = [number for number in crossing if number in weighted]
        if stored and all(graph.batched(number) for number in stored):
            return FrozenPrefix(count, {CACHED.format(number): number for number in stored})
    return None


def without_prefix(graph: g.Graph, prefix: FrozenPrefix) -> g.Graph:
    """Return the graph of the other units, which reads what is stored as its inputs."""
    rest = graph.units[prefix.count :]
    crossing = crossing_values(graph, graph.units[prefix.count - 1].nodes[-1])
    again = _ancestors(graph, set(crossing) - set(prefix.cached.values()))
    kept = {number for unit in rest for number in unit.nodes} | again
    kept |= {read for number in kept for read in graph.node(number).reads if graph.node(read).kind == g.ATTRIBUTE}
    inputs = {name: number for name, number in graph.inputs.items() if number in kept}
    stored = {number: name for name, number in prefix.cached.items()}
    nodes = tuple(
        _as_input(node, stored[node.id]) if node.id in stored else node
        for node in graph.nodes
        if node.id in kept or node.id in stored
    )
    before = tuple(node.id for node in nodes if node.id in again and node.kind not in (g.INPUT, g.ATTRIBUTE))
    units = (dataclasses.replace(rest[0], nodes=(*before, *rest[0].nodes)), *rest[1:])
    return dataclasses.replace(graph, inputs={**inputs, **prefix.cached}, nodes=nodes, units=units)


def _as_input(node: g.Node, name: str) -> g.Node:
    assert node.value is not None, "what crosses a cut is one tensor"
    value = dataclasses.replace(node.value, gradient=False)
    return g.Node(id=node.id, kind=g.INPUT, target=name, args=(), kwargs={}, value=value)


def _weighted(graph: g.Graph, skeleton: nn.Module) -> set[int]:
    """Return the nodes whose values depend on a weight."""
    parameters = {name for name, _ in skeleton.named_parameters(remove_duplicate=False)}
    found: set[int] = set()
    for node in graph.nodes:
        own = node.kind == g.MODULE and any(True for _ in skeleton.get_submodule(node.target).parameters())
        read = node.kind == g.ATTRIBUTE and node.target in parameters
        if own or read or found.intersection(node.reads):
            found.add(node.id)
    return found


def _ancestors(graph: g.Graph, numbers: set[int]) -> set[int]:
    """Return these nodes and all that they are made of."""
    found: set[int] = set()
    left = list(numbers)
    while left:
        number = left.pop()
        if number not in found:
            found.add(number)
            left.extend(graph.node(number).reads)
    return found
