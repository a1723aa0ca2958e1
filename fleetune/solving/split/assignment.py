"""Assignments of clients to helpers within links and memory: first fit, then an exact CP-SAT packing."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fleetune.solving.split.instance import Instance

WORK = 120.0
"""Deterministic solver seconds of the exact search; enough for the hardest packings of 100 clients."""
SHORTEST_S = 0.02
"""Minimum solver time after the deadline."""


class Undecided(Exception):
    """The search found neither an assignment nor a proof that none exists."""


class PartialAssignment(NamedTuple):
    """Result of an exact search."""

    helper: list[int]
    """[client], -1 for a client that is left out."""
    proven: bool
    """True if no other assignment is better."""


def find_assignment(instance: Instance, left_s: float = math.inf) -> list[int] | None:
    """Return a helper per client so that all fit, or None if it is proven that no such assignment exists.

    Raises Undecided if neither is known after WORK deterministic seconds or `left_s` seconds.
    """
    for clients in _orders(instance):
        helper = _first_fit(instance, clients)
        if min(helper) >= 0:
            return helper
    packing = _PackingModel(instance)
    found = packing.solved(left_s=left_s)
    if found is None and not packing.impossible:
        raise Undecided
    return None if found is None else found.helper


def even_assignment(instance: Instance, left_s: float = math.inf) -> list[int] | None:
    """Return an assignment that minimises the largest number of clients per helper, or None if none was found."""
    packing = _PackingModel(instance)
    most = packing.model.new_int_var(0, instance.clients, "")
    for placed in packing.by_helper:
        packing.model.add(sum(here for _, here in placed) <= most)
    packing.model.minimize(most)
    found = packing.solved(work=5.0, left_s=left_s)
    return None if found is None else found.helper


def largest_assignment(instance: Instance, left_s: float = math.inf) -> PartialAssignment:
    """Assign as many clients as possible; at least as many as first fit does if work or time runs out."""
    packing = _PackingModel(instance, everyone=False)
    packing.model.maximize(sum(here for placed in packing.by_helper for _, here in placed))
    start = max(
        (_first_fit(instance, clients) for clients in _orders(instance)), key=lambda helper: sum(i >= 0 for i in helper)
    )
    for i, placed in enumerate(packing.by_helper):
        for j, here in placed:
            packing.model.add_hint(here, start[j] == i)
    found = packing.solved(left_s=left_s)
    if found is None or sum(i >= 0 for i in found.helper) < sum(i >= 0 for i in start):
        return PartialAssignment(start, False)
    return found


class _PackingModel:
    """CP-SAT model with one literal per link, within memory."""

    def __init__(self, instance: Instance, *, everyone: bool = True) -> None:
        from ortools.sat.python import cp_model

        self.instance, self.model = instance, cp_model.CpModel()
        self.impossible = False
        """True once infeasibility is proven."""
        by_client: list[list[Any]] = [[] for _ in range(instance.clients)]
        self.by_helper: list[list[tuple[int, Any]]] = [[] for _ in range(instance.helpers)]
        for i, j in np.argwhere(instance.linked).tolist():
            here = self.model.new_bool_var("")
            by_client[j].append(here)
            self.by_helper[i].append((j, here))
        for literals in by_client:
            (self.model.add_exactly_one if everyone else self.model.add_at_most_one)(literals)
        for i, placed in enumerate(self.by_helper):
            taken = sum(int(instance.client_memory[j]) * here for j, here in placed)
            self.model.add(taken <= int(instance.helper_memory[i]))

    def solved(self, work: float = WORK, left_s: float = math.inf) -> PartialAssignment | None:
        """Solve the model; None if no assignment was found."""
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = work
        if math.isfinite(left_s):
            solver.parameters.max_time_in_seconds = max(SHORTEST_S, left_s)
        status = solver.solve(self.model)
        self.impossible = status == cp_model.INFEASIBLE
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        helper = [-1] * self.instance.clients
        for i, placed in enumerate(self.by_helper):
            for j, here in placed:
                if solver.boolean_value(here):
                    helper[j] = i
        return PartialAssignment(helper, status == cp_model.OPTIMAL)


def _orders(instance: Instance) -> Iterable[list[int]]:
    """Yield client orders: fewest linked helpers first, then largest memory first."""
    choices, memory = instance.linked.sum(axis=0), instance.client_memory
    yield np.lexsort((-memory, choices)).tolist()
    yield np.lexsort((choices, -memory)).tolist()


def _first_fit(instance: Instance, clients: list[int]) -> list[int]:
    """Assign each client to the helper with the least memory left over (best fit), -1 if none has room."""
    left = instance.helper_memory.copy()
    helper = [-1] * instance.clients
    for j in clients:
        fitting = np.flatnonzero(instance.linked[:, j] & (left >= instance.client_memory[j]))
        if not fitting.size:
            continue
        i = int(fitting[np.argmin(left[fitting])])
        left[i] -= instance.client_memory[j]
        helper[j] = i
    return helper
