"""The building blocks of the search, each compared with brute force."""

import itertools
from random import Random

import numpy as np
import pytest

from fleetune.contracts import json_io
from fleetune.errors import Infeasible
from fleetune.solving.opfence import brute_force
from fleetune.solving.opfence.bound import heaviest_path, lower_bound_s
from fleetune.solving.opfence.brute_force import best_placement
from fleetune.solving.opfence.device_exchange import exchange_devices
from fleetune.solving.opfence.graph import components, depth_first, topological
from fleetune.solving.opfence.infeasibility import pack
from fleetune.solving.opfence.instance import Instance, equal_cuts, linear_order, linear_orders
from fleetune.solving.opfence.local_search import IncrementalPlacement, anneal, chain_moves
from fleetune.solving.opfence.path_dp import PathProgram, TrialLimits, best_cuts
from fleetune.solving.opfence.problem import Problem
from tests.support.solving.opfence.instances import (
    Plain,
    branches,
    chain,
    clustered,
    drawn,
    resnet,
    solved,
    tiny,
    transformer,
)
from tests.support.solving.opfence.reference import best


def instance_of(plain: Plain) -> Instance:
    """Return the arrays of a problem."""
    return Instance(json_io.load(Problem, plain, "p.json"))


def somewhere(instance: Instance, seed: int) -> np.ndarray:
    """Return a random placement."""
    return np.random.default_rng(seed).integers(0, instance.devices, instance.operators)


