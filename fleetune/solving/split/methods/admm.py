"""The paper's ADMM decomposition: J. Tirana et al., "Workflow Optimization for Parallel Split Learning", INFOCOM 2024,
V.

Problem 2 (forward tasks and assignment) is solved by the alternating direction method of multipliers, Algorithm 1: the
schedule w and the assignment y take turns under the l1 augmented Lagrangian of eq. (16), tightened by eq. (20); lambda
moves by the violation of eq. (6); eq. (17) and (18) end it. Then eq. (19) repairs the forwards to the assignment, and
Problem 3, Algorithm 2, schedules the backwards optimally.

Differences from the paper: CP-SAT solves both sub-problems within a fixed amount of work (the paper allows inexact
solutions, footnote 7). The schedule sub-problem needs no variable per slot: a helper can serve its clients within their
release times and deadlines if and only if every window has room (`admm_subproblems.windows`). Eq. (19) is one problem
1|pmtn, r_j|f_max per helper and is solved optimally. The result is the assignment with the shortest batch of all that
were found, not the last one. lambda and rho weigh slots; so tasks longer than TYPICAL units are measured in slots of
several units, rounded up (the paper's observation 2), and windows are thinned to a grid if there are too many; repair
and backwards use the problem's own unit and are exact. Switch costs count when schedules are compared.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fleetune.solving.limits import Deadline
from fleetune.solving.split.admm_subproblems import ForwardProblem, Multipliers, solve_assignment, solve_schedule
from fleetune.solving.split.assignment import find_assignment
from fleetune.solving.split.instance import Instance, Ints
from fleetune.solving.split.methods.baselines import balanced_assignment
from fleetune.solving.split.preemptive import Job, minimise_max_cost, schedule_backwards
from fleetune.solving.split.schedule import (
    FORWARD,
    Candidate,
    Row,
    SearchOptions,
    first_come_first_served,
    makespan,
    schedule_helpers,
)

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
"""Consecutive assignments seen before that end the search, because it cycles."""


class _Batch(NamedTuple):
    makespan: int
    helper: tuple[int, ...]
    rows: list[Row]


def plan(instance: Instance, options: SearchOptions = SearchOptions()) -> Candidate:  # noqa: B008 - immutable
    """Return the best schedule found; for preemptive problems with a feasible assignment."""
    assert instance.preemptive
    deadline = Deadline(options.time_limit_s)
    best: _Batch | None = None
    took_s = 0.0
    for helper in _assignments(instance, options, deadline):
        if best is not None and not deadline.affords(took_s):
            break
        started_s = deadline.elapsed_s()
        found = _complete(instance, helper)
        best = found if best is None else min(best, found, key=lambda one: one.makespan)
        took_s = deadline.elapsed_s() - started_s
    assert best is not None
    return Candidate(best.helper, best.rows, deterministic=not deadline.limited)


def _assignments(instance: Instance, options: SearchOptions, deadline: Deadline) -> Iterator[tuple[int, ...]]:
    """Yield the distinct assignments y of Algorithm 1, in order; a baseline's if time is too short for one."""
    met: set[tuple[int, ...]] = set()
    if deadline.affords(instance.linked.size * SLOTS_S):
        for helper in _met(instance, options.seed, deadline):
            if helper not in met:
                met.add(helper)
                yield helper
    if not met:
        yield tuple(balanced_assignment(instance) or options.placed or find_assignment(instance) or ())


def _met(instance: Instance, seed: int, deadline: Deadline) -> Iterator[tuple[int, ...]]:
    forward = in_slots(instance)
    nobody = np.zeros_like(forward.length)
    at = Multipliers(nobody, nobody, RHO)
    met: set[tuple[int, ...]] = set()
    amounts, length, again = None, -1, 0
    stating_s = terms(forward) * TERM_S
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


def in_slots(instance: Instance) -> ForwardProblem:
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
    while terms(forward) > MAX_TERMS:
        forward = forward._replace(grid=2 * forward.grid)
    return forward


def terms(forward: ForwardProblem) -> int:
    """Return an upper limit of the terms over all windows."""
    clients = forward.release.shape[1]
    tails = min(clients, np.unique(forward.tail // forward.grid).size)
    return int(sum(np.unique(row).size for row in forward.release // forward.grid) * tails * clients)


def _complete(instance: Instance, helper: tuple[int, ...]) -> _Batch:
    """Complete an assignment: eq. (19), then Algorithm 2, or FCFS if interruptions cost more than they gain."""
    rows = schedule_helpers(instance, helper, _optimal)
    found = _Batch(makespan(instance, helper, rows), helper, rows)
    if instance.switch_cost.any():
        plain = schedule_helpers(instance, helper, first_come_first_served)
        found = min(found, _Batch(makespan(instance, helper, plain), helper, plain), key=lambda one: one.makespan)
    return found


def _optimal(instance: Instance, i: int, clients: list[int]) -> list[Row]:
    jobs = [
        Job(int(instance.release[i, j]), int(instance.forward[i, j]), int(instance.turnaround_forward[i, j]))
        for j in clients
    ]
    spans = minimise_max_cost(jobs)
    return schedule_backwards(
        instance, i, [Row(j, FORWARD, *span) for j, ran in zip(clients, spans, strict=True) for span in ran]
    )


def _solver_limit_s(deadline: Deadline, reserve_s: float) -> float | None:
    """Return the time limit of one solver call; None: work decides."""
    return max(0.0, deadline.left_s() - reserve_s) if deadline.limited else None
