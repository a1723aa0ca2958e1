"""The graph of operators: proven to have no cycle, and put in an order in which every input comes before its users."""

import heapq
from collections.abc import Sequence

from fleetune.errors import Refused

Edges = list[list[int]]
"""Of every operator, others by index."""


def validate_graph(names: Sequence[str], inputs: Sequence[Sequence[str]]) -> None:
    """Refuse inputs that are unknown or given twice, and cycles, by name."""
    known = set(names)
    for name, wanted in zip(names, inputs, strict=True):
        seen: set[str] = set()
        for one in wanted:
            if one not in known:
                raise Refused(f"inputs of operator {name}: {one!r} is not an operator; give names of operators")
            if one in seen:
                raise Refused(f"inputs of operator {name}: {one!r} is given twice; give each input once")
            seen.add(one)
    parents = indexed(names, inputs)
    order = topological(parents)
    if len(order) < len(names):
        raise Refused(f"operators: {_cycle(names, parents, set(order))} is a cycle; an input must not need its user")


def indexed(names: Sequence[str], inputs: Sequence[Sequence[str]]) -> Edges:
    """Inputs by index."""
    index = {name: i for i, name in enumerate(names)}
    return [[index[one] for one in wanted] for wanted in inputs]


def users_of(parents: Edges) -> Edges:
    """Of every operator, who reads its output, ascending."""
    users: Edges = [[] for _ in parents]
    for user, wanted in enumerate(parents):
        for one in wanted:
            users[one].append(user)
    return users


def topological(parents: Edges) -> list[int]:
    """Indices with inputs first, otherwise as given; those on or behind a cycle are left out."""
    users, missing = users_of(parents), [len(wanted) for wanted in parents]
    ready = [i for i, count in enumerate(missing) if count == 0]
    order = []
    while ready:
        at = heapq.heappop(ready)
        order.append(at)
        for user in users[at]:
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, user)
    return order


def depth_first(parents: Edges) -> list[int]:
    """Indices with inputs first, following a branch to its end before the next is begun: few outputs wait at a time."""
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
    """The weakly connected parts of what `members` span, each ascending, the largest first."""
    inside = set(members)
    neighbours: dict[int, list[int]] = {i: [] for i in members}
    for user in members:
        for one in parents[user]:
            if one in inside:
                neighbours[user].append(one)
                neighbours[one].append(user)
    found, seen = [], set[int]()
    for start in sorted(members):
        if start in seen:
            continue
        part, stack = [], [start]
        seen.add(start)
        while stack:
            at = stack.pop()
            part.append(at)
            for other in neighbours[at]:
                if other not in seen:
                    seen.add(other)
                    stack.append(other)
        found.append(sorted(part))
    return sorted(found, key=lambda part: (-len(part), part[0]))


def _cycle(names: Sequence[str], parents: Edges, done: set[int]) -> str:
    """`a -> b -> a`: one cycle among those that could not be ordered, from input to user."""
    at = min(i for i in range(len(names)) if i not in done)
    walked: dict[int, int] = {}
    trail: list[int] = []
    while at not in walked:
        walked[at] = len(trail)
        trail.append(at)
        at = next(one for one in parents[at] if one not in done)
    cycle = [*trail[walked[at] :], at]
    shown = [names[i] for i in reversed(cycle)]
    return " -> ".join(shown if len(shown) <= 8 else [*shown[:4], "...", *shown[-3:]])
