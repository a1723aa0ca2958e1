"""Lower bounds are below every plan, and not far below."""

import numpy as np
import pytest

from fleetune.solving.limits import NO_DEADLINE
from fleetune.solving.split.benders import BendersMaster
from fleetune.solving.split.bounds import branch_and_cut_bound, energetic_bound, quick_bound, volume_bound
from fleetune.solving.split.energetic import EnergeticBound
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.schedule import Gap
from fleetune.solving.split.schedule_cache import ScheduleCache
from tests.support.solving.split.problems import random_problem, scenario_problem, tiny_problem
from tests.support.solving.split.reference import best

HOW = {"switch": 2, "link": 0.15, "room": 1.5}


@pytest.mark.parametrize("preemptive", [False, True])
def test_never_above_the_best(preemptive: bool) -> None:
    """No plan of a tiny problem, with missing links, little memory and switch costs, is below any bound."""
    met = 0
    for seed in range(120):
        problem = tiny_problem(seed, preemptive=preemptive, **(HOW if seed % 2 else {}))
        least = best(problem)
        if least is None:
            continue
        instance = Instance.from_problem(problem)
        assert volume_bound(instance) <= least
        assert quick_bound(instance) <= least
        energetic = EnergeticBound(instance)
        low = energetic_bound(energetic, least + 3, 1000)
        assert branch_and_cut_bound(energetic, Gap(low, least + 3), 1000).bound <= least
        met += quick_bound(instance) == least
    assert met > 40


@pytest.mark.parametrize("preemptive", [False, True])
def test_horizons(preemptive: bool) -> None:
    """The Benders search rules out no horizon that has a plan, and every horizon below it."""
    for seed in range(40):
        problem = tiny_problem(seed, preemptive=preemptive, link=0.1)
        least = best(problem)
        if least is None:
            continue
        instance = Instance.from_problem(problem)
        master = BendersMaster(EnergeticBound(instance), ScheduleCache(instance))
        for horizon in (least, least - 1):
            verdict = master.decide(horizon, work=5.0, rounds=100, hint=None, deadline=NO_DEADLINE)
            assert verdict.impossible == (horizon < least)
            assert verdict.meets_horizon == (horizon == least)


def test_alike_helpers() -> None:
    """With identical helpers the bound equals the work per helper."""
    problem = random_problem(0, 40, 4, preemptive=False, longest=1, delay=0, room=4)
    assert quick_bound(Instance.from_problem(problem)) == 20


def test_rows_hold() -> None:
    """Every cut holds for any assignment at the makespan of its schedules."""
    instance = Instance.from_problem(scenario_problem(3, 24, 3))
    energetic, cache = EnergeticBound(instance), ScheduleCache(instance)
    random = np.random.default_rng(0)
    for _ in range(20):
        helper = random.integers(0, 3, 24)
        share = np.zeros((3, 24))
        share[helper, np.arange(24)] = 1.0
        energetic.separate(share, energetic.path_bound())
    assert energetic.cuts
    for _ in range(200):
        helper = random.integers(0, 3, 24)
        masks = [sum(1 << int(j) for j in np.flatnonzero(helper == i)) for i in range(3)]
        for row in energetic.cuts:
            need = int(row.weight[helper == row.helper].sum())
            value = cache.find(row.helper, masks[row.helper]).value
            assert need == 0 or need <= value - row.edge


def test_time_scale() -> None:
    """The same problem in units a million times finer has, within rounding, a bound a million times larger."""
    small, large = scenario_problem(1, 20, 4), scenario_problem(1, 20, 4)
    fields = ("release", "forward", "turnaround_forward", "turnaround_backward", "backward", "tail")
    times = {name: tuple(tuple(x * 10**6 for x in row) for row in getattr(small, name)) for name in fields}
    large = type(small)(
        **times, helper_memory=small.helper_memory, client_memory=small.client_memory, preemptive=True,
        switch_cost=small.switch_cost,
    )  # fmt: skip
    bound, fine = quick_bound(Instance.from_problem(small)), quick_bound(Instance.from_problem(large))
    assert (bound - 1) * 10**6 < fine <= bound * 10**6 * (1 + 1e-5)
