"""A time limit ends every part of the search soon, with a plan as good as what was found by then."""

import importlib
import itertools
import time
from random import Random

import numpy as np
import pytest

from fleetune.contracts import json_io
from fleetune.errors import Infeasible
from fleetune.solving.limits import Deadline
from fleetune.solving.opfence import brute_force
from fleetune.solving.opfence.bound import lower_bound_s
from fleetune.solving.opfence.brute_force import best_placement
from fleetune.solving.opfence.clusters import communities, device_orders, median_hop_s, reconnect_clusters
from fleetune.solving.opfence.device_exchange import exchange_devices
from fleetune.solving.opfence.infeasibility import greedy_packing, pack
from fleetune.solving.opfence.instance import Instance, linear_orders
from fleetune.solving.opfence.local_search import anneal, chain_moves
from fleetune.solving.opfence.methods import search
from fleetune.solving.opfence.path_dp import PathProgram, TrialLimits, best_cuts
from fleetune.solving.opfence.problem import Problem
from tests.support.solving.opfence.instances import Plain, branches, chain, clustered, solved, tiny, transformer
from tests.support.solving.opfence.reference import check

SOON_S = 3.0
"""CPU seconds of a thread; a thirtieth of that suffices on an idle machine."""


class ExpiresAfter(Deadline):
    """Deadline that expires after a number of checks, and records the time of expiry."""

    def __init__(self, checks: int) -> None:
        super().__init__(1e9)
        self.checks = checks
        self.ended_s: float | None = None

    @property
    def expired(self) -> bool:
        """Count a check."""
        self.checks -= 1
        if self.checks < 0 and self.ended_s is None:
            self.ended_s = time.thread_time()
        return self.checks < 0

    def extended(self, share: float, least_s: float) -> Deadline:
        """Return itself: there is no extra time for a first placement."""
        return self


def instance_of(plain: Plain) -> Instance:
    """Return the arrays of a problem."""
    return Instance(json_io.load(Problem, plain, "p.json"))


def tight() -> Plain:
    """Return 36 operators that all but fill 12 devices, whichever way they are packed."""
    random = Random(1)
    nodes = [node | {"param_bytes": 0, "output_bytes": 2 * random.randint(251, 499)} for node in chain(36)]
    each = sum(node["output_bytes"] for node in nodes) // 12 + 3
    links: list[list[float | None]] = [[0.1] * 12] * 12
    return {
        "kind": "opfence",
        "operators": nodes,
        "devices": [{"name": f"d{i}", "flops_per_s": 1000.0, "memory_bytes": each} for i in range(12)],
        "alpha_s": links,
        "beta_s_per_byte": links,
        "micro_batches": 1,
    }


@pytest.fixture(scope="module")
def large() -> Instance:
    """592 operators on 48 devices."""
    return instance_of(clustered(3, transformer(59), (8,) * 6, 100.0))


@pytest.mark.parametrize("checks", [0, 300, 1500, 4500, 5500])
def test_large(large: Instance, checks: int) -> None:
    """At whichever check the limit expires, the plan comes soon, fits, and is no worse than a baseline."""
    deadline = ExpiresAfter(checks)
    placement, bound_s = search.plan(large, 0, deadline)
    assert deadline.ended_s is not None
    assert time.thread_time() - deadline.ended_s < SOON_S
    assert large.fits(placement)
    cost_s = large.cost_s(placement)
    assert 0 < bound_s <= cost_s
    for plain in (search.equal_modules, search.equal_compute):
        other = plain(large, 0)
        assert not large.fits(other) or cost_s <= large.cost_s(other)


@pytest.mark.parametrize("checks", [*range(0, 40, 7), 60, 150, 400, 1000, 3000])
def test_small(checks: int) -> None:
    """The same holds for small problems of every shape, some of which need a packing."""
    for seed, nodes in enumerate([chain(20), branches(4, 5), transformer(2)]):
        instance = instance_of(clustered(seed, nodes, (3, 2, 2), [None, 20.0][seed % 2]))
        placement, bound_s = search.plan(instance, 0, ExpiresAfter(checks))
        assert instance.fits(placement)
        assert bound_s <= instance.cost_s(placement)


def test_real_clock(large: Instance) -> None:
    """A limit of a fifth of a second is kept on the real clock."""
    started = time.thread_time()
    search.plan(large, 0, Deadline(0.2))
    assert time.thread_time() - started < 0.2 + SOON_S


