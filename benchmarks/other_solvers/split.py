"""Kind "split": solve times of `auto`, its gap to its own bound, and its gain over the paper's heuristics.

Gains are printed like Figure 7 of the paper (Tirana et al., INFOCOM 2024): eight sizes, both scenarios, both networks,
preemption at the ends of slots. Beside each stands the gain of the authors' method on their own random problems, from
the numbers published with the figure. Their problems are not published, so those gains are no targets.

Our random problems follow the two scenarios of Section VII. Times of a batch of 128 samples: Table I of the paper for
whole updates; part 1 as measured per device in its Fig. 5, whose numbers the authors publish with their plots
(github.com/jtirana98/SFL-workflow-optimization). Parts 2 and 3 take their share of the whole by the networks'
multiply-adds on CIFAR-10, a third of it forward. Links are of the Internet in France: in scenario 2 as the authors'
generator has them, 30 % up to 4 Mbit/s, 42 % up to 10, 16 % up to 15, the rest up to 20, in scenario 1 near the mean;
as there, a tensor counts a tenth of its float32 bytes. Slots last 180 ms for ResNet101 and 550 ms for VGG19, as in the
paper.
"""

import math
import statistics
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from benchmarks.report import Figure
from fleetune.solving.split.problem import Problem, Solution
from fleetune.solving.split.solve import solve


class Network(NamedTuple):
    """Numbers of the paper's tables for a network with the paper's cuts."""

    slot_ms: float
    part1_ms: tuple[tuple[float, float], ...]
    """(forward, backward) on each of CLIENTS."""
    whole_ms: tuple[float, ...]
    """One batch update on each of CLIENTS; a Raspberry Pi 3, which cannot do it, counts as half as fast as a 4."""
    helper_ms: tuple[float, float]
    """One batch update on each of HELPERS."""
    part2_share: float
    part3_share: float
    sent_bytes: tuple[float, float]
    """Bytes at the two cuts, float32."""
    part2_gb: float
    """Activations, weights and gradients of a client's part 2."""


CLIENTS = ("Raspberry Pi 4", "Raspberry Pi 3", "Jetson Nano CPU", "Jetson Nano GPU")
HELPERS = ("VM", "Apple M1")
HELPER_GB = 16.0
MBIT_PER_S = ((0.30, 1, 4), (0.42, 5, 10), (0.16, 11, 15), (0.12, 16, 20))
"""(share of links, smallest, largest speed)."""
NEAR_MEAN = (8, 12)
NETWORKS = {
    "resnet101": Network(
        slot_ms=180.0,
        part1_ms=((574.3, 7.6), (642.4, 21.0), (9223.5, 73.4), (14.9, 32.0)),
        whole_ms=(91_900.0, 183_800.0, 143_000.0, 1200.0),
        helper_ms=(2000.0, 3500.0),
        part2_share=0.89,
        part3_share=0.10,
        sent_bytes=(128 * 64 * 32 * 32 * 4, 128 * 1024 * 8 * 8 * 4),
        part2_gb=0.9,
    ),
    "vgg19": Network(
        slot_ms=550.0,
        part1_ms=((3056.2, 10662.4), (6230.0, 10862.5), (8303.0, 10711.4), (177.2, 270.6)),
        whole_ms=(71_900.0, 143_800.0, 396_000.0, 2600.0),
        helper_ms=(3600.0, 3600.0),
        part2_share=0.89,
        part3_share=0.01,
        sent_bytes=(128 * 64 * 16 * 16 * 4, 128 * 512 * 4),
        part2_gb=0.6,
    ),
}


class Setting(NamedTuple):
    """Parameters of one bar of the paper's figures."""

    clients: int
    helpers: int
    scenario: int
    """1: devices of the tables and one pair of cuts; 2: interpolated devices with individual cuts and memories."""
    network: str
    preemptive: bool = False
    switch_cost: int = 0


