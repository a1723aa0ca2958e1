"""Adaptive top-k on the links of any plan (FusionLLM eq. (7))."""

from dataclasses import replace
from typing import Any

import pytest

from fleetune.clock import Clock
from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.plan import LinkUse
from fleetune.errors import Refused
from fleetune.planning import solve
from fleetune.planning.compression import kept_element_bytes, with_top_k
from tests.support.clock import fleets
from tests.support.planning.instances import small

CHAIN = fleets.plan(("u0", {"a": 4}, 3), ("u1", {"b": 4}, 2), ("u2 u3", {"c": 4}, 1))
"""800 bytes cross each cut each way."""


def fleet(**bytes_per_s: float) -> Fleet:
    """Links without latency; of 1 MB/s where not given as `ab=`."""
    names = [device.name for device in fleets.FLEET.devices]
    links = tuple(
        Link(source=a, target=b, latency_s=0.0, bytes_per_s=bytes_per_s.get(a + b, 1e6))
        for a in names
        for b in names
        if a != b
    )
    return replace(fleets.FLEET, links=links)


def uses(ratio: float | None, **bytes_per_s: float) -> dict[str, LinkUse]:
    """Links of CHAIN by `ab`, where they are thinned."""
    plan = with_top_k(CHAIN, Clock(fleet(**bytes_per_s), fleets.PROFILE), ratio)
    return {use.source + use.target: use for use in plan.links}


def test_ratios_follow_the_slowness_of_links() -> None:
    """The slowest link gets c/4 times the ratio asked for, one that is twice as fast half of that; c is its 2 bytes of
    value and 1 + 75.56/64 bits of index above 6 low ones."""
    found = uses(100.0, bc=1e5, cb=2e5, ab=1e6, ba=1e9)
    assert kept_element_bytes(100.0) == pytest.approx(3.0226, abs=1e-4) == 2 + (7 + 75.5647 / 64) / 8
    assert {pair: use.ratio for pair, use in found.items()} == pytest.approx(
        {"bc": 75.565, "cb": 75.565 / 2, "ab": 7.5565}, rel=1e-5
    )
    assert {use.codec for use in found.values()} == {"top-k"}


def test_links_that_would_save_nothing_stay_dense() -> None:
    """At ratio 1 everything would be kept: no plan is changed."""
    assert uses(1.0) == {}
    assert uses(None) == {}
    clock = Clock(fleet(), fleets.PROFILE)
    assert with_top_k(CHAIN, clock, 1.0) is CHAIN


def test_a_plan_on_one_device_has_no_links() -> None:
    """A plan without transfers stays unchanged."""
    plan = fleets.plan(("u0 u1 u2 u3", {"a": 4}, 1))
    assert with_top_k(plan, Clock(fleets.FLEET, fleets.PROFILE), 100.0) is plan


@pytest.mark.parametrize("placed_by", ["asteroid", "fusionllm"])
def test_it_composes_with_placements(placed_by: str) -> None:
    """One option thins a plan's links, and only that: segments stay, bytes fall, the round is not longer."""
    slow = replace(fleets.FLEET, links=fleet(ab=1e4, ba=1e4, ac=1e4, ca=1e4, bc=1e4, cb=1e4).links)
    options: dict[str, Any] = {"every_device": True} if placed_by == "asteroid" else {"method": "equal-modules"}

    def planned(**more: float) -> Any:
        return solve(placed_by, replace(small(**options, **more), fleet=slow))

    dense, thin = planned(), planned(compression_ratio=50.0)
    assert thin.plan.lanes == dense.plan.lanes and thin.plan.links
    assert thin.objective < dense.objective
    assert thin.lower_bound <= thin.objective


def test_a_ratio_below_1_is_refused() -> None:
    """A ratio below 1 is refused."""
    with pytest.raises(Refused, match="compression_ratio 0.5 is below 1; 100 sends about one of 100 bytes"):
        solve("fusionllm", small(compression_ratio=0.5))
