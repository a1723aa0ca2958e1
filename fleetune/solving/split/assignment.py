"""Assignments of clients to helpers within links and memory: first fit, then an exact CP-SAT packing.

`require_assignment` names who lacks what in an infeasible problem.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fleetune.arrays import Bools, Ints
from fleetune.errors import Infeasible, TryAgain
from fleetune.solving.limits import Deadline
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.problem import MATRICES, Problem
from fleetune.solving.validation import plural

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
    for clients in _client_orders(instance):
        helper = _first_fit(instance, clients)
        if min(helper) >= 0:
            return helper
    packing = _PackingModel(instance)
    found = packing.solve(left_s=left_s)
    if found is None and not packing.impossible:
        raise Undecided
    return None if found is None else found.helper


def even_assignment(instance: Instance, left_s: float = math.inf) -> list[int] | None:
    """Return an assignment that minimises the largest number of clients per helper, or None if none was found."""
    packing = _PackingModel(instance)
    most = packing.model.new_int_var(0, instance.clients, "")
    for i in range(instance.helpers):
        packing.model.add(sum(here for (k, _), here in packing.on.items() if k == i) <= most)
    packing.model.minimize(most)
    found = packing.solve(work=5.0, left_s=left_s)
    return None if found is None else found.helper


def largest_assignment(instance: Instance, left_s: float = math.inf) -> PartialAssignment:
    """Assign as many clients as possible; at least as many as first fit does if work or time runs out."""
    packing = _PackingModel(instance, everyone=False)
    packing.model.maximize(sum(packing.on.values()))
    greedy = [_first_fit(instance, clients) for clients in _client_orders(instance)]
    start = max(greedy, key=lambda helper: sum(i >= 0 for i in helper))
    for (i, j), here in packing.on.items():
        packing.model.add_hint(here, start[j] == i)
    found = packing.solve(left_s=left_s)
    if found is None or sum(i >= 0 for i in found.helper) < sum(i >= 0 for i in start):
        return PartialAssignment(start, False)
    return found


class _PackingModel:
    """CP-SAT model of an assignment within links and memory; everyone: no client may be left out."""

    def __init__(self, instance: Instance, *, everyone: bool = True) -> None:
        from ortools.sat.python import cp_model

        self.instance, self.model = instance, cp_model.CpModel()
        self.impossible = False
        """True once infeasibility is proven."""
        if everyone and not instance.linked.any(axis=0).all():
            self.model.add_bool_or([])
        memory = (instance.helper_memory, instance.client_memory)
        self.on = add_assignment(self.model, instance.linked, *memory, everyone=everyone)

    def solve(self, work: float = WORK, left_s: float = math.inf) -> PartialAssignment | None:
        """Solve the model; None if no assignment was found."""
        from ortools.sat.python import cp_model

        solver = new_solver(SolverLimit(work, left_s))
        status = solver.solve(self.model)
        self.impossible = status == cp_model.INFEASIBLE
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        helper = [-1] * self.instance.clients
        for (i, j), here in self.on.items():
            if solver.boolean_value(here):
                helper[j] = i
        return PartialAssignment(helper, status == cp_model.OPTIMAL)


def add_assignment(
    model: Any, opened: Bools, helper_memory: Ints, client_memory: Ints, *, everyone: bool = True
) -> dict[tuple[int, int], Any]:
    """Add an assignment to a CP-SAT model; return its literals by (helper, client), one per pair of `opened`.

    Each client with an open pair is on exactly one helper (everyone False: at most one), and memories are not exceeded.
    """
    on = {(i, j): model.new_bool_var("") for i, j in np.argwhere(opened).tolist()}
    for j in np.flatnonzero(opened.any(axis=0)).tolist():
        literals = [on[i, j] for i in np.flatnonzero(opened[:, j]).tolist()]
        (model.add_exactly_one if everyone else model.add_at_most_one)(literals)
    for i in np.flatnonzero(opened.any(axis=1)).tolist():
        taken = sum(int(client_memory[j]) * on[i, j] for j in np.flatnonzero(opened[i]).tolist())
        model.add(taken <= int(helper_memory[i]))
    return on


class SolverLimit(NamedTuple):
    """Limits of one CP-SAT call; it ends at the first that is reached."""

    work: float
    """Deterministic seconds: a measure of work, the same on every machine."""
    left_s: float = math.inf
    """Seconds of wall-clock time."""


def new_solver(limit: SolverLimit, *, seed: int | None = None) -> Any:
    """Return a CP-SAT solver on one thread; seed None takes the solver's own."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = limit.work
    if seed is not None:
        solver.parameters.random_seed = seed % 2**31
    if math.isfinite(limit.left_s):
        solver.parameters.max_time_in_seconds = max(SHORTEST_S, limit.left_s)
    return solver


