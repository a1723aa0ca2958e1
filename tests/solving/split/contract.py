"""The contract of kind "split", checked on plain JSON values; shares no code with the solver."""

from fractions import Fraction
from typing import Any

from fleetune.contracts import json_io
from fleetune.solving.api import document
from fleetune.solving.split.problem import Problem, Solution

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
