"""Kind "d2ft": solve times of selections, their savings and balance, and the effect of rotating ties.

Problems are random, in the D2FT paper's setting and of any size. The paper's setting: ViT-S in 74 subnets, of which
72 are a head with its part of the feed-forward network; 5 micro-batches; weight magnitude as the backward score (equal
for all micro-batches), Fisher information as the forward score; a forward-only costs 0.4 of a full (Section IV-A).
Budgets are numbers of fulls and forward-onlys, such as 3 + 0 or 2 + 1.
"""

import statistics
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.other_solvers.fresh_process import first_solve_s
from benchmarks.report import Figure, median_and_spread
from fleetune.solving.d2ft.instance import Instance
from fleetune.solving.d2ft.methods import SUMMARIES
from fleetune.solving.d2ft.problem import Numbers, Problem, Solution
from fleetune.solving.d2ft.solve import solve
from fleetune.solving.d2ft.transportation import mask_of_largest

SUBNETS, MICRO_BATCHES = 72, 5
FORWARD, BACKWARD = 0.4, 0.6
STYLES = ("free", "sample-independent", "proportional", "few values")
"""Scores: all different; backward equal along a row; forward proportional to backward; integers below 5."""


def paper_problem(seed: int, fulls: int, forwards: int) -> Problem:
    """The paper's setting: magnitudes grow with depth, Fisher information is heavy-tailed and correlated in a batch."""
    draw = np.random.default_rng(seed)
    magnitude = np.linspace(1.0, 1.5, SUBNETS) * draw.uniform(0.85, 1.15, SUBNETS) * 40
    gradient = draw.lognormal(0, 0.5, SUBNETS)
    fisher = draw.lognormal(0, 0.8, (1, MICRO_BATCHES)) * draw.lognormal(0, 0.6, (SUBNETS, MICRO_BATCHES))
    return _problem(
        np.repeat(magnitude[:, None], MICRO_BATCHES, axis=1),
        fisher,
        (fulls, forwards),
        weight_magnitude=tuple(magnitude.tolist()),
        gradient_magnitude=tuple(gradient.tolist()),
    )


def random_problem(seed: int, shape: tuple[int, int], style: str, weight: float | None = None) -> Problem:
    """A problem of `shape` (subnets, micro-batches) with budgets of 0.4 full and 0.4 forward-only (Section IV-C)."""
    draw = np.random.default_rng(seed)
    backward = draw.gamma(2, 1, shape)
    forward = backward * draw.uniform(0.05, 0.9, shape)
    if style == "sample-independent":
        backward = np.repeat(backward[:, :1], shape[1], axis=1)
    elif style == "proportional":
        backward = np.repeat(backward[:, :1], shape[1], axis=1)
        forward = backward * FORWARD
    elif style == "few values":
        backward, forward = np.floor(backward * 1.5) % 5, np.floor(forward * 3) % 5
    share = round(0.4 * shape[1])
    magnitudes = tuple(draw.gamma(2, 1, shape[0]).tolist())
    return _problem(
        backward, forward, (share, share), forward_weight=weight, weight_magnitude=magnitudes,
        gradient_magnitude=magnitudes[::-1],
    )  # fmt: skip


def _problem(
    backward: NDArray[np.float64],
    forward: NDArray[np.float64],
    budget: tuple[int, int],
    *,
    forward_weight: float | None = None,
    weight_magnitude: Numbers,
    gradient_magnitude: Numbers,
) -> Problem:
    """Equal costs and budgets in every subnet, `budget` is the number of fulls and of forward-onlys."""

    def everywhere(cost: float) -> Numbers:
        return (round(cost, 9),) * len(backward)

    return Problem(
        backward_scores=tuple(map(tuple, backward.tolist())),
        forward_scores=tuple(map(tuple, forward.tolist())),
        forward_cost=everywhere(FORWARD),
        backward_cost=everywhere(BACKWARD),
        full_capacity=everywhere(budget[0]),
        forward_capacity=everywhere(FORWARD * budget[1]),
        capacity=everywhere(budget[0] + FORWARD * budget[1]),
        forward_weight=forward_weight,
        weight_magnitude=weight_magnitude,
        gradient_magnitude=gradient_magnitude,
    )


SHEET = "d2ft, the paper's setting (72 subnets, 5 micro-batches)"
LIMIT_S = 0.01
"""Target for one subnet of 1024 micro-batches and for 72 subnets of 20."""
WEIGHT = 0.9
"""Weight of forward scores in weighted `joint`: neither operation is always the better use of capacity."""
TIMED_METHODS: list[tuple[str, float | None]] = [*((method, None) for method in SUMMARIES), ("joint", WEIGHT)]


def figures(quick: bool) -> list[Figure]:
    """All figures of this kind."""
    found = [
        _speed(*way, (1, 1024), problems=3 if quick else 20) for way in TIMED_METHODS if way[0] in ("bilevel", "joint")
    ]
    found += [_speed(*way, (72, 20), problems=3 if quick else 20) for way in TIMED_METHODS]
    found += [_in_fresh_process((1, 1024)), _in_fresh_process((72, 20))]
    draws = 10 if quick else 200
    found += _in_the_papers_setting(3, 0, draws)
    found += _in_the_papers_setting(2, 1, draws)
    return [*found, *_untrained(draws), _joint_over_disjoint(draws)]


