"""The graph of operators: validation, topological orders and connected components.

Graphs are lists of neighbours by index. networkx is imported by the functions that use it, so that listing the kinds
stays fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fleetune.errors import Refused

if TYPE_CHECKING:
    from networkx import DiGraph

Edges = list[list[int]]
"""[operator], indices of its inputs or of its users."""
LONGEST_CYCLE = 8
"""Names of a cycle that a message lists in full."""


def validate_graph(names: Sequence[str], inputs: Sequence[Sequence[str]]) -> None:
    """Refuse unknown inputs, inputs given twice, and cycles, by name."""
    from networkx import find_cycle, is_directed_acyclic_graph

    known = set(names)
    for name, wanted in zip(names, inputs, strict=True):
        seen: set[str] = set()
        for one in wanted:
            if one not in known:
                raise Refused(f"inputs of operator {name}: {one!r} is not an operator; give names of operators")
            if one in seen:
                raise Refused(f"inputs of operator {name}: {one!r} is given twice; give each input once")
            seen.add(one)
    graph = _directed(indexed(names, inputs))
    if not is_directed_acyclic_graph(graph):
        shown = [names[source] for source, _ in find_cycle(graph)]
        shown.append(shown[0])
        cycle = " -> ".join(shown if len(shown) <= LONGEST_CYCLE else [*shown[:4], "...", *shown[-3:]])
        raise Refused(f"operators: {cycle} is a cycle; an input must not need its user")


def indexed(names: Sequence[str], inputs: Sequence[Sequence[str]]) -> Edges:
    """Return [operator] the indices of its inputs."""
    index = {name: i for i, name in enumerate(names)}
    return [[index[one] for one in wanted] for wanted in inputs]


def users_of(parents: Edges) -> Edges:
    """Return [operator] the operators that read its output, ascending."""
    users: Edges = [[] for _ in parents]
    for user, wanted in enumerate(parents):
        for one in wanted:
            users[one].append(user)
    return users


def topological(parents: Edges) -> list[int]:
    """Return the lexicographically first topological order of an acyclic graph."""
    from networkx import lexicographical_topological_sort

    return list(lexicographical_topological_sort(_directed(parents)))


def depth_first(parents: Edges) -> list[int]:
    """Return a topological order that follows each branch to its end, so that few outputs wait at a time."""
    users, missing = users_of(parents), [len(wanted) for wanted in parents]
    stack = [i for i in range(len(parents) - 1, -1, -1) if missing[i] == 0]
    order = []
    while stack:
        at = stack.pop()
        order.append(at)
        for user in reversed(users[at]):
            missing[user] -= 1
            if missing[user] == 0:
                stack.append(user)
    return order


def components(members: Sequence[int], parents: Edges) -> list[list[int]]:
    """Return the weakly connected components of the subgraph of `members`, each ascending, the largest first.

    Plain loops: several times as fast as networkx, and OP-Fence calls this for every placement that it ranks.
    """
    neighbours: dict[int, list[int]] = {i: [] for i in members}
    for user in members:
        for one in parents[user]:
            if one in neighbours:
                neighbours[user].append(one)
                neighbours[one].append(user)
    found, seen = [], set[int]()
    for start in neighbours:
        if start in seen:
            continue
        part, stack = [], [start]
        seen.add(start)
        while stack:
            at = stack.pop()
            part.append(at)
            fresh = [other for other in neighbours[at] if other not in seen]
            seen.update(fresh)
            stack += fresh
        found.append(sorted(part))
    return sorted(found, key=lambda part: (-len(part), part[0]))


def _directed(parents: Edges) -> DiGraph:
    """Return the graph with edges from inputs to users."""
    from networkx import DiGraph

    graph = DiGraph()
    graph.add_nodes_from(range(len(parents)))
    graph.add_edges_from((one, user) for user, wanted in enumerate(parents) for one in wanted)
    return graph
