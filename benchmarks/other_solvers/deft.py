"""Kind "deft": solve times of the exact methods, their optimality, and their gain over the paper's methods.

Problems are random, of any size and in the setting of the LoLa-DEFT paper's experiments. The paper prints the devices'
factors f_k ~ U(0.5, 1), memory U[1, 6] GB, Rayleigh fading, SNR 10 dB, 100 MHz, and 12 blocks of 24576 parameters of 32
bits (Section VI-A). It does not print the constants of eq. (3) and of memory; ours, fixed before anything was measured:
a forward of a batch takes a = 0.5 s on the normalised device, the backward down to block l of 12 takes
c(l) = 0.5 s * l/12 (so that the deepest block takes nearly twice the shallowest, as Section VI-B says), M = 1 iteration
in a round, and block l needs 1 + 0.25 l GB (a third of the 12 GB of one device, at the deepest).

Its "path loss of 10^-3" can be read in two ways. `far`: 10 dB is what is sent, and arrives as 10 * 10^-3 times the
fading, so that sending decides. `near`: 10 dB is what arrives on average, so that computing decides.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from numpy import log2

from benchmarks.other_solvers.fresh_process import first_solve_s
from benchmarks.report import Figure, median_and_spread
from fleetune.errors import Infeasible
from fleetune.solving.lola_deft.methods import SUMMARIES
from fleetune.solving.lola_deft.problem import Problem, Solution
from fleetune.solving.lola_deft.solve import solve

BLOCKS = 12
PARAMETER_BITS = 24576 * 32
FORWARD_S, BACKWARD_S, ITERATIONS = 0.5, 0.5, 1
BAND_HZ, SNR = 100e6, 10.0
PATH_LOSS = {"far": 1e-3, "near": 1.0}


class Size(NamedTuple):
    """Number of devices and blocks."""

    devices: int
    blocks: int


def paper_problem(seed: int, devices: int, where: str, bandwidth: str = "joint") -> Problem:
    """A problem in the paper's setting; `where` is a key of PATH_LOSS."""
    random = Random(f"deft {seed} {devices}")
    speeds = [random.uniform(0.5, 1.0) for _ in range(devices)]
    depths = [FORWARD_S + BACKWARD_S * (block + 1) / BLOCKS for block in range(BLOCKS)]
    return Problem(
        bandwidth="equal" if bandwidth == "equal" else "joint",
        compute_s=tuple(tuple(ITERATIONS * depth / speed for depth in depths) for speed in speeds),
        memory_bytes=tuple(random.uniform(1e9, 6e9) for _ in range(devices)),
        block_memory_bytes=tuple(1e9 + 0.25e9 * (block + 1) for block in range(BLOCKS)),
        block_bits=PARAMETER_BITS,
        bandwidth_hz=BAND_HZ,
        spectral_efficiency=tuple(
            float(log2(1 + SNR * PATH_LOSS[where] * random.expovariate(1.0))) for _ in range(devices)
        ),
    )


def random_problem(seed: int, size: Size, *, rows: str = "deepen", bandwidth: str = "joint") -> Problem:
    """A problem with devices 8x apart, channels 60x apart, and computing at 0.03x to 30x of sending, by seed.

    rows: `deepen` (times and memory grow with depth, as CRUNCH requires) or `any` (times of any shape).
    """
    random = Random(f"deft {seed} {size} {rows}")
    weight = 10 ** random.uniform(-1.5, 1.5)
    depths = [1 + block / size.blocks for block in range(size.blocks)]
    needs = [1e9 * depth for depth in depths]
    memory = [need * random.choice((1.0, 1.0, 2.0)) for need in needs]
    memory += [random.uniform(0.5e9, 3e9) for _ in range(size.devices - size.blocks)]
    random.shuffle(memory)
    speeds = [random.uniform(0.5, 4.0) for _ in range(size.devices)]
    return Problem(
        bandwidth="equal" if bandwidth == "equal" else "joint",
        compute_s=tuple(
            tuple(weight * depth / speed * (1.0 if rows == "deepen" else random.uniform(0.4, 1.6)) for depth in depths)
            for speed in speeds
        ),
        memory_bytes=tuple(memory),
        block_memory_bytes=tuple(needs),
        block_bits=PARAMETER_BITS,
        bandwidth_hz=PARAMETER_BITS * size.blocks / 2.0,
        spectral_efficiency=tuple(random.uniform(0.1, 6.0) for _ in range(size.devices)),
    )


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
    return Figure(
        name="bisection_100x64_fresh_s",
        value=first_solve_s(random_problem(0, Size(100, 64)), "bisection"),
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
