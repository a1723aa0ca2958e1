"""Memory of plans on a device, counted by hand."""

from dataclasses import replace

import pytest

from fleetune.clock import Clock
from fleetune.clock.memory import memory_warnings
from fleetune.contracts.fleet import Device, Fleet
from fleetune.contracts.plan import Gate, LinkUse, Plan
from tests.clock import ticks
from tests.clock.ticks import segment

UNITS = [
    replace(ticks.unit("u0", trained=100), buffer_bytes=7, activation_bytes=1),
    replace(ticks.unit("u1", trained=200), param_bytes=1000, activation_bytes=10),
    replace(ticks.unit("u2", trained=400), activation_bytes=100),
]
"""Weights and buffers: 107, 1000 and 400 bytes, of which 100, 200 and 400 are trained."""
NAMES = "a b h s"
MADE = ticks.profile(UNITS, {name: ([1, 1, 1], [1, 1, 1]) for name in NAMES.split()})
PROFILE = replace(MADE, times=tuple(replace(times, runtime_bytes=5) for times in MADE.times))
WEIGHTS = 107 + 1000 + 400


def needed(plan: Plan, device: str = "a") -> int:
    """Peak bytes of a device by the clock."""
    return Clock(ticks.fleet(NAMES), PROFILE).memory_bytes(plan, device)


def whole(trains: str = "", *, warmup: int = 1, micro_batches: int = 1) -> Plan:
    """A plan that runs the whole model on a."""
    return ticks.plan({"main": [segment("u0 u1 u2", "a", trains=trains, warmup=warmup)]}, micro_batches=micro_batches)


@pytest.mark.parametrize(
    ("trains", "trained_bytes", "activations"),
    [
        ("", 700, 111),
        ("u0 u1 u2", 700, 111),
        ("u2", 400, 100),
        ("u1", 200, 110),
        ("u2 u1", 600, 110),
        ("u0", 100, 111),
    ],
)
def test_state_of_what_is_trained_and_activations_from_there_on(
    trains: str, trained_bytes: int, activations: int
) -> None:
    """All weights; gradient and twice as much optimizer state of trained bytes; nothing is kept below the first one."""
    assert needed(whole(trains)) == 5 + WEIGHTS + 3 * trained_bytes + activations


def test_frozen_units_cost_their_weights_only() -> None:
    """Units that no backward reaches keep no activations, whatever the warm-up."""
    assert needed(whole("u2", warmup=3, micro_batches=4)) == 5 + WEIGHTS + 3 * 400 + 3 * 100


def test_a_device_in_several_segments_holds_all_of_them() -> None:
    """A client holds its first and its last segment, and the runtime once."""
    plan = ticks.plan({"a": [segment("u0", "a"), segment("u1", "h"), segment("u2", "a")]})
    assert needed(plan) == 5 + (107 + 3 * 100 + 1) + (400 + 3 * 400 + 100)
    assert needed(plan, "h") == 5 + (1000 + 3 * 200 + 10)


def test_a_helper_holds_a_copy_for_every_client() -> None:
    """A helper of two lanes holds two copies of the middle segment."""
    lanes = {name: [segment("u0", name), segment("u1", "h"), segment("u2", name)] for name in "ab"}
    assert needed(ticks.plan(lanes), "h") == 5 + 2 * (1000 + 3 * 200 + 10)


def test_optimizer_state_is_the_collectors_alone() -> None:
    """Devices that train hold weights and gradients; the collector s holds parameters, gradient sums and Adam's two
    states, once per trained unit."""
    lanes = {name: [segment("u0 u1 u2", name, trains=units)] for name, units in {"a": "u2", "b": "u1 u2"}.items()}
    plan = replace(ticks.plan(lanes), collector="s")
    assert needed(plan) == 5 + WEIGHTS + 400 + 100
    assert needed(plan, "b") == 5 + WEIGHTS + 600 + 110
    assert needed(plan, "s") == 5 + (200 + 400) * (2 + 2)


def test_a_collector_that_runs_units_needs_both() -> None:
    """A collector that runs units holds its own copy and what it collects."""
    plan = replace(whole("u2"), collector="a")
    assert needed(plan) == 5 + WEIGHTS + 400 + 100 + 400 * 4


def test_an_optimizer_with_little_state_is_rounded_up() -> None:
    """Half a byte of state per byte is rounded up."""
    half = replace(PROFILE, optimizer_bytes_per_param_byte=0.5)
    assert Clock(ticks.fleet(NAMES), half).memory_bytes(whole(), "a") == 5 + WEIGHTS + 700 + 350 + 111
    odd = replace(half, units=(replace(UNITS[0], trainable_bytes=99), *UNITS[1:]))
    assert Clock(ticks.fleet(NAMES), odd).memory_bytes(whole("u0"), "a") == 5 + WEIGHTS + 99 + 50 + 111


@pytest.mark.parametrize(
    ("order", "kept"),
    [
        ("", 2),
        ("main/0F0 main/0F1 main/0B0 main/0F2 main/0B1 main/0B2", 2),
        ("main/0F0 main/0F1 main/0F2 main/0B0 main/0B1 main/0B2 main/0R0", 3),
        ("main/0F0 main/0B0 main/0F1 main/0B1 main/0F2 main/0B2", 1),
    ],
)
def test_an_explicit_order_keeps_what_it_says(order: str, kept: int) -> None:
    """An explicit order, not the warm-up, determines how many micro-batches are kept."""
    plan = whole(warmup=2, micro_batches=3)
    plan = replace(plan, order=ticks.plan({"main": plan.lanes[0].segments}, orders={"a": order} if order else {}).order)
    assert needed(plan) == 5 + WEIGHTS + 3 * 700 + kept * 111


def test_an_order_over_lanes_is_counted_seat_by_seat() -> None:
    """Kept micro-batches are counted per lane and segment: one in each copy."""
    lanes = {name: [segment("u0", name), segment("u1", "h"), segment("u2", name)] for name in "ab"}
    plan = ticks.plan(lanes, orders={"h": "a/1F0 b/1F0 a/1B0 b/1B0"})
    assert needed(plan, "h") == 5 + 2 * (1000 + 3 * 200 + 10)


def test_links_and_gates_save_no_memory() -> None:
    """Gates and codecs save no memory, because what they leave out differs between micro-batches."""
    thin = replace(whole(), links=(LinkUse(source="a", target="b", codec="top-k", ratio=100.0),))
    assert needed(thin) == needed(replace(whole(), gates=(Gate(subnet="any", operations="3"),))) == needed(whole())


def test_a_peak_beyond_its_budget_or_forecast_is_said() -> None:
    """A peak of 538 MB with a budget of 500 MB once went unreported. An excess of a few percent over a forecast that
    fits is normal fragmentation."""
    fleet = Fleet(devices=(Device(name="a", memory_bytes=500_000_000, cores=1.0, fingerprint="f"),))

    def said(peak: float, forecast: float) -> list[str]:
        return list(memory_warnings(fleet, {"a": forecast}, {"a": peak}))

    assert said(490e6, 481e6) == [] == said(500e6, 500e6)
    (over,) = said(538e6, 481e6)
    assert over.startswith("device a used 538 MB of its 500 MB, 481 MB forecast: give it more memory or lower")
    (more,) = said(490e6, 400e6)
    assert more.startswith("device a used 490 MB, 400 MB forecast: plans that need most of its 500 MB may not fit")
