"""Kind "deft": solve times of the exact methods, their optimality, and their gain over the paper's methods."""

import dataclasses
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.report import Figure, median_and_spread
from benchmarks.solvers.deft_problems import BLOCKS, Size, paper_problem, random_problem
from fleetune.contracts import json_io
from fleetune.errors import Infeasible
from fleetune.solving.deft.methods import SUMMARIES
from fleetune.solving.deft.problem import Problem, Solution
from fleetune.solving.deft.solve import solve

SPEED = (("bisection", "joint", Size(100, 64), 0.1), ("bisection", "joint", Size(300, 200), 2.0),
         ("crunch", "equal", Size(300, 200), 0.01), ("crunch", "equal", Size(300, 300), 0.01))  # fmt: skip
OTHERS = tuple(method for method in SUMMARIES if method != "bisection")
SHEET = "deft, the paper's setting: latency over the optimum's"
SAME = 1e-12
"""Relative rounding difference between two equally good divisions of bandwidth."""


def figures(quick: bool) -> list[Figure]:
    """All figures of this kind."""
    found = [figure for case in SPEED for figure in _speed(*case, repeats=4 if quick else 20)]
    found += [
        _in_fresh_process(),
        *_count_beaten(30 if quick else 300),
        _compare_with_enumeration(30 if quick else 300),
    ]
    for devices, where in itertools.product((20, 50), ("far", "near")):
        found += _in_the_papers_setting(devices, where, draws=20 if quick else 200)
    return found


def _speed(method: str, bandwidth: str, size: Size, limit_s: float, *, repeats: int) -> Iterator[Figure]:
    """Solve times and gaps to the proven bound; `bisection` also on rows that are not monotone in depth."""
    for rows in ("deepen", "any") if method == "bisection" else ("deepen",):
        plans = [
            solve(random_problem(seed, size, rows=rows, bandwidth=bandwidth), method=method) for seed in range(repeats)
        ]
        times = [plan.solve_s for plan in plans]
        name = f"{method}_{size.devices}x{size.blocks}{'' if rows == 'deepen' else '_any_rows'}"
        about = f"slowest of {repeats} problems of {size.devices} devices, {size.blocks} blocks"
        yield Figure(
            name=f"{name}_s", value=max(times), unit="s", target=limit_s, better="lower",
            spread=(min(times), max(times)), about=about,
        )  # fmt: skip
        yield Figure(
            name=f"{name}_gap", value=max(plan.objective / plan.lower_bound - 1 for plan in plans), unit="",
            target=1e-9, better="lower", about="latency over its proven lower bound, less 1: the largest",
        )  # fmt: skip


def _in_fresh_process() -> Figure:
    """Time of the first solve in a new process."""
    program = (
        "import sys, json; from fleetune import solving; "
        "kind, asked = solving.read(sys.stdin.buffer.read(), 'p', solving.kinds()); "
        "print(json.dumps(solving.solve(kind, asked).solve_s))"
    )
    source = json.dumps(json_io.dump(random_problem(0, Size(100, 64)))).encode()
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program], input=source, capture_output=True, check=True, env=dict(os.environ)
    )
    return Figure(
        name="bisection_100x64_fresh_s",
        value=float(ran.stdout),
        unit="s",
        target=0.1,
        better="lower",
        about="the first solve of a new process, loading of libraries aside",
    )


