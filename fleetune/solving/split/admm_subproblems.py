"""The two sub-problems of ADMM (Tirana et al., INFOCOM 2024, Algorithm 1, lines 2 and 3) as integer programs.

Both minimise the augmented Lagrangian of eq. (16), doubled so that rho / 2 is whole. With y whole and eq. (20) its
absolute values are linear: |n - y p| is n where y = 0, and p - n where y = 1.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fleetune.solving.split.candidate import SearchOptions
from fleetune.solving.split.instance import Bools, Ints
from fleetune.solving.split.preemptive import Job, minimise_max_cost

WORK = 2.0
"""Of one sub-problem, in the solver's deterministic seconds."""
SHORTEST_S = 0.05
"""What the solver is given where the clock has run out."""
MAX_MULTIPLE = 2**31
"""Of eq. (20) brought to whole numbers; a client beyond it is given to one helper whole."""


class ForwardProblem(NamedTuple):
    """Problem 2 in slots, [helper, client]: forwards and assignment."""

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
    """Of windows, in slots."""


class Multipliers(NamedTuple):
    """Where Algorithm 1 stands."""

    y: Ints
    """[helper, client] 1: assigned."""
    dual: Ints
    """lambda [helper, client]"""
    rho: int


class Window(NamedTuple):
    """On one helper: all that it gives to `clients` must lie in [start, makespan - tail)."""

    start: int
    tail: int
    clients: list[int]


def windows(release: Sequence[int], tail: Sequence[int], clients: Sequence[int], grid: int = 1) -> Iterator[Window]:
    """Those that amounts have to fit into: just then a preemptive schedule of one helper ends by the makespan.

    (W. Horn, "Some simple scheduling algorithms", Naval Research Logistics Quarterly 21, 1974: between each release and
    each deadline there is room for the jobs that must lie between them.) Each set of clients once. grid: clients whose
    releases, or tails, are in the same multiple of it are told apart by no window; above 1 some windows are left out.
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
    """How many slots each helper gives each client, as variables of a model: at most p, none without a link."""

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
        """Eq. (20): the parts of the client's forward that are given to it are all of it."""
        lengths = {i: int(forward.length[i, client]) for i in np.flatnonzero(forward.linked[:, client]).tolist()}
        multiple = math.lcm(*lengths.values())
        if multiple <= MAX_MULTIPLE:
            self.model.add(sum(multiple // p * self.given[i, client] for i, p in lengths.items()) == multiple)
            return
        self.model.add_exactly_one(self.some[i, client] for i in lengths)
        for i, p in lengths.items():
            self.model.add(self.given[i, client] == p * self.some[i, client])

    def fit(self, helper: int, window: Window, makespan: Any, least: int) -> None:
        """The window holds what lies in it; where nothing does it may be empty, or the makespan before its start."""
        lies = sum(self.given[helper, j] for j in window.clients) + window.start + window.tail <= makespan
        if window.start + window.tail <= least:
            self.model.add(lies)
            return
        used = self.model.new_bool_var("")
        for j in window.clients:
            self.model.add_implication(self.some[helper, j], used)
        self.model.add(lies).only_enforce_if(used)

    def hint(self, values: Ints) -> None:
        """Begin from these."""
        for pair, amount in self.given.items():
            self.model.add_hint(amount, int(values[pair]))
            self.model.add_hint(self.some[pair], bool(values[pair]))


def solve_schedule(
    forward: ForwardProblem, at: Multipliers, effort: SearchOptions, start: Ints | None
) -> tuple[Ints, int]:
    """Line 2: how many slots each helper gives each client, and max c^f, given y and lambda.

    start: amounts to begin from. The slots themselves follow from the amounts, by earliest deadline first.
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
    solver = _solver(effort)
    if solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        found = np.zeros_like(at.y)
        for pair, amount in amounts.given.items():
            found[pair] = solver.value(amount)
    return found, forward_makespan(forward, tail, found)


def solve_assignment(forward: ForwardProblem, amounts: Ints, at: Multipliers, effort: SearchOptions) -> Ints:
    """Line 3: y [helper, client] within memory, given the amounts and lambda; `at.y` where work ran out."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    cost = at.rho * (np.abs(amounts - forward.length) - amounts) - 2 * at.dual * forward.length
    chosen = {pair: model.new_bool_var("") for pair in map(tuple, np.argwhere(forward.linked).tolist())}
    for j in range(amounts.shape[1]):
        model.add_exactly_one(here for (_, k), here in chosen.items() if k == j)
    for i, memory in enumerate(forward.helper_memory.tolist()):
        model.add(sum(int(forward.client_memory[j]) * here for (h, j), here in chosen.items() if h == i) <= memory)
    model.minimize(sum(int(cost[pair]) * here for pair, here in chosen.items()))
    solver = _solver(effort)
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return at.y
    y = np.zeros_like(at.y)
    for pair, here in chosen.items():
        y[pair] = solver.boolean_value(here)
    return y


def forward_makespan(forward: ForwardProblem, tail: Ints, amounts: Ints) -> int:
    """max c^f of the best schedule of these amounts: `tail` [client] after their last slots."""
    longest = 0
    for i in range(amounts.shape[0]):
        clients = np.flatnonzero(amounts[i]).tolist()
        jobs = [Job(int(forward.release[i, j]), int(amounts[i, j]), int(tail[j])) for j in clients]
        for job, spans in zip(jobs, minimise_max_cost(jobs), strict=True):
            longest = max(longest, max(end for _, end in spans) + job.tail)
    return longest


def _least(forward: ForwardProblem, tail: Ints) -> int:
    """No amounts end before this: somebody gives each client a slot after its release."""
    earliest = np.where(forward.linked, forward.release, np.iinfo(np.int64).max).min(axis=0)
    return int((earliest + 1 + tail).max())


def _greedy(forward: ForwardProblem) -> Ints:
    """Whole forwards, each where it ends first given those before it; memory is not looked at."""
    amounts, free = np.zeros_like(forward.length), np.zeros(forward.length.shape[0], np.int64)
    for j in np.argsort(np.where(forward.linked, forward.release, 2**62).min(axis=0), kind="stable").tolist():
        ends = np.where(forward.linked[:, j], np.maximum(free, forward.release[:, j]) + forward.length[:, j], 2**62)
        i = int(np.argmin(ends))
        amounts[i, j], free[i] = forward.length[i, j], ends[i]
    return amounts


def _solver(effort: SearchOptions) -> Any:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = effort.seed % 2**31
    solver.parameters.max_deterministic_time = WORK
    if effort.time_limit_s is not None:
        solver.parameters.max_time_in_seconds = max(SHORTEST_S, effort.time_limit_s)
    return solver