def _speed(method: str, weight: float | None, shape: tuple[int, int], *, problems: int) -> Figure:
    """Solve time of the slowest problem over all styles of scores, each the best of five runs."""
    times = []
    for style in STYLES:
        for seed in range(problems):
            problem = random_problem(seed, shape, style, weight)
            times.append(min(solve(problem, method=method).solve_s for _ in range(5)))
    return Figure(
        name=f"{_name(method, weight)}_{shape[0]}x{shape[1]}_s", value=max(times), unit="s", target=LIMIT_S,
        better="lower", spread=(min(times), max(times)),
        about=f"slowest of {len(times)} problems, best of five: {shape[0]} subnets x {shape[1]} micro-batches",
    )  # fmt: skip


def _in_fresh_process(shape: tuple[int, int]) -> Figure:
    """Time of the first solve in a new process, by the slowest method."""
    problem = random_problem(0, shape, "free", WEIGHT)
    times = [first_solve_s(problem, "joint") for _ in range(3)]
    return Figure(
        name=f"joint_weighted_{shape[0]}x{shape[1]}_fresh_s", value=min(times), unit="s", target=LIMIT_S,
        better="lower", spread=(min(times), max(times)),
        about="the first solve of a new process, loading of libraries aside: best of three processes",
    )  # fmt: skip


def _in_the_papers_setting(fulls: int, forwards: int, draws: int) -> Iterator[Figure]:
    """Share of compute and communication saved by each method, and its workload variance (D2FT Table I)."""
    setting = f"{fulls}pf_{forwards}po"
    wanted = {(3, 0): ("compute", 0.4), (2, 1): ("communication", 0.5)}[fulls, forwards]
    for method in SUMMARIES:
        plans = [solve(paper_problem(seed, fulls, forwards), method=method, seed=seed) for seed in range(draws)]
        for what, forward in (("compute", FORWARD), ("communication", 0.5)):
            target = wanted[1] if method.startswith("bilevel") and what == wanted[0] else None
            saved = [1 - _used(plan, forward) for plan in plans]
            yield Figure(
                name=f"{_name(method)}_{setting}_{what}_saved", unit="", target=target, better="higher",
                about=f"of {fulls + forwards} of 5 micro-batches; the paper saves {wanted[1]} of the {wanted[0]}",
                cell=(SHEET, method, f"{setting}: {what} saved"), **median_and_spread(saved),
            )  # fmt: skip
        variances = [plan.workload_variance for plan in plans]
        yield Figure(
            name=f"{_name(method)}_{setting}_variance", unit="", better="lower", **median_and_spread(variances),
            target=0 if method == "bilevel-disjoint" else None,
            about="of the subnets' share of their full compute; paper: 0 D2FT, 0.23 random, 0.25 pruning",
            cell=(SHEET, method, f"{setting}: variance"),
        )  # fmt: skip


def _used(plan: Solution, forward: float) -> float:
    """Share used of the cost with all micro-batches full; forward-only costs `forward` of a full."""
    table = np.array(plan.table)
    return round(float(((table == 1) + forward * (table == 2)).mean()), 12)


def _untrained(draws: int) -> Iterator[Figure]:
    """Number of micro-batches that no subnet trains, with ties rotated across subnets and without."""
    for name, problems in (
        ("paper", [paper_problem(seed, 3, 0) for seed in range(draws)]),
        ("72x20", [random_problem(seed, (72, 20), "sample-independent") for seed in range(draws)]),
    ):
        rotated = [solve(problem).untrained_micro_batches for problem in problems]
        yield Figure(
            name=f"untrained_{name}", value=max(rotated), unit="micro-batches", target=0, better="lower",
            about=f"by bilevel, the most of {draws} problems whose backward scores ignore the sample",
        )  # fmt: skip
        yield Figure(
            name=f"untrained_{name}_first_of_equals", value=statistics.median(map(_untrained_unrotated, problems)),
            unit="micro-batches", better="lower", about="the same knapsacks, each taking the first of its equals",
        )  # fmt: skip


def _untrained_unrotated(problem: Problem) -> int:
    instance = Instance.from_problem(problem)
    return int((~mask_of_largest(instance.backward, instance.full_counts).any(axis=0)).sum())


def _joint_over_disjoint(draws: int) -> Figure:
    """Gain of choosing both operations jointly at equal backward scores."""
    gains = []
    for seed in range(draws):
        problem = paper_problem(seed, 2, 2)
        joint, disjoint = solve(problem, method="joint"), solve(problem, method="bilevel-disjoint")
        assert joint.objective == disjoint.objective
        gains.append(joint.forward_objective / disjoint.forward_objective)
    return Figure(
        name="joint_forward_over_disjoint", unit="x", better="higher", **median_and_spread(gains),
        about="forward scores of the forward-onlys at the same backward scores and compute; paper's setting, 2 + 2",
    )  # fmt: skip


def _name(method: str, weight: float | None = None) -> str:
    return method.replace("-", "_") + ("" if weight is None else "_weighted")
