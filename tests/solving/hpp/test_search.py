"""Method search against all plans of tiny problems, and at the edges of what a problem may be."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.errors import Infeasible
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.methods import SUMMARIES
from fleetune.solving.hpp.methods import search as search_module
from fleetune.solving.hpp.methods.search import Search, SearchOptions
from fleetune.solving.hpp.problem import Problem, Solution
from fleetune.solving.hpp.solve import solve
from tests.support.solving.hpp import brute_force, reference
from tests.support.solving.hpp.instances import drawn, tiny

SYNCHRONOUS = [method for method in SUMMARIES if method not in ("search", "hetpipe")]


def instances() -> Iterator[Problem]:
    """30 problems over link speeds, memory budgets that bind, and policies."""
    links, memories = (0.1, 1.0, 10.0), (1.0, 0.5, 0.4, 0.35, 0.3)
    policies = ("2(P-p)-1", "P-p", "2(P-p)-1", "2(P-p)", "free", "2(P-p)-1", "2(P-p)+1", (3, 2))
    for seed in range(30):
        policy = policies[seed % 8]
        yield tiny(
            seed,
            layers=4 + seed % 2,
            devices=3 + (seed % 5 == 4),
            samples=2 + seed % 3 if seed % 5 != 4 else 2,
            link=links[seed % 3],
            memory=memories[seed % 5],
            warmup=policy,
            micro_batches=3 if policy == "free" else 2 + seed % 5,
        )


def searched(problem: Problem) -> Solution | None:
    """The plan of `search`, checked to be valid and to fit; None where the problem is infeasible."""
    try:
        plan = solve(problem)
    except Infeasible:
        return None
    reference.assert_plan(problem, plan.stages)
    assert plan.feasible
    assert reference.fits(problem, plan)
    return plan


def test_as_good_as_any_plan() -> None:
    """Within 3 % of the best of all plans, 0.5 % on average, never below it nor below the bound; a plan wherever there
    is one and none elsewhere; no baseline that fits is better."""
    gaps, without = [], 0
    for problem in instances():
        plan, best = searched(problem), brute_force.best_ns(problem)
        assert (plan is None) == (best is None)
        if plan is None or best is None:
            without += 1
            continue
        assert plan.objective * 1e9 >= best - 0.5
        assert plan.lower_bound is not None
        assert plan.lower_bound <= best / 1e9
        gaps.append(plan.objective * 1e9 / best - 1)
        for method in SYNCHRONOUS:
            try:
                other = solve(problem, method=method)
            except Infeasible:
                continue
            assert other.feasible == reference.fits(problem, other)
            assert not other.feasible or other.objective >= plan.objective
    assert max(gaps) <= 0.03
    assert sum(gaps) / len(gaps) <= 0.005
    assert 1 <= without <= 15


@pytest.mark.parametrize("seed", range(4))
def test_tight_islands(seed: int) -> None:
    """Budgets that leave a few plans far from each other: where only seven or fewer percent fit, one of them is
    found, and the best or nearly."""
    problem = tiny(100 + seed, layers=5, devices=3, samples=4, memory=0.36, link=0.05, warmup="2(P-p)+1")
    plan, best = searched(problem), brute_force.best_ns(problem)
    assert (plan is None) == (best is None)
    assert plan is None or best is None or plan.objective * 1e9 <= 1.03 * best


def test_the_budget_may_be_used_to_the_last_byte() -> None:
    """A device with exactly the bytes of a stage takes it; with one byte less nobody can."""
    problem = drawn(micro_batch=1, warmup=(5, 3, 1))
    exact = [int(reference.peak_bytes(problem, (p, p + 1), k, 1)) for p, k in enumerate((5, 3, 1))]
    assert exact == [5000, 4600, 4200]

    def with_budgets(*sizes: int) -> Problem:
        devices = [dataclasses.replace(d, memory_bytes=y) for d, y in zip(problem.devices, sizes, strict=True)]
        return dataclasses.replace(problem, devices=tuple(devices))

    plan = solve(with_budgets(4200, 5000, 4600))
    assert [[share.name for share in stage.devices] for stage in plan.stages] == [["nano-1"], ["tx2"], ["nano-0"]]
    assert plan.memory_bytes == {"nano-0": 4200, "nano-1": 5000, "tx2": 4600}
    for k in range(3):
        with pytest.raises(Infeasible):
            solve(with_budgets(*(size - (i == k) for i, size in enumerate((4200, 5000, 4600)))))


@pytest.mark.parametrize("optimizer", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("snapshots", [0, 1])
def test_state_in_memory(optimizer: float, snapshots: int) -> None:
    """One device, one sample: it fits exactly what weights, gradients, optimizer and snapshots come to."""
    problem = tiny(
        7, devices=1, samples=1, micro_batches=1, optimizer_bytes_per_param_byte=optimizer, snapshots=snapshots
    )
    need = -int(-reference.peak_bytes(problem, (0, 5), 1, 1) // 1)

    def given(size: int) -> Problem:
        return dataclasses.replace(problem, devices=(dataclasses.replace(problem.devices[0], memory_bytes=size),))

    assert solve(given(need)).memory_bytes == {"device-0": need}
    with pytest.raises(Infeasible, match="device-0"):
        solve(given(need - 1))


def test_same_seed_same_plan() -> None:
    """The same problem, seed and method give the same bytes apart from solve_s."""
    problem = tiny(5, layers=8, devices=4, link=0.5)
    plans = [dataclasses.replace(solve(problem, seed=3), solve_s=0.0) for _ in range(2)]
    assert json_io.dump(plans[0]) == json_io.dump(plans[1])
    assert plans[0].deterministic


def test_same_plan_in_a_fresh_process() -> None:
    """Nothing but problem, seed and method decides: not the process, its history or its hashes."""
    code = (
        "from dataclasses import replace; from fleetune.contracts import json_io; "
        "from fleetune.solving.hpp.solve import solve; from tests.support.solving.hpp.instances import tiny; "
        "print(json_io.dump(replace(solve(tiny(5, layers=8, devices=4, link=0.5), seed=3), solve_s=0.0)))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(__file__).parents[2])}
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    plan = solve(tiny(5, layers=8, devices=4, link=0.5), seed=3)
    assert fresh.stdout.strip() == str(json_io.dump(dataclasses.replace(plan, solve_s=0.0)))


def test_every_device() -> None:
    """Slow devices are left out unless all must take part; then the best plan of all is found."""
    problem = tiny(3, layers=4, samples=3, link=0.05)
    free, forced = solve(problem), solve(problem, every_device=True)
    best = brute_force.best_ns(problem, every_device=True)
    assert sum(len(stage.devices) for stage in free.stages) < 3
    assert sum(len(stage.devices) for stage in forced.stages) == 3
    assert best is not None
    assert forced.objective * 1e9 == pytest.approx(best, rel=0.03)


@pytest.mark.parametrize(
    ("layers", "samples", "warmup", "most"), [(1, 2, "P-p", 2), (3, 1, "free", 3), (4, 1, (3, 1), 2)], ids=str
)
def test_more_devices_than_can_take_part(layers: int, samples: int, warmup: str | tuple[int, ...], most: int) -> None:
    """Where there are fewer samples in all stages than devices, some stay out; forcing all says why not."""
    problem = tiny(1, layers=layers, devices=5, samples=samples, warmup=warmup, link=5.0)
    plan = searched(problem)
    assert plan is not None
    assert sum(len(stage.devices) for stage in plan.stages) <= most
    with pytest.raises(Infeasible, match=f"every_device: 5 devices .* at most {most}"):
        solve(problem, every_device=True)


@pytest.mark.parametrize("kept", [(2,), (4, 1), (9, 9), (7, 3, 3)], ids=str)
def test_a_list_fixes_the_stages(kept: tuple[int, ...]) -> None:
    """As many stages as K are listed, each with its own."""
    plan = searched(tiny(4, link=0.2, warmup=kept))
    assert plan is not None
    assert tuple(stage.warmup for stage in plan.stages) == kept


PLAIN = tiny(1)


def with_layers(**changes: Any) -> Problem:
    """The basic problem, every layer changed alike."""
    return dataclasses.replace(PLAIN, layers=tuple(dataclasses.replace(x, **changes) for x in PLAIN.layers))


def with_links(field: str, factor: Callable[[int, int], float]) -> Problem:
    """The basic problem, each link's number multiplied."""
    rows = getattr(PLAIN, field)
    made = tuple(tuple(x and x * factor(a, b) for b, x in enumerate(row)) for a, row in enumerate(rows))
    return dataclasses.replace(PLAIN, **{field: made})


