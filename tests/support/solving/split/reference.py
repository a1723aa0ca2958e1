"""Independent reference for kind "split": the optimum of tiny problems by brute force, and the contract of a plan.

Shares no code with the solver. Brute force steps through time unit by unit, so keep times short: 2-3 clients, 1-2
helpers, tasks of 1-3 units. The contract is checked on plain JSON values.
"""

import itertools
from fractions import Fraction
from functools import cache
from typing import Any

from fleetune.contracts import json_io
from fleetune.solving.api import document
from fleetune.solving.split.problem import Problem, Solution


def assignments(problem: Problem) -> list[tuple[int, ...]]:
    """Return all assignments [client] within links and memory."""
    helpers, clients = range(len(problem.helper_memory)), range(len(problem.client_memory))
    matrices = (
        problem.release, problem.forward, problem.turnaround_forward, problem.turnaround_backward, problem.backward,
        problem.tail,
    )  # fmt: skip
    fitting = []
    for helper in itertools.product(helpers, repeat=len(clients)):
        linked = all(matrix[helper[j]][j] is not None for matrix in matrices for j in clients)
        room = all(
            sum(problem.client_memory[j] for j in clients if helper[j] == i) <= problem.helper_memory[i] + 1e-9
            for i in helpers
        )
        if linked and room:
            fitting.append(helper)
    return fitting


def best(problem: Problem) -> int | None:
    """Return the least makespan of any plan; None: no plan is feasible."""
    found = [
        max(
            on_one_helper(problem, i, tuple(j for j in range(len(helper)) if helper[j] == i))
            for i in range(len(problem.helper_memory))
        )
        for helper in assignments(problem)
    ]
    return min(found, default=None)


@cache
def on_one_helper(problem: Problem, helper: int, clients: tuple[int, ...]) -> int:
    """Return the least makespan of these clients on this helper."""
    search = _Interrupted(problem, helper, clients) if problem.preemptive else _Orders(problem, helper, clients)
    return search.least()


class _Times:
    def __init__(self, problem: Problem, helper: int, clients: tuple[int, ...]) -> None:
        self.problem, self.helper, self.clients = problem, helper, clients

        def of(matrix: tuple[tuple[int | None, ...], ...]) -> list[int]:
            return [matrix[helper][j] or 0 for j in clients]

        self.release, self.forward, self.backward, self.tail = map(
            of, (problem.release, problem.forward, problem.backward, problem.tail)
        )
        there, back = of(problem.turnaround_forward), of(problem.turnaround_backward)
        self.turnaround = [a + b for a, b in zip(there, back, strict=True)]
        self.switch = problem.switch_cost[helper]


class _Orders(_Times):
    """Without preemption: every order of all tasks, each as early as possible."""

    def least(self) -> int:
        tasks = [(k, way) for k in range(len(self.clients)) for way in (0, 1)]
        return min(map(self._cost, itertools.permutations(tasks)))

    def _cost(self, order: tuple[tuple[int, int], ...]) -> int:
        now, cost = 0, 0
        ends: dict[int, int] = {}
        for k, way in order:
            if way == 0:
                now = max(now, self.release[k]) + self.forward[k]
                ends[k] = now
            elif k not in ends:
                return 10**9
            else:
                now = max(now, ends[k] + self.turnaround[k]) + self.backward[k]
                cost = max(cost, now + self.tail[k] + 2 * self.switch)
        return cost


