"""Kind "split": solve times of `auto`, its gap to its own bound, and its gain over the paper's heuristics.

Gains are printed like Figure 7 of the paper: eight sizes, both scenarios, both networks, preemption at the ends of
slots. Beside each stands the gain of the authors' method on their own random problems, from the numbers published with
the figure. Their problems are not published, so those gains are no targets.
"""

import statistics
from collections.abc import Sequence

from benchmarks.report import Figure
from benchmarks.solvers.split_problems import Setting, random_problem, tight_problem
from fleetune.solving.split.problem import Problem, Solution
from fleetune.solving.split.solve import solve

SMALL = ((20, 5), (8, 2), (15, 5), (20, 3), (12, 3), (20, 5), (10, 2), (15, 3), (18, 4), (20, 4))
SIZES = ((20, 5), (20, 10), (30, 5), (30, 10), (50, 5), (50, 10), (70, 5), (70, 10))
PAPER_GAINS = {
    ("resnet101", 1): (16.5, 13.2, 7.8, 19.0, 8.0, 18.4, 19.0, 14.2),
    ("vgg19", 1): (31.9, 41.5, 14.5, 41.4, 21.3, 11.7, 15.0, 16.8),
    ("resnet101", 2): (38.7, 28.8, 20.2, 22.6, 17.4, 28.1, 12.6, 20.1),
    ("vgg19", 2): (41.0, 52.3, 19.0, 27.4, 24.1, 38.7, 17.3, 31.4),
}
"""(network, scenario) -> percent of the baseline's makespan saved, in the order of SIZES."""
SHEET = "split, like the paper's Figure 7: % of a baseline's makespan that auto saves (spread over seeds)"
NEAR = 0.02
SEEDS = 5
"""Number of random assignments for the median of `random-fcfs`."""


def figures(quick: bool) -> list[Figure]:
    """All figures of this kind: small problems, large problems, gains."""
    solve(random_problem(0, Setting(3, 2, 1, "vgg19")))  # imports the solvers
    return [*_small(quick), *_large(quick), *_gains(quick)]


def _small(quick: bool) -> list[Figure]:
    networks = ("resnet101", "vgg19")
    settings = [
        Setting(clients, helpers, 1 + k % 2, networks[k // 2 % 2], preemptive=k % 3 > 0)
        for k, (clients, helpers) in enumerate(SMALL * (1 if quick else 3))
    ]
    plans = [solve(random_problem(seed, setting)) for seed, setting in enumerate(settings)]
    found = _closed("split_small", plans, "the paper's scenarios, J <= 20, I <= 5", 0.9)
    if not quick:
        tight = [tight_problem(k, *size, preemptive=k % 2 > 0) for k, size in enumerate(SMALL)]
        found += _closed("split_tight", [solve(problem) for problem in tight], "tight random ones, J <= 20, I <= 5")
    return found


def _closed(name: str, plans: Sequence[Solution], which: str, target: float | None = None) -> list[Figure]:
    gaps, times = [_gap(plan) for plan in plans], [plan.solve_s for plan in plans]
    closed = [gap <= NEAR and plan.solve_s <= 10.0 for gap, plan in zip(gaps, plans, strict=True)]
    proven = sum(gap <= 0 for gap in gaps)
    return [
        Figure(name=f"{name}_closed", value=statistics.mean(closed), unit="", target=target, better="higher",
               about=f"share of {len(plans)} ({which}) proven ({proven}) or within 2 % of the bound, in 10 s"),
        Figure(name=f"{name}_gap", value=max(gaps), unit="", better="lower", spread=(min(gaps), max(gaps)),
               about="makespan over the plan's own bound, less 1: the worst of them"),
        Figure(name=f"{name}_s", value=max(times), unit="s", better="lower", spread=(min(times), max(times)),
               about="the slowest of them"),
    ]  # fmt: skip


def _large(quick: bool) -> list[Figure]:
    settings = [
        Setting(70, 10, scenario, net, preemptive=True) for net in ("vgg19", "resnet101") for scenario in (1, 2)
    ]
    problems: list[Problem] = [random_problem(7, setting) for setting in settings[: 2 if quick else 4]]
    if not quick:
        problems.append(tight_problem(0, 70, 10, preemptive=False))
    plans = [solve(problem) for problem in problems]
    gaps, times = [_gap(plan) for plan in plans], [plan.solve_s for plan in plans]
    which = "scenarios" if quick else "scenarios and a tight one"
    return [
        Figure(name="split_70x10_gap", value=max(gaps), unit="", target=0.03, better="lower",
               spread=(min(gaps), max(gaps)), about=f"worst of {len(plans)} ({which}): makespan over bound, less 1"),
        Figure(name="split_70x10_s", value=max(times), unit="s", target=60.0, better="lower",
               spread=(min(times), max(times)), about="the slowest of them"),
    ]  # fmt: skip


def _gap(plan: Solution) -> float:
    assert plan.lower_bound is not None
    return plan.objective / plan.lower_bound - 1


def _gains(quick: bool) -> list[Figure]:
    chosen = (0, 6) if quick else range(len(SIZES))
    found = []
    for (network, scenario), paper_gain in PAPER_GAINS.items():
        for k in chosen:
            setting = Setting(*SIZES[k], scenario, network, preemptive=True)
            found += _gain(setting, 1.0 if quick else 5.0, paper_gain[k])
    return found


def _gain(setting: Setting, limit_s: float, paper_gain: float) -> list[Figure]:
    """Makespan saved by `auto` with `limit_s` seconds, against both heuristics."""
    problem = random_problem(2, setting)
    plan = solve(problem, time_limit_s=limit_s)
    greedy = solve(problem, method="balanced-greedy").objective
    drawn = [solve(problem, method="random-fcfs", seed=seed).objective for seed in range(SEEDS)]
    gains = [100 * (1 - plan.objective / other) for other in drawn]
    bar = f"split_{setting.network}_{setting.scenario}_{setting.clients}x{setting.helpers}"
    size, net = f"J={setting.clients} I={setting.helpers}", f"{setting.network}, scenario {setting.scenario}"
    about = f"makespan {plan.objective} saves; proven least is {plan.lower_bound}"
    return [
        Figure(name=f"{bar}_over_random", value=statistics.median(gains), unit="%", better="higher",
               spread=(min(gains), max(gains)), about=f"of random-fcfs; the paper saved {paper_gain} %",
               cell=(SHEET, f"{net}: random-fcfs (the paper: {_paper(setting)})", size)),
        Figure(name=f"{bar}_over_greedy", value=100 * (1 - plan.objective / greedy), unit="%", better="higher",
               about=f"of balanced-greedy; {about}", cell=(SHEET, f"{net}: balanced-greedy", size)),
    ]  # fmt: skip


def _paper(setting: Setting) -> str:
    """Range of the authors' gains over all sizes."""
    paper_gain = PAPER_GAINS[setting.network, setting.scenario]
    return f"{min(paper_gain):g}-{max(paper_gain):g}"