@pytest.mark.parametrize("memory", [None, 1.7])
def test_search_without_brute_force(memory: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 problems of 6 operators on 3 devices: the search proper finds the best of all 729 placements in all but
    two at most, and is never more than 10 % above it."""
    monkeypatch.setattr(brute_force, "MAX_PLACEMENTS", 1)
    gaps = []
    for seed in range(100, 130):
        plain = tiny(seed, operators=6, memory=memory)
        least = best_placement(instance_of(plain))
        if least is None:
            with pytest.raises(Infeasible):
                solved(plain, "search")
            continue
        least_s = instance_of(plain).cost_s(least)
        gaps.append(solved(plain, "search")["objective"] / least_s - 1 if least_s else 0.0)
    assert len(gaps) > 15
    assert sum(gap < 1e-9 for gap in gaps) >= len(gaps) - 2
    assert max(gaps) < 0.1


@pytest.mark.parametrize("seed", range(8))
def test_every_placement(seed: int) -> None:
    """The enumeration finds the best placement that fits."""
    plain = tiny(seed, operators=4, memory=2.0)
    instance, least = instance_of(plain), best(plain)
    found = best_placement(instance)
    assert (found is None) == (least is None)
    if found is not None and least is not None:
        assert instance.cost_s(found) == pytest.approx(float(least), rel=1e-9)


@pytest.mark.parametrize("ratio", [None, 5.0])
@pytest.mark.parametrize("seed", range(6))
def test_best_cuts(seed: int, ratio: float | None) -> None:
    """The cuts found are the cheapest within the limits, for all devices of an order or with some left out."""
    instance = instance_of(clustered(seed, chain(7, seed), (2, 2), ratio))
    line, row = linear_order(instance, instance.order, instance.operators), [2, 0, 3, 1]
    for use_all, limit in itertools.product((True, False), (1.5, 2.5, 4.0, np.inf)):
        limits = TrialLimits(np.array([limit]), np.array([limit]), np.array([np.inf]))
        found = best_cuts(instance, line, row, limits, use_all=use_all)
        least = np.inf
        for count in range(4 if use_all else 1, 5):
            for some, ends in itertools.product(
                itertools.combinations(row, count), itertools.combinations(range(1, 7), count - 1)
            ):
                placement = line.to_placement(list(some), [*ends, 7])
                least = min(least, _dense_sum_s(instance, placement, limit))
        assert (not found) == np.isinf(least)
        if found:
            assert _dense_sum_s(instance, line.to_placement(*found[0]), limit) == pytest.approx(least)


def _dense_sum_s(instance: Instance, placement: np.ndarray, limit: float) -> float:
    """Return the sum of compute and receive times; infinite if a device takes longer or memory is short."""
    traffic = instance.traffic(placement)
    receive_s = np.bincount(traffic.receiver, instance.dense_s(traffic), minlength=instance.devices)
    compute_s = np.bincount(placement, instance.flops, minlength=instance.devices) / instance.speed
    if max(receive_s.max(), compute_s.max()) > limit or not instance.fits(placement):
        return np.inf
    return float(receive_s.sum() + compute_s.sum())


@pytest.mark.parametrize("seed", range(6))
def test_path_program(seed: int) -> None:
    """With devices free to repeat, the cost is a lower bound on a chain; with each used once, placements fit."""
    instance = instance_of(clustered(seed, chain(6, seed), (2, 1)))
    line = linear_order(instance, instance.order, instance.operators)
    for limit in (2.0, 4.0, np.inf):
        limits = TrialLimits(np.array([limit]), np.array([limit]), np.array([np.inf]))
        free = float(PathProgram(instance, line, simple=False).costs(limits)[0])
        least = min(
            _dense_sum_s(instance, np.array(placement), limit)
            for placement in itertools.product(range(3), repeat=instance.operators)
        )
        assert free <= least * (1 + 1e-9)
        for trial in PathProgram(instance, line).paths(limits):
            assert len(set(trial.devices)) == len(trial.devices)
            placement = line.to_placement(*trial)
            assert free * (1 - 1e-9) <= _dense_sum_s(instance, placement, limit * (1 + 1e-6)) < np.inf


@pytest.mark.parametrize("ratio", [None, 30.0])
def test_device_exchange(ratio: float | None) -> None:
    """Exchanging devices never makes a plan slower, keeps it within memory, stays inside each cluster, and ends where
    no exchange of two helps."""
    for seed in range(5):
        instance = instance_of(clustered(seed, resnet((1, 2)), (3, 2), ratio))
        placement = linear_order(instance, instance.order, instance.operators).to_placement(
            [3, 1, 0, 4], [4, 9, 14, instance.operators]
        )
        if not instance.fits(placement):
            continue
        found = exchange_devices(instance, placement)
        assert instance.fits(found)
        for one, other in itertools.combinations(range(instance.devices), 2):
            swapped = np.where(found == one, other, np.where(found == other, one, found))
            assert not instance.fits(swapped) or instance.cost_s(found) <= instance.cost_s(swapped) * (1 + 1e-9)
        cluster_of = np.array([0, 0, 1, 1, 1])
        assert (cluster_of[exchange_devices(instance, placement, cluster_of)] == cluster_of[placement]).all()


@pytest.mark.parametrize("ratio", [None, 30.0])
def test_incremental_costs(ratio: float | None) -> None:
    """Incremental cost and memory equal those computed from the resulting placement after any moves."""
    instance = instance_of(clustered(3, transformer(3), (2, 3), ratio))
    placement, random = somewhere(instance, 3), Random(3)
    state = IncrementalPlacement(instance, placement)
    for _ in range(200):
        operator, device = random.randrange(instance.operators), random.randrange(instance.devices)
        state.move(operator, device)
        placement[operator] = device
        assert state.placement == placement.tolist()
        assert state.cost_s() == pytest.approx(instance.cost_s(placement), rel=1e-9)
    held = np.bincount(placement, instance.memory_bytes, minlength=instance.devices)
    assert state.missing_bytes() == pytest.approx(float(np.maximum(held - instance.budget_bytes, 0).sum()))


def test_moves_and_annealing_help() -> None:
    """From a random placement neither moves nor annealing is slower, and what annealing returns fits."""
    for seed in range(4):
        instance = instance_of(clustered(seed, branches(3, 4), (2, 2), 20.0))
        placement = somewhere(instance, seed)
        found = chain_moves(instance, placement)
        assert instance.cost_s(found) <= instance.cost_s(placement)
        cooled = anneal(instance, found, Random(seed), 2000)
        if cooled is not None:
            assert instance.fits(cooled)
            assert not instance.fits(found) or instance.cost_s(cooled) < instance.cost_s(found)


@pytest.mark.parametrize("ratio", [None, 10.0])
def test_no_placement_is_below_the_bound(ratio: float | None) -> None:
    """40 problems, their best placement known: the bound is not above it, whatever is known before; on a chain over
    links that are all but free it comes near."""
    for seed in range(40):
        plain = tiny(seed, operators=2 + seed % 4, memory=None if seed % 2 else 2.0)
        instance = instance_of(plain | {"compression_ratio": ratio})
        placement = best_placement(instance)
        if placement is None:
            continue
        least_s = instance.cost_s(placement)
        for known_s in (least_s, 3 * least_s):
            assert lower_bound_s(instance, known_s) <= least_s * (1 + 1e-12)


def test_bound_of_a_chain() -> None:
    """A chain on three clusters: the bound is within a third of what the search finds."""
    plan = solved(clustered(1, chain(60), (3, 3)), "search")
    assert plan["objective"] / plan["lower_bound"] < 1.33


def test_orders() -> None:
    """Both orders are topological; depth first ends a branch before it begins the next."""
    instance = instance_of(clustered(0, branches(3, 4), (2,)))
    for order in (topological(instance.parents), depth_first(instance.parents)):
        placement = {operator: at for at, operator in enumerate(order)}
        assert sorted(order) == list(range(instance.operators))
        assert all(placement[one] < placement[user] for user, wanted in enumerate(instance.parents) for one in wanted)
    names = [instance.problem.operators[i].name for i in depth_first(instance.parents)]
    assert names[1:5] == ["b0.0", "b0.1", "b0.2", "b0.3"]


def test_crossing() -> None:
    """The output of `in` crosses every cut of the drawn graph up to `add`, beside the other outputs."""
    instance = instance_of(drawn())
    line = linear_order(instance, instance.order, instance.operators)
    assert line.crossing_bytes.tolist() == [0, 100, 140, 140, 40, 0]
    assert line.crossing.tolist() == [0, 1, 2, 2, 1, 0]
    soon = linear_order(instance, instance.order, 1)
    assert soon.crossing_bytes.tolist() == [0, 100, 40, 140, 40, 0]


def test_coarse_keeps_the_narrow_cuts() -> None:
    """A coarse order keeps its ends and the cuts between blocks, where least crosses."""
    instance = instance_of(clustered(0, transformer(12), (2, 2)))
    line = linear_orders(instance)[0]
    coarse = line.coarse(30)
    assert coarse.cuts <= 32
    assert (coarse.at[0], coarse.at[-1]) == (0, instance.operators)
    assert np.median(coarse.crossing_bytes[1:-1]) < np.median(line.crossing_bytes[1:-1])


def test_components() -> None:
    """Components are sorted by decreasing size."""
    parents = [[], [0], [], [2], [3], []]
    assert components(range(6), parents) == [[2, 3, 4], [0, 1], [5]]
    assert components([0, 2, 4], parents) == [[0], [2], [4]]


def test_heaviest_path() -> None:
    """The path of most flops goes through the heaviest branch."""
    instance = instance_of(clustered(0, branches(3, 4), (2,)))
    names = [instance.problem.operators[i].name for i in heaviest_path(instance)]
    assert names == ["fork", "b2.0", "b2.1", "b2.2", "b2.3", "join"]


def test_packing() -> None:
    """Bins that largest-first misses are filled by the constraint solver: 10, 9, 6, 6, 5, 4 into 20 and 20."""
    plain = drawn(alpha_s=[[0, 1], [1, 0]], beta_s_per_byte=[[0, 1], [1, 0]], optimizer_bytes_per_param_byte=0.0)
    sizes = [10, 9, 6, 6, 5, 4]
    plain["operators"] = [
        {"name": f"o{i}", "flops": 1, "param_bytes": size, "output_bytes": 0, "inputs": []}
        for i, size in enumerate(sizes)
    ]
    plain["devices"] = [{"name": name, "flops_per_s": 1, "memory_bytes": 40} for name in ("a", "b")]
    placement, proven = pack(instance_of(plain))
    assert proven
    assert placement is not None
    assert instance_of(plain).fits(placement)
    plain["devices"] = [
        {"name": name, "flops_per_s": 1, "memory_bytes": 40 + change} for name, change in (("a", 1), ("b", -1))
    ]
    assert pack(instance_of(plain)) == (None, True)


def test_equal_cuts_end_at_the_first_cut_behind_their_share_or_at_the_nearest() -> None:
    """Cuts into equal work lie behind the end of their share, or where nothing is nearer; several may be the same."""
    before = np.array([0.0, 1.0, 5.0, 6.0, 9.0])
    assert equal_cuts(before, 3, nearest=False).tolist() == [2, 3]
    assert equal_cuts(before, 4, nearest=False).tolist() == [2, 2, 4]
    assert equal_cuts(before, 4, nearest=True).tolist() == [1, 2, 3]
    assert equal_cuts(np.array([0.0, 0.0, 2.0, 4.0]), 4, nearest=True).tolist() == [2, 2, 3]
    for seed in range(50):
        random = np.random.default_rng(seed)
        before = np.concatenate([[0.0], np.cumsum(random.integers(0, 5, random.integers(1, 12)))])
        parts = int(random.integers(1, 6))
        ends = before[-1] * np.arange(1, parts) / parts
        behind, near = equal_cuts(before, parts, nearest=False), equal_cuts(before, parts, nearest=True)
        assert len(behind) == len(near) == parts - 1
        for cut, end in zip(behind, ends, strict=True):
            assert before[cut] >= end and (cut == 1 or before[cut - 1] < end)
        for cut, end in zip(near, ends, strict=True):
            assert abs(before[cut] - end) == min(abs(before - end))
