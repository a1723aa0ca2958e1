"""The ADMM decomposition of J. Tirana et al., "Workflow Optimization for Parallel Split Learning", INFOCOM 2024, V.

Problem 2 (forward tasks and assignment) is solved by the alternating direction method of multipliers, Algorithm 1: the
schedule w and the assignment y take turns under the l1 augmented Lagrangian of eq. (16), tightened by eq. (20); lambda
moves by the violation of eq. (6); eq. (17) and (18) end it. Then eq. (19) repairs the forwards to the assignment, and
Problem 3, Algorithm 2, schedules the backwards optimally.

Differences from the paper: CP-SAT solves both sub-problems within a fixed amount of work (the paper allows inexact
solutions, footnote 7). The schedule sub-problem needs no variable per slot: a helper can serve its clients within their
release times and deadlines if and only if every window has room (`windows`). Eq. (19) is one problem
1|pmtn, r_j|f_max per helper and is solved optimally. The result is the assignment with the shortest batch of all that
were found, not the last one. lambda and rho weigh slots; so tasks longer than TYPICAL units are measured in slots of
several units, rounded up (the paper's observation 2), and windows are thinned to a grid if there are too many; repair
and backwards use the problem's own unit and are exact. Switch costs count when schedules are compared.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fleetune.arrays import Bools, Ints
from fleetune.solving.limits import Deadline
from fleetune.solving.split.assignment import SolverLimit, add_assignment, find_assignment, new_solver
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.methods.baselines import balanced_assignment
from fleetune.solving.split.preemptive import Job, minimise_max_cost, schedule_backwards
from fleetune.solving.split.schedule import (
    FORWARD,
    Candidate,
    SearchOptions,
    TaskRow,
    first_come_first_served,
    makespan,
    schedule_helpers,
)

WORK = 2.0
"""Deterministic solver seconds per sub-problem."""
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
        self.positive: dict[tuple[int, int], Any] = {}
        for i, j in np.argwhere(forward.linked).tolist():
            p = int(forward.length[i, j])
            self.given[i, j], self.positive[i, j] = model.new_int_var(0, p, ""), model.new_bool_var("")
            model.add(self.given[i, j] <= p * self.positive[i, j])
            model.add(self.given[i, j] >= self.positive[i, j])
        for j in range(forward.length.shape[1]):
            self._add_unit_sum(forward, j)

    def _add_unit_sum(self, forward: ForwardProblem, client: int) -> None:
        """Add eq. (20): the shares of the client's forward task add up to 1."""
        lengths = {i: int(forward.length[i, client]) for i in np.flatnonzero(forward.linked[:, client]).tolist()}
        multiple = math.lcm(*lengths.values())
        if multiple <= MAX_MULTIPLE:
            self.model.add(sum(multiple // p * self.given[i, client] for i, p in lengths.items()) == multiple)
            return
        self.model.add_exactly_one(self.positive[i, client] for i in lengths)
        for i, p in lengths.items():
            self.model.add(self.given[i, client] == p * self.positive[i, client])

    def require_room(self, helper: int, window: Window, makespan: Any, least: int) -> None:
        """Require room in the window for its clients; an unused window may be empty or start after the makespan."""
        lies = sum(self.given[helper, j] for j in window.clients) + window.start + window.tail <= makespan
        if window.start + window.tail <= least:
            self.model.add(lies)
            return
        used = self.model.new_bool_var("")
        for j in window.clients:
            self.model.add_implication(self.positive[helper, j], used)
        self.model.add(lies).only_enforce_if(used)

    def hint(self, values: Ints) -> None:
        """Add these amounts as a hint."""
        for pair, amount in self.given.items():
            self.model.add_hint(amount, int(values[pair]))
            self.model.add_hint(self.positive[pair], bool(values[pair]))


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
    least, longest = _makespan_bound(forward, tail), forward.length.max(axis=0).sum()
    makespan = model.new_int_var(least, int(forward.release.max() + tail.max() + longest), "")
    for i, linked in enumerate(forward.linked):
        clients = np.flatnonzero(linked).tolist()
        for window in windows(forward.release[i].tolist(), tail.tolist(), clients, forward.grid):
            amounts.require_room(i, window, makespan, least)
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
    chosen = add_assignment(model, forward.linked, forward.helper_memory, forward.client_memory)
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


def _makespan_bound(forward: ForwardProblem, tail: Ints) -> int:
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
    left_s = math.inf if options.time_limit_s is None else options.time_limit_s
    return new_solver(SolverLimit(WORK, left_s), seed=options.seed)


ITERATIONS = 6
"""tau_max; the paper reports fewer than 5."""
RHO = 1
"""Penalty rho, an integer like all of eq. (16). The paper prints none; of 1, 2, 4, 8, 20 the last two did worse."""
TYPICAL, LONGEST = 16, 4096
"""Slots of the median and of the longest forward task, as many as in the paper's setting."""
MAX_TERMS = 1_000_000
"""Terms over all windows of one schedule sub-problem."""
SLOTS_S, TERM_S = 1e-4, 2e-6
"""Approximate seconds to build a schedule sub-problem, per pair and per term; no deadline interrupts it."""
PATIENCE = 2
"""The search cycles, and ends, after this many consecutive assignments that it has seen before."""


class _BatchPlan(NamedTuple):
    makespan: int
    helper: tuple[int, ...]
    rows: list[TaskRow]


def plan(instance: Instance, options: SearchOptions = SearchOptions()) -> Candidate:  # noqa: B008 - immutable
    """Return the best schedule found; for preemptive problems with a feasible assignment."""
    assert instance.preemptive
    deadline = Deadline(options.time_limit_s)
    best: _BatchPlan | None = None
    took_s = 0.0
    for helper in _assignments(instance, options, deadline):
        if best is not None and not deadline.affords(took_s):
            break
        started_s = deadline.elapsed_s()
        found = _schedule_assignment(instance, helper)
        best = found if best is None else min(best, found, key=lambda one: one.makespan)
        took_s = deadline.elapsed_s() - started_s
    assert best is not None
    return Candidate(best.helper, best.rows, deterministic=not deadline.limited)


def _assignments(instance: Instance, options: SearchOptions, deadline: Deadline) -> Iterator[tuple[int, ...]]:
    """Yield the distinct assignments y of Algorithm 1, in order; a baseline's if time is too short for one."""
    met: set[tuple[int, ...]] = set()
    if deadline.affords(instance.linked.size * SLOTS_S):
        for helper in _iterate(instance, options.seed, deadline):
            if helper not in met:
                met.add(helper)
                yield helper
    if not met:
        yield tuple(balanced_assignment(instance) or options.feasible or find_assignment(instance) or ())


def _iterate(instance: Instance, seed: int, deadline: Deadline) -> Iterator[tuple[int, ...]]:
    forward = to_slots(instance)
    nobody = np.zeros_like(forward.length)
    at = Multipliers(nobody, nobody, RHO)
    met: set[tuple[int, ...]] = set()
    amounts, length, again = None, -1, 0
    stating_s = window_terms(forward) * TERM_S
    for _ in range(ITERATIONS):
        if not deadline.affords(stating_s):
            break
        amounts, makes = solve_schedule(forward, at, SearchOptions(seed, _solver_limit_s(deadline, stating_s)), amounts)
        y = solve_assignment(forward, amounts, at, SearchOptions(seed, _solver_limit_s(deadline, 0.0)))
        if not y.any():
            break
        stationary = np.abs(y - at.y).sum() < 1 and abs(makes - length) < 1  # eq. (17), (18)
        at, length = Multipliers(y, at.dual + amounts - y * forward.length, RHO), makes
        helper = tuple(np.argmax(y, axis=0).tolist())
        again = again + 1 if helper in met else 0
        met.add(helper)
        yield helper
        if stationary or again >= PATIENCE or deadline.expired:
            break


def to_slots(instance: Instance) -> ForwardProblem:
    """Convert Problem 2 to slots, with a unit chosen by task lengths; durations are rounded up."""
    lengths = instance.forward[instance.linked]
    slot = max(1, -(-int(np.median(lengths)) // TYPICAL), -(-int(lengths.max()) // LONGEST))

    def slots(units: Ints) -> Ints:
        return -(-units // slot)

    forward = ForwardProblem(
        release=slots(instance.release),
        length=slots(instance.forward),
        tail=slots(instance.turnaround_forward),
        linked=instance.linked,
        helper_memory=instance.helper_memory,
        client_memory=instance.client_memory,
    )
    while window_terms(forward) > MAX_TERMS:
        forward = forward._replace(grid=2 * forward.grid)
    return forward


def window_terms(forward: ForwardProblem) -> int:
    """Return an upper limit of the terms over all windows."""
    clients = forward.release.shape[1]
    tails = min(clients, np.unique(forward.tail // forward.grid).size)
    return int(sum(np.unique(row).size for row in forward.release // forward.grid) * tails * clients)


def _schedule_assignment(instance: Instance, helper: tuple[int, ...]) -> _BatchPlan:
    """Complete an assignment: eq. (19), then Algorithm 2, or FCFS if interruptions cost more than they gain."""
    rows = schedule_helpers(instance, helper, _schedule_optimally)
    found = _BatchPlan(makespan(instance, helper, rows), helper, rows)
    if instance.switch_cost.any():
        plain = schedule_helpers(instance, helper, first_come_first_served)
        found = min(found, _BatchPlan(makespan(instance, helper, plain), helper, plain), key=lambda one: one.makespan)
    return found


def _schedule_optimally(instance: Instance, i: int, clients: list[int]) -> list[TaskRow]:
    jobs = [
        Job(int(instance.release[i, j]), int(instance.forward[i, j]), int(instance.turnaround_forward[i, j]))
        for j in clients
    ]
    spans = minimise_max_cost(jobs)
    return schedule_backwards(
        instance, i, [TaskRow(j, FORWARD, *span) for j, ran in zip(clients, spans, strict=True) for span in ran]
    )


def _solver_limit_s(deadline: Deadline, reserve_s: float) -> float | None:
    """Return the time limit of one solver call; None: work decides."""
    return max(0.0, deadline.left_s() - reserve_s) if deadline.limited else None
