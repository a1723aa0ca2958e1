"""Rounds too long to be counted in nanoseconds are refused, and name what makes them so long."""

from dataclasses import replace

import pytest

from fleetune.clock import Clock
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import LinkUse, Plan
from fleetune.errors import Refused
from fleetune.planning import Problem, solve
from tests.support.clock import fleets
from tests.support.planning.instances import small

CHAIN = fleets.plan(("u0 u1", {"a": 4}, 2), ("u2 u3", {"b": 4}, 1))
GROUP = fleets.plan(("u0 u1 u2 u3", {"a": 2, "b": 2}, 1))
GRAPH = replace(CHAIN, links=(LinkUse(source="a", target="b", codec="fp16"),))
"""Simulated in plain Python, as all plans that are no dense chain."""


def with_link(latency_s: float = 0.0, bytes_per_s: float = 1e6) -> Fleet:
    """The small fleet, whose link from a to b is another one."""
    changed = (
        replace(link, latency_s=latency_s, bytes_per_s=bytes_per_s)
        if (link.source, link.target) == ("a", "b")
        else link
        for link in fleets.FLEET.links
    )
    return replace(fleets.FLEET, links=tuple(changed))


@pytest.mark.parametrize("plan", [CHAIN, GROUP, GRAPH])
@pytest.mark.parametrize(
    "fleet", [with_link(latency_s=1e11), with_link(bytes_per_s=1e-300), with_link(latency_s=1e300)]
)
def test_a_link_that_takes_longer_than_can_be_counted_is_named(plan: Plan, fleet: Fleet) -> None:
    """Its nanoseconds do not wrap to a short round; a plan that does not cross it is timed."""
    with pytest.raises(Refused, match=r"link a>b: a round could come to .* check the unit"):
        Clock(fleet, fleets.PROFILE).round_s(plan)
    alone = fleets.plan(("u0 u1 u2 u3", {"c": 4}, 1))
    expected_s = Clock(fleets.FLEET, fleets.PROFILE).round_s(alone)
    assert Clock(fleet, fleets.PROFILE).round_s(alone) == expected_s


@pytest.mark.parametrize("plan", [CHAIN, GRAPH])
def test_long_rounds_that_can_be_counted_are(plan: Plan) -> None:
    """A message that takes 30 years makes the round as long."""
    years_s = 30 * 365 * 24 * 3600.0
    short = replace(plan, micro_batches=1)
    near_s = Clock(with_link(), fleets.PROFILE).round_s(short)
    assert Clock(with_link(latency_s=years_s), fleets.PROFILE).round_s(short) == pytest.approx(
        years_s + near_s, abs=1e-6
    )


def slowed(seconds: float) -> Problem:
    """The small problem, all units of which take so long."""
    rows = ((seconds,) * len(fleets.PROFILE.batch_sizes),) * len(fleets.PROFILE.units)
    times = tuple(replace(each, forward_s=rows, backward_s=rows) for each in fleets.PROFILE.times)
    return replace(small(), profile=replace(fleets.PROFILE, times=times))


CHAINS = ["single", "dp", "pp", "asteroid", "fusionllm"]
WRONG_UNITS = [(name, s) for s in (1e9, 5e9, 1e300) for name in (*CHAINS, "lola-deft", "split-learning")]


@pytest.mark.parametrize(("name", "seconds"), [(name, s) for name, s in WRONG_UNITS if s > 1e9 or name in CHAINS])
def test_no_strategy_fails_on_times_in_a_wrong_unit(name: str, seconds: float) -> None:
    """Nanoseconds that are given as seconds are refused with the name of the device, or of the times. What is simulated
    in plain Python wraps nowhere, so only its single times have a limit."""
    with pytest.raises(Refused, match=r"device [abc]: a round could|more than can be counted"):
        solve(name, slowed(seconds))
