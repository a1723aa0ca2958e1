"""The two sub-problems of ADMM as integer programs (Tirana et al., INFOCOM 2024, Algorithm 1, lines 2 and 3).

Both minimise the augmented Lagrangian of eq. (16), doubled so that rho / 2 is whole. With binary y and eq. (20) its
absolute values are linear: |n - y p| is n if y = 0, and p - n if y = 1.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fleetune.solving.split.instance import Bools, Ints
from fleetune.solving.split.preemptive import Job, minimise_max_cost
from fleetune.solving.split.schedule import SearchOptions

WORK = 2.0
"""Deterministic solver seconds per sub-problem."""
SHORTEST_S = 0.05
"""Minimum solver time after the deadline."""
MAX_MULTIPLE = 2**31
"""Limit of the common multiple that makes eq. (20) integral; above it, a client goes to one helper as a whole."""


class ForwardProblem(NamedTuple):
    """Problem 2 in slots: forward tasks and assignment. Arrays are [helper, client]."""

    release: Ints
    """r"""
    length: Ints
    """p"""
    tail: Ints
    """l"""
    linked: Bools
    helper_memory: Ints
    client_memory: Ints
    grid: int = 1
    """Granularity of windows, in slots."""


class Multipliers(NamedTuple):
    """State of Algorithm 1."""

    y: Ints
    """[helper, client], 1 where assigned."""
    dual: Ints
    """lambda, [helper, client]."""
    rho: int


class Window(NamedTuple):
    """Interval [start, makespan - tail) of a helper that contains all its slots for `clients`."""

    start: int
    tail: int
    clients: list[int]


def windows(release: Sequence[int], tail: Sequence[int], clients: Sequence[int], grid: int = 1) -> Iterator[Window]:
    """Yield the windows of one helper; its preemptive schedule meets the makespan if and only if each window has room.

    Source: W. Horn, "Some simple scheduling algorithms", Naval Research Logistics Quarterly 21, 1974: between each
    release and each deadline there is room for the jobs that must lie between them. Each set of clients appears once.
    grid: clients whose releases, or tails, fall into the same multiple of it share windows; above 1 some windows are
    omitted.
    """
    for least in sorted({tail[j] // grid for j in clients}):
        among = sorted((j for j in clients if tail[j] // grid >= least), key=lambda j: (-release[j], j))
        shortest = among[0]
        for last, j in enumerate(among):
            shortest = min(shortest, j, key=lambda k: tail[k])
            if last + 1 < len(among) and release[among[last + 1]] // grid == release[j] // grid:
                continue
            if tail[shortest] // grid == least:
                yield Window(release[j], tail[shortest], among[: last + 1])


class Amounts:
    """Model variables: slots that each helper gives each linked client, between 0 and p."""

    def __init__(self, model: Any, forward: ForwardProblem) -> None:
        self.model = model
        self.given: dict[tuple[int, int], Any] = {}
        self.some: dict[tuple[int, int], Any] = {}
        for i, j in np.argwhere(forward.linked).tolist():
            p = int(forward.length[i, j])
            self.given[i, j], self.some[i, j] = model.new_int_var(0, p, ""), model.new_bool_var("")
            model.add(self.given[i, j] <= p * self.some[i, j])
            model.add(self.given[i, j] >= self.some[i, j])
        for j in range(forward.length.shape[1]):
            self._make_one_whole(forward, j)

    def _make_one_whole(self, forward: ForwardProblem, client: int) -> None:
        """Add eq. (20): the shares of the client's forward task add up to 1."""
        lengths = {i: int(forward.length[i, client]) for i in np.flatnonzero(forward.linked[:, client]).tolist()}
        multiple = math.lcm(*lengths.values())
        if multiple <= MAX_MULTIPLE:
            self.model.add(sum(multiple // p * self.given[i, client] for i, p in lengths.items()) == multiple)
            return
        self.model.add_exactly_one(self.some[i, client] for i in lengths)
        for i, p in lengths.items():
            self.model.add(self.given[i, client] == p * self.some[i, client])

    def fit(self, helper: int, window: Window, makespan: Any, least: int) -> None:
        """Require room in the window for its clients; an unused window may be empty or start after the makespan."""
        lies = sum(self.given[helper, j] for j in window.clients) + window.start + window.tail <= makespan
        if window.start + window.tail <= least:
            self.model.add(lies)
            return
        used = self.model.new_bool_var("")
        for j in window.clients:
            self.model.add_implication(self.some[helper, j], used)
        self.model.add(lies).only_enforce_if(used)

    def hint(self, values: Ints) -> None:
        """Add these amounts as a hint."""
        for pair, amount in self.given.items():
            self.model.add_hint(amount, int(values[pair]))
            self.model.add_hint(self.some[pair], bool(values[pair]))


def solve_schedule(
    forward: ForwardProblem, at: Multipliers, options: SearchOptions, start: Ints | None
) -> tuple[Ints, int]:
    """Solve line 2: return slots [helper, client] and max c^f, given y and lambda.

    start: amounts to use as a hint. The slots themselves follow from the amounts by earliest deadline first.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    amounts = Amounts(model, forward)
    tail = (at.y * forward.tail).sum(axis=0)
    least, longest = _least(forward, tail), forward.length.max(axis=0).sum()
    makespan = model.new_int_var(least, int(forward.release.max() + tail.max() + longest), "")
    for i, linked in enumerate(forward.linked):
        clients = np.flatnonzero(linked).tolist()
        for window in windows(forward.release[i].tolist(), tail.tolist(), clients, forward.grid):
            amounts.fit(i, window, makespan, least)
    cost = 2 * at.dual + at.rho * (1 - 2 * at.y)
    model.minimize(2 * makespan + sum(int(cost[pair]) * amount for pair, amount in amounts.given.items()))
    found = _greedy(forward) if start is None else start
    amounts.hint(found)
    model.add_hint(makespan, forward_makespan(forward, tail, found))
    solver = _solver(options)
    if solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        found = np.zeros_like(at.y)
        for pair, amount in amounts.given.items():
            found[pair] = solver.value(amount)
    return found, forward_makespan(forward, tail, found)


def solve_assignment(forward: ForwardProblem, amounts: Ints, at: Multipliers, options: SearchOptions) -> Ints:
    """Solve line 3: return y [helper, client] within memory, given the amounts and lambda; `at.y` if work ran out."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    cost = at.rho * (np.abs(amounts - forward.length) - amounts) - 2 * at.dual * forward.length
    chosen = {pair: model.new_bool_var("") for pair in map(tuple, np.argwhere(forward.linked).tolist())}
    for j in range(amounts.shape[1]):
        model.add_exactly_one(here for (_, k), here in chosen.items() if k == j)
    for i, memory in enumerate(forward.helper_memory.tolist()):
        model.add(sum(int(forward.client_memory[j]) * here for (h, j), here in chosen.items() if h == i) <= memory)
    model.minimize(sum(int(cost[pair]) * here for pair, here in chosen.items()))
    solver = _solver(options)
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return at.y
    y = np.zeros_like(at.y)
    for pair, here in chosen.items():
        y[pair] = solver.boolean_value(here)
    return y


def forward_makespan(forward: ForwardProblem, tail: Ints, amounts: Ints) -> int:
    """Return max c^f of the best schedule of these amounts; tail: [client], time after the last slot."""
    longest = 0
    for i in range(amounts.shape[0]):
        clients = np.flatnonzero(amounts[i]).tolist()
        jobs = [Job(int(forward.release[i, j]), int(amounts[i, j]), int(tail[j])) for j in clients]
        for job, spans in zip(jobs, minimise_max_cost(jobs), strict=True):
            longest = max(longest, max(end for _, end in spans) + job.tail)
    return longest


def _least(forward: ForwardProblem, tail: Ints) -> int:
    """Return a lower bound on max c^f: each client gets a slot after its earliest release."""
    earliest = np.where(forward.linked, forward.release, np.iinfo(np.int64).max).min(axis=0)
    return int((earliest + 1 + tail).max())


def _greedy(forward: ForwardProblem) -> Ints:
    """Give each whole forward task to the helper that finishes it first, by release order; ignores memory."""
    amounts, free = np.zeros_like(forward.length), np.zeros(forward.length.shape[0], np.int64)
    for j in np.argsort(np.where(forward.linked, forward.release, 2**62).min(axis=0), kind="stable").tolist():
        ends = np.where(forward.linked[:, j], np.maximum(free, forward.release[:, j]) + forward.length[:, j], 2**62)
        i = int(np.argmin(ends))
        amounts[i, j], free[i] = forward.length[i, j], ends[i]
    return amounts


def _solver(options: SearchOptions) -> Any:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = options.seed % 2**31
    solver.parameters.max_deterministic_time = WORK
    if options.time_limit_s is not None:
        solver.parameters.max_time_in_seconds = max(SHORTEST_S, options.time_limit_s)
    return solver