def random_problem(seed: int, setting: Setting) -> Problem:
    """A random problem whose clients fit the helpers' memory."""
    random, network = Random(f"{seed} {setting}"), NETWORKS[setting.network]
    clients = [_client(random, network, setting.scenario) for _ in range(setting.clients)]
    speeds = [_helper_ms(random, network, setting.scenario) for _ in range(setting.helpers)]
    mbits = [[_link(random, setting.scenario) for _ in clients] for _ in speeds]
    needs = [round(network.part2_gb * client.part2 / network.part2_share, 2) for client in clients]

    def slots(milliseconds: float, smallest: int = 0) -> int:
        return max(smallest, math.ceil(milliseconds / network.slot_ms - 1e-9))

    def sent_ms(helper: int, client: int, cut: int) -> float:
        return network.sent_bytes[cut] / 10 * 8 / (mbits[helper][client] * 1e6) * 1e3

    def matrix(cell, smallest: int = 0) -> tuple[tuple[int, ...], ...]:  # type: ignore[no-untyped-def]
        return tuple(
            tuple(slots(cell(i, j, client), smallest) for j, client in enumerate(clients)) for i in range(len(speeds))
        )

    return Problem(
        release=matrix(lambda i, j, c: c.part1_ms[0] + sent_ms(i, j, 0)),
        forward=matrix(lambda i, j, c: speeds[i] * c.part2 / 3, 1),
        turnaround_forward=matrix(lambda i, j, c: c.part3_ms / 3 + sent_ms(i, j, 1)),
        turnaround_backward=matrix(lambda i, j, c: c.part3_ms * 2 / 3 + sent_ms(i, j, 1)),
        backward=matrix(lambda i, j, c: speeds[i] * c.part2 * 2 / 3, 1),
        tail=matrix(lambda i, j, c: c.part1_ms[1] + sent_ms(i, j, 0)),
        helper_memory=_memories(random, setting, needs),
        client_memory=tuple(needs),
        preemptive=setting.preemptive,
        switch_cost=(setting.switch_cost,) * setting.helpers,
    )


class _Client(NamedTuple):
    part1_ms: tuple[float, float]
    part2: float
    """Share of the network in part 2."""
    part3_ms: float


def _client(random: Random, network: Network, scenario: int) -> _Client:
    if scenario == 1:
        k = random.randrange(len(CLIENTS))
        return _Client(network.part1_ms[k], network.part2_share, network.whole_ms[k] * network.part3_share)
    forward = random.uniform(min(x for x, _ in network.part1_ms), max(x for x, _ in network.part1_ms))
    backward = random.uniform(min(x for _, x in network.part1_ms), max(x for _, x in network.part1_ms))
    whole = random.uniform(min(network.whole_ms), max(network.whole_ms))
    longer, shorter = random.uniform(1.0, 2.0), random.uniform(0.5, 1.5)
    share = network.part2_share - 0.05 * (longer - 1.0) - network.part3_share * (shorter - 1.0)
    return _Client((forward * longer, backward * longer), share, whole * network.part3_share * shorter)


def _helper_ms(random: Random, network: Network, scenario: int) -> float:
    if scenario == 1:
        return network.helper_ms[random.randrange(len(HELPERS))]
    return random.uniform(min(network.helper_ms), 1.5 * max(network.helper_ms))


def _link(random: Random, scenario: int) -> int:
    if scenario == 1:
        return random.randint(*NEAR_MEAN)
    _, smallest, largest = random.choices(MBIT_PER_S, [share for share, _, _ in MBIT_PER_S])[0]
    return random.randint(smallest, largest)


def _memories(random: Random, setting: Setting, needs: list[float]) -> tuple[float, ...]:
    """Helper memory in GB: full in scenario 1; random from a tenth up in scenario 2, scaled until all clients fit."""
    given = [
        HELPER_GB if setting.scenario == 1 else HELPER_GB * random.uniform(0.1, 1.0) for _ in "h" * setting.helpers
    ]
    largest = max(needs)
    while sum(max(0.0, memory - largest) for memory in given) < sum(needs):
        given = [memory * 1.1 for memory in given]
    return tuple(round(memory, 2) for memory in given)


def tight_problem(seed: int, clients: int, helpers: int, *, preemptive: bool) -> Problem:
    """A harder problem: no path dominates, helpers differ up to 2x in speed, memory is nearly exhausted."""
    random = Random(f"tight {seed} {clients} {helpers}")
    speeds = [random.uniform(1.0, 2.0) for _ in range(helpers)]
    work = [random.uniform(8.0, 20.0) for _ in range(clients)]
    ratio = [random.uniform(1.6, 2.4) for _ in range(clients)]

    def own(smallest: int, most: int, apart: int) -> tuple[tuple[int, ...], ...]:
        mean = [random.randint(smallest, most) for _ in range(clients)]
        return tuple(tuple(x + random.randint(0, apart) for x in mean) for _ in range(helpers))

    needs = [random.randint(1, 3) for _ in range(clients)]
    room = [max(3, round(sum(needs) / helpers * random.uniform(1.1, 1.8))) for _ in range(helpers)]
    return Problem(
        release=own(5, 40, 15),
        forward=tuple(tuple(max(1, round(x / speed)) for x in work) for speed in speeds),
        turnaround_forward=own(5, 30, 15),
        turnaround_backward=own(2, 20, 10),
        backward=tuple(
            tuple(max(1, round(x * y / speed)) for x, y in zip(work, ratio, strict=True)) for speed in speeds
        ),
        tail=own(5, 40, 15),
        helper_memory=tuple(map(float, room)),
        client_memory=tuple(map(float, needs)),
        preemptive=preemptive,
        switch_cost=(0,) * helpers,
    )


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