def _count_beaten(problems: int) -> Iterator[Figure]:
    """Number of plans of other methods that beat the exact ones, over problems of many shapes."""
    sizes = (Size(6, 4), Size(12, 12), Size(20, 12), Size(40, 25))
    compared, worse = 0, 0
    for seed in range(problems):
        bandwidth = "equal" if seed % 3 == 2 else "joint"
        problem = random_problem(seed, sizes[seed % 4], rows=("deepen", "any")[seed // 4 % 2], bandwidth=bandwidth)
        best = solve(problem, method="crunch" if bandwidth == "equal" else "bisection")
        for method in SUMMARIES:
            if method == "dual-ascent" and bandwidth == "equal":
                continue
            other = solve(problem, method=method)
            if other.feasible and method != best.method:
                compared += 1
                worse += other.objective < best.objective * (1 - SAME)
    yield Figure(
        name="beaten_by_a_method", value=worse, unit="plans", target=0, better="lower",
        about=f"of {compared} plans of all other methods on {problems} problems, those faster than the default's",
    )  # fmt: skip


def _compare_with_enumeration(problems: int) -> Figure:
    """Distance of the exact method from the best of all assignments, whose bandwidth is divided by bisection."""
    off = []
    for seed in range(problems):
        problem = random_problem(seed, Size(5 + seed % 2, 4), rows=("deepen", "any")[seed % 2])
        off.append(abs(solve(problem).objective / _best_s(problem) - 1))
    return Figure(
        name="off_the_optimum", value=max(off), unit="", target=1e-9, better="lower",
        about=f"latency of bisection off the best of all plans, relative: the largest of {problems} problems",
    )  # fmt: skip


def _best_s(problem: Problem) -> float:
    best = math.inf
    for devices in itertools.permutations(range(len(problem.memory_bytes)), len(problem.block_memory_bytes)):
        pairs = [
            (problem.compute_s[d][b], problem.block_bits / problem.bandwidth_hz / problem.spectral_efficiency[d])
            for b, d in enumerate(devices)
        ]
        fits = all(n <= problem.memory_bytes[d] for n, d in zip(problem.block_memory_bytes, devices, strict=True))
        low = max(compute_s + sent_s for compute_s, sent_s in pairs)
        high = min(best, max(c for c, _ in pairs) + sum(t for _, t in pairs))
        if not fits or low >= high or sum(t / (high - c) for c, t in pairs) > 1 + 1e-12:
            continue
        while high - low > 1e-13 * high:
            middle_s = (low + high) / 2
            late = sum(t / (middle_s - c) for c, t in pairs) > 1
            low, high = (middle_s, high) if late else (low, middle_s)
        best = min(best, high)
    return best


def _in_the_papers_setting(devices: int, where: str, *, draws: int) -> list[Figure]:
    """Latency of each method over the joint optimum's.

    The baselines ignore memory, so they are compared with the optimum without memory limits; the share of their plans
    that fit depends on the setting.
    """
    best, unlimited_best = [], []
    plans: dict[str, list[Solution]] = {method: [] for method in SUMMARIES}
    for seed in range(draws):
        problem = paper_problem(seed, devices, where)
        try:
            best.append(solve(problem).objective)
        except Infeasible:
            continue
        unlimited = dataclasses.replace(problem, memory_bytes=(1e12,) * devices)
        unlimited_best.append(solve(unlimited).objective)
        for method in OTHERS:
            plans[method].append(solve(problem, method=method))
    setting = f"{BLOCKS} blocks on {devices} devices, {where}, {len(best)} draws"
    found = [
        Figure(name=f"latency_{where}_{devices}_s", unit="s", better="lower", about=setting, **median_and_spread(best))
    ]
    for method in OTHERS:
        ignores_memory = method.endswith("-aware")
        optima = unlimited_best if ignores_memory else best
        ratios = [plan.objective / optimum for plan, optimum in zip(plans[method], optima, strict=True)]
        fits = statistics.fmean(plan.feasible for plan in plans[method])
        which = "the optimum's without memory limits" if ignores_memory else "the optimum's"
        about = f"its latency over {which}; {fits:.0%} of its plans fit"
        name = f"{method.replace('-', '_')}_over_bisection_{where}_{devices}"
        cell = (SHEET, f"{method}{' (memory aside)' if ignores_memory else ''}", f"{devices} devices, {where}")
        found.append(Figure(name=name, unit="x", better="higher", about=about, cell=cell, **median_and_spread(ratios)))
    return found