class _Interrupted(_Times):
    """With preemption: in every unit of time any task that may run, or none."""

    def least(self) -> int:
        if not self.clients:
            return 0
        self.most = _Orders(self.problem, self.helper, self.clients).least()
        start = tuple((r, p, -1, q, 0) for r, p, q in zip(self.release, self.forward, self.backward, strict=True))
        return min(self.most, self._from(0, -1, start))

    @cache  # noqa: B019 - lives as long as one tiny problem
    def _from(self, now: int, last: int, state: tuple[tuple[int, int, int, int, int], ...]) -> int:
        """Return the least makespan from here on.

        state: per client its release, forward left, ready time of the backward (-1: unknown), backward left, pieces.
        Branches that cannot beat an order without interruptions are cut off.
        """
        if all(q == 0 for _, _, _, q, _ in state):
            return 0
        for k, (_, p, ready, q, pieces) in enumerate(state):
            earliest = now + p + self.turnaround[k] if p else max(now, ready)
            if q and earliest + q + self.tail[k] + self.switch * max(2, pieces) >= self.most:
                return 10**9
        found = self._from(now + 1, -1, state)
        for k, (r, p, ready, q, pieces) in enumerate(state):
            way = 0 if p else 1
            if (q == 0) or (p and now < r) or (not p and now < ready):
                continue
            pieces += last != 2 * k + way
            p, q = (p - 1, q) if p else (p, q - 1)
            if way == 0 and p == 0:
                ready = now + 1 + self.turnaround[k]
            own = now + 1 + self.tail[k] + self.switch * pieces if q == 0 else 0
            after = (*state[:k], (r, p, ready, q, pieces), *state[k + 1 :])
            found = min(found, max(own, self._from(now + 1, 2 * k + way, after)))
        return found


KEYS = {
    "kind", "method", "feasible", "objective", "lower_bound", "solve_s", "deterministic", "helper", "schedule", "order"
}  # fmt: skip
TIMES = ("release", "forward", "turnaround_forward", "turnaround_backward", "backward", "tail")


def check(problem: Problem, plan: Solution) -> None:
    """Assert everything that the contract says about a plan and its order."""
    given, shown = json_io.dump(problem), document(plan)
    assert set(shown) == KEYS
    assert shown["kind"] == "split"
    assert shown["feasible"] is True
    assert check_schedule(given, shown["helper"], shown["schedule"]) == shown["objective"]
    assert 0 < shown["lower_bound"] <= shown["objective"]
    assert shown["order"] == ordered(given, shown["helper"], shown["schedule"])


def check_schedule(given: dict[str, Any], helper: list[int], schedule: list[dict[str, Any]]) -> int:
    """Return the makespan of a schedule that satisfies the contract slot by slot; AssertionError otherwise."""
    clients, helpers = range(len(given["client_memory"])), range(len(given["helper_memory"]))
    assert len(helper) == len(clients)
    for i in helpers:
        taken = sum(Fraction(str(given["client_memory"][j])) for j in clients if helper[j] == i)
        assert taken <= Fraction(str(given["helper_memory"][i]))
    for one in schedule:
        assert set(one) == {"client", "direction", "start", "end"}
        assert one["client"] in clients
        assert 0 <= one["start"] < one["end"]
    makespan = 0
    for j in clients:
        i = helper[j]
        assert all(given[name][i][j] is not None for name in TIMES)
        r, p, lf, lb, q, tail = (given[name][i][j] for name in TIMES)
        ahead, back = (
            sorted((o["start"], o["end"]) for o in schedule if (o["client"], o["direction"]) == (j, way))
            for way in ("forward", "backward")
        )
        for pieces, length in ((ahead, p), (back, q)):
            assert sum(end - start for start, end in pieces) == length
            assert len(pieces) == 1 or given["preemptive"]
            assert all(one[1] < other[0] for one, other in zip(pieces, pieces[1:], strict=False)), "pieces abut"
        assert ahead[0][0] >= r
        assert back[0][0] >= ahead[-1][1] + lf + lb
        switches = given["switch_cost"][i] * (len(ahead) + len(back))
        makespan = max(makespan, back[-1][1] + tail + switches)
    for i in helpers:
        busy = sorted((o["start"], o["end"]) for o in schedule if helper[o["client"]] == i)
        assert all(one[1] <= other[0] for one, other in zip(busy, busy[1:], strict=False))
    return makespan


def ordered(given: dict[str, Any], helper: list[int], schedule: list[dict[str, Any]]) -> list[list[list[Any]]]:
    """Return each helper's tasks by the start of their first pieces."""
    order: list[list[list[Any]]] = [[] for _ in given["helper_memory"]]
    for one in sorted(schedule, key=lambda o: o["start"]):
        if [one["client"], one["direction"]] not in order[helper[one["client"]]]:
            order[helper[one["client"]]].append([one["client"], one["direction"]])
    return order