def with_times(sizes: tuple[int, ...], pick: Callable[[tuple[float, ...], int], tuple[float, ...]]) -> Problem:
    """The basic problem, the times of every layer chosen anew from those at 1, 2 and 4 samples."""
    rows = [
        tuple(tuple(pick(times, layer) for layer, times in enumerate(row)) for row in table)
        for table in (PLAIN.forward_s, PLAIN.backward_s)
    ]
    return dataclasses.replace(PLAIN, batch_sizes=sizes, forward_s=rows[0], backward_s=rows[1])


EDGES = {
    "one layer": tiny(1, layers=1),
    "one device": tiny(1, devices=1),
    "one sample": tiny(1, samples=1),
    "one micro-batch": tiny(1, micro_batches=1),
    "one of everything": tiny(1, layers=1, devices=1, samples=1, micro_batches=1),
    "alike devices": dataclasses.replace(
        PLAIN, forward_s=(PLAIN.forward_s[0],) * 3, backward_s=(PLAIN.backward_s[0],) * 3
    ),
    "nothing crosses": with_layers(output_bytes=0, gradient_bytes=None),
    "mostly frozen": with_layers(trainable_bytes=0),
    "large gradients": with_layers(gradient_bytes=5000),
    "huge bytes": with_layers(param_bytes=10**13, trainable_bytes=10**12),
    "slow to arrive": with_links("latency_s", lambda a, b: 1000.0),
    "one-way links": with_links("bandwidth_bytes_per_s", lambda a, b: 100.0 if a < b else 0.1),
    "layers of no time": with_times((1, 2, 4), lambda times, layer: times if layer % 2 else (0.0,) * 3),
    "no time at all": with_times((1, 2, 4), lambda times, layer: (0.0,) * 3),
    "one size measured": with_times((2,), lambda times, layer: times[1:2]),
    "beyond the sizes measured": with_times((1, 2), lambda times, layer: times[:2]),
    "larger batches sometimes faster": with_times((1, 2, 4), lambda times, layer: (times[0], times[2], times[1])),
}
EDGES["huge bytes"] = dataclasses.replace(
    EDGES["huge bytes"], devices=tuple(dataclasses.replace(d, memory_bytes=10**14) for d in PLAIN.devices)
)


