"""The paper's decomposition: J. Tirana et al., "Workflow Optimization for Parallel Split Learning", INFOCOM 2024, V.

Forwards and assignment first (Problem 2), by the alternating direction method of multipliers of Algorithm 1: the
schedule w and the assignment y take turns under the l1 augmented Lagrangian of eq. (16), tightened by eq. (20); lambda
moves by what of eq. (6) is violated; eq. (17) and (18) end it. Then the forwards are repaired to the assignment by eq.
(19), and the backwards scheduled optimally given both (Problem 3, Algorithm 2).

What differs: both sub-problems are solved by CP-SAT within a fixed amount of work (inexact ones will do, footnote 7).
The schedule sub-problem needs no variable per slot: a helper can give its clients their amounts within their release
times and deadlines just when every window holds what must lie in it (`subproblems.windows`). Eq. (19), given the
assignment, is one 1|pmtn, r_j|f_max a helper, and solved to optimality. Of all assignments met on the way the one with
the shortest whole batch is returned, not the last. lambda and rho weigh slots, so where tasks are longer than TYPICAL
units, slots of several units stand for them in Algorithm 1, rounded up (the paper's observation 2), and where windows
would be too many only those on a grid are heeded; repair and backwards are in the problem's own unit and exact. Switch
costs enter when schedules are judged.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fleetune.solving.split.assignment import place
from fleetune.solving.split.backward import Job, least_largest_cost, with_backwards
from fleetune.solving.split.case import Case, Ints
from fleetune.solving.split.dispatch import everywhere, first_come
from fleetune.solving.split.draft import Draft, Effort
from fleetune.solving.split.methods.balanced_greedy import balanced
from fleetune.solving.split.schedule import FORWARD, Row, makespan
from fleetune.solving.split.subproblems import Forward, Multipliers, assign, schedule
from fleetune.solving.split.watch import Watch

ITERATIONS = 6
"""tau_max; the paper reports fewer than 5."""
RHO = 1
"""The penalty rho, whole as all of eq. (16); the paper prints none; of 1, 2, 4, 8, 20 the last two did worse."""
TYPICAL, LONGEST = 16, 4096
"""Slots that the middle and the longest forward last at most; as many as in the paper's setting."""
MOST_TERMS = 1_000_000
"""Of the windows of one schedule sub-problem."""
SLOTS_S, TERM_S = 1e-4, 2e-6
"""About what stating a schedule sub-problem takes for each pair, and for each time a client is in a window: no clock
ends that."""
PATIENCE = 2
"""Assignments met again in a row that end the search: from there it goes round in circles."""


class _Found(NamedTuple):
    makespan: int
    helper: tuple[int, ...]
    rows: list[Row]


def plan(case: Case, effort: Effort = Effort()) -> Draft:  # noqa: B008 - immutable
    """The best schedule met; for preemptive problems in which everyone fits."""
    assert case.preemptive
    watch = Watch(effort.time_limit_s)
    best: _Found | None = None
    took_s = 0.0
    for helper in _assignments(case, effort, watch):
        if best is not None and not watch.affords(took_s):
            break
        started = time.monotonic()
        found = _whole(case, helper)
        best = found if best is None else min(best, found, key=lambda one: one.makespan)
        took_s = time.monotonic() - started
    assert best is not None
    return Draft(best.helper, best.rows, deterministic=not watch.limited)


def _assignments(case: Case, effort: Effort, watch: Watch) -> Iterator[tuple[int, ...]]:
    """Algorithm 1: every assignment y that it meets, once each, in order; where time is too short for one, another."""
    met: set[tuple[int, ...]] = set()
    if watch.affords(case.linked.size * SLOTS_S):
        for helper in _met(case, effort.seed, watch):
            if helper not in met:
                met.add(helper)
                yield helper
    if not met:
        yield tuple(balanced(case) or effort.placed or place(case) or ())


def _met(case: Case, seed: int, watch: Watch) -> Iterator[tuple[int, ...]]:
    forward = in_slots(case)
    nobody = np.zeros_like(forward.length)
    at = Multipliers(nobody, nobody, RHO)
    met: set[tuple[int, ...]] = set()
    amounts, length, again = None, -1, 0
    stating_s = terms(forward) * TERM_S
    for _ in range(ITERATIONS):
        if not watch.affords(stating_s):
            break
        amounts, makes = schedule(forward, at, Effort(seed, _left(watch, stating_s)), amounts)
        y = assign(forward, amounts, at, Effort(seed, _left(watch, 0.0)))
        if not y.any():
            break
        stationary = np.abs(y - at.y).sum() < 1 and abs(makes - length) < 1  # eq. (17), (18)
        at, length = Multipliers(y, at.dual + amounts - y * forward.length, RHO), makes
        helper = tuple(np.argmax(y, axis=0).tolist())
        again = again + 1 if helper in met else 0
        met.add(helper)
        yield helper
        if stationary or again >= PATIENCE or watch.over():
            break


def in_slots(case: Case) -> Forward:
    """Problem 2 in slots of as many units as its tasks' lengths ask for, every duration rounded up."""
    lengths = case.forward[case.linked]
    slot = max(1, -(-int(np.median(lengths)) // TYPICAL), -(-int(lengths.max()) // LONGEST))

    def slots(units: Ints) -> Ints:
        return -(-units // slot)

    forward = Forward(
        release=slots(case.release),
        length=slots(case.forward),
        tail=slots(case.turnaround_forward),
        linked=case.linked,
        helper_memory=case.helper_memory,
        client_memory=case.client_memory,
    )
    while terms(forward) > MOST_TERMS:
        forward = forward._replace(grid=2 * forward.grid)
    return forward


def terms(forward: Forward) -> int:
    """How often clients are counted in windows, at most."""
    clients = forward.release.shape[1]
    tails = min(clients, np.unique(forward.tail // forward.grid).size)
    return int(sum(np.unique(row).size for row in forward.release // forward.grid) * tails * clients)


def _whole(case: Case, helper: tuple[int, ...]) -> _Found:
    """The batch with these helpers: eq. (19), then Algorithm 2; or FCFS where interruptions cost more than that."""
    rows = everywhere(case, helper, _optimal)
    found = _Found(makespan(case, helper, rows), helper, rows)
    if case.switch_cost.any():
        plain = everywhere(case, helper, first_come)
        found = min(found, _Found(makespan(case, helper, plain), helper, plain), key=lambda one: one.makespan)
    return found


def _optimal(case: Case, i: int, clients: list[int]) -> list[Row]:
    jobs = [Job(int(case.release[i, j]), int(case.forward[i, j]), int(case.turnaround_forward[i, j])) for j in clients]
    spans = least_largest_cost(jobs)
    return with_backwards(
        case, i, [Row(j, FORWARD, *span) for j, ran in zip(clients, spans, strict=True) for span in ran]
    )


def _left(watch: Watch, reserve_s: float) -> float | None:
    """For the solver alone; None: work decides."""
    return max(0.0, watch.left_s() - reserve_s) if watch.limited else None