def _client_orders(instance: Instance) -> Iterable[list[int]]:
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


MAX_NAMED = 5
"""Items named in one sentence."""
MORE = "give a helper more memory, add one, or take part 2 of the clients smaller (other cut layers)"
NAMING_S = 0.1
"""Minimum seconds for naming the clients left over, after the deadline."""


def require_assignment(instance: Instance, problem: Problem, deadline: Deadline | None = None) -> list[int]:
    """Return a helper per client; Infeasible names who lacks what, unless all fit within links and memory.

    Checked in this order: a client without a link; a client that exceeds every linked helper's memory; total memory;
    else the clients left over when as many as possible are assigned. Raises TryAgain if time runs out before an answer
    is known.
    """
    deadline = deadline or Deadline(None)
    for client in np.flatnonzero(~instance.linked.any(axis=0)).tolist():
        raise Infeasible(_no_helper_alone(problem, client))
    total, have = int(instance.client_memory.sum()), int(instance.helper_memory.sum())
    if total > have:
        need, room = sum(problem.client_memory), sum(problem.helper_memory)
        raise Infeasible(
            f"all helpers together lack {_number(need - room)} of memory ({_number(need)} of {_number(room)}); "
            f"{_largest(problem)}; {MORE}"
        )
    try:
        feasible = find_assignment(instance, deadline.left_s())
    except Undecided:
        if deadline.limited:
            raise TryAgain(
                "time limit: found neither an assignment of the clients that fits all memories, nor a proof that none "
                f"exists ({_largest(problem)}); give more time, or no limit"
            ) from None
        raise Infeasible(
            f"found no assignment of the clients to helpers that fits all memories, and no proof that none exists "
            f"({_largest(problem)}); {MORE}"
        ) from None
    if feasible is None:
        raise Infeasible(_leftover_message(instance, problem, max(NAMING_S, deadline.left_s())))
    return feasible


def _largest(problem: Problem) -> str:
    """Name the helper with the most memory and the client that needs most."""
    helper, client = (max(range(len(x)), key=x.__getitem__) for x in (problem.helper_memory, problem.client_memory))
    return (
        f"helper {helper}, the roomiest, has {_number(problem.helper_memory[helper])}, "
        f"client {client}, the largest, needs {_number(problem.client_memory[client])}"
    )


def _no_helper_alone(problem: Problem, client: int) -> str:
    """Describe a client that fits no helper by itself, for lack of links or of memory."""
    given = [getattr(problem, field) for field in MATRICES]
    reached = [i for i in range(len(problem.helper_memory)) if all(rows[i][client] is not None for rows in given)]
    if not reached:
        return (
            f"client {client} has no link to any helper: each has null for it in some matrix; give the times of at "
            "least one, or leave the client out"
        )
    roomiest = max(reached, key=lambda i: problem.helper_memory[i])
    need, room = problem.client_memory[client], problem.helper_memory[roomiest]
    return (
        f"client {client} lacks {_number(need - room)} of memory on helper {roomiest}, the roomiest it has a link to "
        f"({_number(need)} of {_number(room)}); {MORE}"
    )


def _leftover_message(instance: Instance, problem: Problem, left_s: float) -> str:
    nearest = largest_assignment(instance, left_s)
    out = [j for j, i in enumerate(nearest.helper) if i < 0]
    left = list(problem.helper_memory)
    for j, i in enumerate(nearest.helper):
        if i >= 0:
            left[i] -= problem.client_memory[j]
    first = out[0]
    reached = np.flatnonzero(instance.linked[:, first]).tolist()
    roomiest = max(reached, key=lambda i: left[i])
    most = f"at most {len(nearest.helper) - len(out)} of {plural(len(nearest.helper), 'client')}"
    return (
        f"{most if nearest.proven else 'not all clients'} fit the memories and links together: without "
        f"{_named('client', out)}, helper {roomiest} has the most memory left of those that client {first} reaches, "
        f"and lacks {_number(problem.client_memory[first] - left[roomiest])} for it "
        f"({_number(problem.client_memory[first])} of {_number(left[roomiest])}); {MORE}"
    )


def _named(noun: str, indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"{noun} {indices[0]}"
    return f"{noun}s {_join(indices[:MAX_NAMED])}" + (" and others" if len(indices) > MAX_NAMED else "")


def _join(indices: Iterable[int]) -> str:
    return ", ".join(map(str, indices))


def _number(value: float) -> str:
    """Format a number without rounding noise: `3`, `0.3`."""
    return f"{value:.12g}" if abs(value) < 1e12 else f"{value:.0f}"