@pytest.mark.parametrize("edge", EDGES)
def test_edges(edge: str) -> None:
    """At every edge of what a problem may be: within 3 % of the best of all plans, by the second opinion's clock."""
    problem = EDGES[edge]
    plan, best = searched(problem), brute_force.best_ns(problem)
    assert plan is not None
    assert best is not None
    assert best <= round(plan.objective * 1e9) <= 1.03 * best
    assert plan.objective == pytest.approx(reference.round_s(problem, plan), abs=1e-12)


def test_a_clock_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one worker and a clock that advances a second per reading, a limit of 150 s ends the walks: no work is done
    after it, and the plan is no better than one found with more time."""
    problem = tiny(3, layers=9, devices=4, link=0.3)
    work_done: list[int] = []

    def now() -> float:
        work_done.append(int(search.workers[0].evaluator.work[0]) if len(work_done) > 0 else 0)
        return float(len(work_done))

    monkeypatch.setattr(search_module, "WORKERS", 1)
    search = Search(Instance(problem), SearchOptions(time_limit_s=150.0, now=now))
    found = search.best()
    assert work_done[149] < work_done[150] == work_done[-1] == search.workers[0].evaluator.work[0]
    assert found.score / 1e9 >= solve(problem).objective


def test_a_limit_is_not_deterministic() -> None:
    """With a time limit `search` reports deterministic false; other methods ignore the limit."""
    problem = tiny(3, layers=3)
    assert not solve(problem, time_limit_s=0.05).deterministic
    assert solve(problem, method="asteroid", time_limit_s=0.05).deterministic
