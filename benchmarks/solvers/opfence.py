"""Kind "opfence": solve times of the search and the speed-up of its plans over the FusionLLM paper's baselines.

Times are those of `fleetune solve` in a fresh process, with start, imports, reading and writing. Speed-ups are ratios
of eq. (3) on the paper's testbeds and networks, dense and with AdaTopK at the paper's ratio of 100.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import Figure, median_and_spread
from benchmarks.solvers.opfence_problems import TESTBED_1, TESTBED_2, Testbed, gpt2, problem, resnet
from fleetune.contracts import json_io
from fleetune.solving.opfence.problem import Operator, Solution
from fleetune.solving.opfence.solve import solve

SHEET = "opfence: how much faster by eq. (3) than the paper's baselines (the paper: 1.45 - 9.39)"
RATIO = 100.0
BASELINES = ("equal-modules", "equal-compute")
OURS = ("search", "opfence")
LIMITS_S = {24: 2.0, 48: 10.0}
TIME_LIMITS_S = (0.05, 0.2, 0.6, 1.0, 1.8)
PROGRAM = "import sys; from flows.cli import main; sys.argv[0] = 'fleetune'; main()"


class Network(NamedTuple):
    """A graph of operators and the paper's number of micro-batches (Table 6)."""

    name: str
    operators: tuple[Operator, ...]
    micro_batches: int


def figures(quick: bool) -> list[Figure]:
    """All figures of this kind; `quick` has one seed on the smaller testbed and one process per testbed."""
    networks = [Network("gpt2-xl", gpt2(), 2), Network("resnet-101", resnet(), 5)]
    found = []
    for testbed in (TESTBED_1, TESTBED_2):
        found.append(_in_fresh_process(testbed, networks[:1] if quick else networks, quick))
    found.append(_over_the_limit(networks[0]))
    tally = _Tally()
    for testbed in (TESTBED_1,) if quick else (TESTBED_1, TESTBED_2):
        for network in networks:
            for ratio in (None, RATIO):
                found += tally.speed_ups(testbed, network, ratio, seeds=1 if quick else 3)
                if not quick:
                    tally.compare(testbed, network, ratio, seed=0, mixed=True)
    return [*found, *tally.figures()]


def _in_fresh_process(testbed: Testbed, networks: list[Network], quick: bool) -> Figure:
    """Time of the slowest `fleetune solve` in processes of their own."""
    devices = sum(machines * each for _, machines, each in testbed.machines)
    times, busy = [], []
    with tempfile.TemporaryDirectory(prefix="fleetune-bench-") as folder:
        for network in networks:
            for ratio in (RATIO,) if quick else (None, RATIO):
                asked = problem(testbed, network.operators, network.micro_batches, seed=9, ratio=ratio, mixed=True)
                path = Path(folder) / "problem.json"
                path.write_text(json.dumps(json_io.dump(asked)), encoding="utf-8")
                started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run(
                    [sys.executable, "-P", "-c", PROGRAM, "solve", str(path)], check=True, stdout=subprocess.DEVNULL
                )
                times.append(time.perf_counter() - started)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                busy.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return Figure(
        name=f"opfence_{devices}_devices_s",
        value=max(times),
        unit="s",
        target=LIMITS_S[devices],
        better="lower",
        spread=(min(times), max(times)),
        about=f"slowest of {len(times)} searches in fresh processes, {testbed.name}; at most {max(busy):.2f} s of CPU",
    )


def _over_the_limit(network: Network) -> Figure:
    """Largest excess of `search` over its time limit on the larger testbed."""
    asked = problem(TESTBED_2, network.operators, network.micro_batches, seed=9, ratio=RATIO, mixed=True)
    solve(asked, time_limit_s=TIME_LIMITS_S[0])  # imports
    over = [solve(asked, time_limit_s=limit).solve_s - limit for limit in TIME_LIMITS_S]
    return Figure(
        name="opfence_48_devices_over_the_limit_s",
        value=max(over),
        unit="s",
        target=0.3,
        better="lower",
        spread=(min(over), max(over)),
        about=f"{network.name}, time limits of {', '.join(map(str, TIME_LIMITS_S))} s",
    )


class _Tally:
    """Counts plans that are slower than a plan they must not be slower than."""

    def __init__(self) -> None:
        self.compared = {method: 0 for method in OURS}
        self.slower = {method: 0 for method in OURS}
        self.search_slower = 0
        self.gaps: list[float] = []

    def speed_ups(self, testbed: Testbed, network: Network, ratio: float | None, seeds: int) -> Iterator[Figure]:
        """Speed-ups of our methods over the paper's baselines; devices in order of machines, links random by seed."""
        plans = [self.compare(testbed, network, ratio, seed=seed, mixed=False) for seed in range(seeds)]
        devices = sum(machines * each for _, machines, each in testbed.machines)
        for ours in OURS:
            for baseline in BASELINES:
                yield Figure(
                    name=f"{network.name}_{devices}_{'dense' if ratio is None else 'top-k'}_{ours}_over_{baseline}",
                    **median_and_spread([plan[baseline].objective / plan[ours].objective for plan in plans]),
                    unit="x",
                    better="higher",
                    about=f"{baseline} over {ours} by eq. (3), {len(plans)} drawn (the paper's: 1.45 - 9.39)",
                    cell=(
                        SHEET,
                        f"{network.name}, {devices} devices, {'dense' if ratio is None else 'top-k'}",
                        f"{baseline} / {ours}",
                    ),
                )

    def compare(
        self, testbed: Testbed, network: Network, ratio: float | None, *, seed: int, mixed: bool
    ) -> dict[str, Solution]:
        """Plans of all methods, counted; mixed: devices in random order, which is worse for the baselines."""
        asked = problem(testbed, network.operators, network.micro_batches, seed=seed, ratio=ratio, mixed=mixed)
        plans = {method: solve(asked, method=method) for method in (*OURS, *BASELINES)}
        search = plans["search"]
        self.search_slower += search.objective > plans["opfence"].objective
        assert search.lower_bound is not None
        self.gaps.append(search.objective / search.lower_bound - 1)
        for ours in OURS:
            for baseline in BASELINES:
                self.compared[ours] += 1
                self.slower[ours] += plans[ours].objective > plans[baseline].objective
        return plans

    def figures(self) -> list[Figure]:
        """The counts, whose targets are 0, and the gap to the bound."""
        found = [
            Figure(
                name=f"opfence_kind_{ours}_above_baselines",
                value=self.slower[ours],
                unit="plans",
                target=0,
                better="lower",
                about=f"of {self.compared[ours]} comparisons, those with a baseline's plan faster than {ours}'s",
            )
            for ours in OURS
        ]
        found.append(
            Figure(
                name="opfence_kind_search_above_opfence",
                value=self.search_slower,
                unit="plans",
                target=0,
                better="lower",
                about=f"of {len(self.gaps)} problems",
            )
        )
        found.append(
            Figure(
                name="opfence_kind_search_gap",
                **median_and_spread(self.gaps),
                unit="",
                better="lower",
                about="search over its lower bound, less 1",
            )
        )
        return found