def test_parts_end_at_once() -> None:
    """Every part returns its input, or nothing, if the deadline has expired."""
    instance = instance_of(clustered(1, branches(3, 6), (3, 2), 20.0))
    placement, expired = np.random.default_rng(0).integers(0, instance.devices, instance.operators), ExpiresAfter(0)
    line, limits = linear_orders(instance)[0], TrialLimits(np.full(3, np.inf), np.full(3, np.inf), np.full(3, np.inf))
    clusters = communities(instance, 0)
    for found in (
        chain_moves(instance, placement, deadline=expired),
        exchange_devices(instance, placement, deadline=expired),
        reconnect_clusters(instance, placement, np.array([0, 0, 0, 1, 1]), expired),
    ):
        assert found.tolist() == placement.tolist()
    assert anneal(instance, placement, Random(0), 1000, expired) is None
    assert best_cuts(instance, line, list(range(5)), limits, use_all=False, deadline=expired) == []
    assert PathProgram(instance, line, deadline=expired).paths(limits) == []
    assert PathProgram(instance, line, deadline=expired).costs(limits).tolist() == [0.0] * 3
    for row in device_orders(median_hop_s(instance, line), clusters, 6, expired):
        assert sorted(row) == list(range(5))


def test_moves_keep_what_they_gained() -> None:
    """Moves that are cut short return a placement no worse than the start."""
    instance = instance_of(clustered(1, branches(3, 6), (3, 2), 20.0))
    placement = np.random.default_rng(0).integers(0, instance.devices, instance.operators)
    costs = [
        instance.cost_s(chain_moves(instance, placement, deadline=ExpiresAfter(checks)))
        for checks in (0, 20, 100, 10**6)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == instance.cost_s(placement)
    assert costs[1] < costs[0]
    assert costs[-1] == instance.cost_s(chain_moves(instance, placement))


def test_bound_that_was_cut_short() -> None:
    """A bound that is cut short is weaker, never wrong."""
    for seed, checks in itertools.product(range(0, 40, 3), (0, 3, 15, 40)):
        instance = instance_of(tiny(seed, operators=5))
        placement = best_placement(instance)
        assert placement is not None
        least_s = instance.cost_s(placement)
        bound_s = lower_bound_s(instance, 2 * least_s, ExpiresAfter(checks))
        assert bound_s <= lower_bound_s(instance, 2 * least_s) * (1 + 1e-9)
        assert bound_s <= least_s * (1 + 1e-12)


def test_packing_ends() -> None:
    """The constraint solver keeps the limit, and a packing that it did not find is not called infeasible."""
    importlib.import_module("ortools.sat.python.cp_model")  # which takes time of its own
    started = time.thread_time()
    assert pack(instance_of(tight()), Deadline(0.3)) == (None, False)
    assert time.thread_time() - started < 0.3 + SOON_S


@pytest.mark.parametrize("method", ["search", "opfence"])
def test_nothing_found_in_time(method: str) -> None:
    """If no placement is found within a second, the message says that time was short."""
    started = time.thread_time()
    with pytest.raises(Infeasible) as caught:
        solved(tight(), method, time_limit_s=0.01)
    assert time.thread_time() - started < 2 + SOON_S
    assert str(caught.value).startswith("no placement was found in the time given that fits all memories: with the ")
    assert "; give more time, or split it, " in str(caught.value)


@pytest.mark.parametrize("sizes", [[2, 8, 10, 4, 7, 9], [10, 9, 8, 7, 4, 2]])
@pytest.mark.parametrize("method", ["search", "opfence"])
def test_found_after_the_limit(method: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Even the shortest limit leaves time for a first plan, from a linear order or from the constraint solver alone.

    10 + 8 + 2 and 9 + 7 + 4 fill two devices of 20, which largest-first does not find.
    """
    monkeypatch.setattr(brute_force, "MAX_PLACEMENTS", 1)
    plain = tight() | {"alpha_s": [[1.0] * 2] * 2, "beta_s_per_byte": [[1.0] * 2] * 2}
    plain["operators"] = [
        node | {"param_bytes": 0, "output_bytes": size} for node, size in zip(chain(6), sizes, strict=True)
    ]
    plain["devices"] = [{"name": name, "flops_per_s": 1.0, "memory_bytes": 20} for name in "ab"]
    assert greedy_packing(instance_of(plain)) is None
    plan = solved(plain, method, time_limit_s=1e-9)
    check(plain, plan)
    assert plan["feasible"]


def test_deterministic_methods() -> None:
    """Only methods that a time limit can end are non-deterministic; an unused limit does not change OP-Fence's plan."""
    plain = clustered(6, chain(20), (2, 2))
    for method in ("search", "opfence", "equal-modules", "equal-compute"):
        assert solved(plain, method)["deterministic"]
    for method in ("equal-modules", "equal-compute"):
        assert solved(plain, method, time_limit_s=0.1)["deterministic"]
    assert not solved(plain, "search", time_limit_s=0.1)["deterministic"]
    limited = solved(plain, "opfence", time_limit_s=1000)
    assert not limited["deterministic"]
    assert limited["placement"] == solved(plain, "opfence")["placement"]
