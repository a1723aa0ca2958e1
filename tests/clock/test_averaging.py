"""Averages over lanes in the forecast: drawn by hand, and by what happens to a model of several parts."""

from dataclasses import replace

import pytest

from fleetune.clock import averaging, describe_averages, forecast
from fleetune.contracts.metrics import Forecast, TimelineRow
from fleetune.contracts.plan import Plan
from tests.support.clock import ticks
from tests.support.clock.ticks import segment

UNITS = [
    ticks.unit("u0", trained=2),
    ticks.unit("m0", trained=60),
    ticks.unit("m1", trained=40),
    ticks.unit("u2", trained=3),
]
ALONE: tuple[list[int], list[int]] = ([1, 1, 1, 1], [1, 1, 1, 1])
PROFILE = ticks.profile(UNITS, dict.fromkeys("xyh", ALONE))
CLIENTS = {name: [segment("u0", name), segment("m0 m1", "h"), segment("u2", name)] for name in "xy"}


def averaged(every: int, latency: int = 0, part_bytes: int = 0) -> Forecast:
    """Forecast two clients and a helper; their parts of the model are 2, 100 and 3 bytes."""
    orders = {name: f"{name}/0F0 {name}/2F0 {name}/2B0 {name}/0B0" for name in "xy"}
    made: Plan = replace(ticks.plan(CLIENTS, orders=orders), average_every_rounds=every)
    return forecast(made, ticks.fleet("x y h", latency), PROFILE)


def test_an_average_takes_the_time_of_what_crosses_links() -> None:
    """Parameters and two moments a byte: 6 and 9 bytes a client, one client after the other into the helper's port, and
    back out of it; the helper's own 300 cross nothing.

        x>h  ......111111222222222
        ...
    """
    found = averaged(4)
    at = ticks.ticks
    drawn = [(row.device, row.action, at(row.start_s), at(row.end_s), row.bytes) for row in found.average]
    assert drawn == [
        ("x>h", "x/0A0", 0, 6, 6),
        ("x>h", "x/2A0", 6, 15, 9),
        ("y>h", "y/0A0", 15, 21, 6),
        ("y>h", "y/2A0", 21, 30, 9),
        ("h>x", "x/0A0", 30, 36, 6),
        ("h>x", "x/2A0", 36, 45, 9),
        ("h>y", "y/0A0", 45, 51, 6),
        ("h>y", "y/2A0", 51, 60, 9),
    ]  # fmt: skip
    assert found.average_s == pytest.approx(60e-9)
    assert found.mean_round_s == pytest.approx(found.round_s + 15e-9)


def test_a_round_is_forecast_without_the_average_that_follows_some() -> None:
    """Rows, bytes and seconds of the round are those of a plan without averages; only memory may grow."""
    without, found = averaged(0), averaged(4)
    assert (found.round_s, found.rows, found.link_bytes) == (without.round_s, without.rows, without.link_bytes)
    assert without.average == () and without.mean_round_s == without.round_s


def test_parts_overlap_and_carry_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts of 2 bytes of parameters a seat pushes the next part while the last returns: latency is paid a few times
    and not for each of 53 parts, and every byte crosses once each way."""
    whole = averaged(4, latency=5)
    monkeypatch.setattr(averaging, "PART_BYTES", 2)
    found = averaged(4, latency=5)
    assert sum(row.bytes for row in found.average) == sum(row.bytes for row in whole.average) == 2 * 30
    assert found.average_s <= whole.average_s + 4 * 5e-9


@pytest.mark.parametrize(
    ("average_s", "said"), [(117.0, "94% of the time on averages: 117 s after every 4 rounds of 2 s"), (8.0, "")]
)
def test_averages_that_take_most_of_the_time_are_pointed_out(average_s: float, said: str) -> None:
    """Bug: a plan that spent nearly all of its time on averages was trained without a word; half is not most."""
    rows = (TimelineRow(device="a>b", lane="main", action="main/0A0", start_s=0.0, end_s=average_s),)
    made = Forecast(
        round_s=2.0, rows=(), busy_s=(), memory_bytes=(), link_bytes=(), average=rows, average_every_rounds=4
    )
    found = describe_averages(made)
    assert said in found and bool(found) == bool(said)


def test_rounds_in_which_lanes_rest_are_forecast_beside_the_whole_one() -> None:
    """y takes one step of three, so two rounds are those of x alone; all else is of a round with both."""
    orders = {name: f"{name}/0F0 {name}/2F0 {name}/2B0 {name}/0B0" for name in "xy"}
    made = replace(ticks.plan(CLIENTS, orders=orders), average_every_rounds=3)
    one = ticks.plan({"x": CLIENTS["x"]}, orders={"x": orders["x"]})
    whole, alone = averaged(3), forecast(one, ticks.fleet("x y h", 0), PROFILE)
    rests = replace(made, lanes=tuple(replace(lane, rounds=int(lane.name == "y")) for lane in made.lanes))
    found = forecast(rests, ticks.fleet("x y h", 0), PROFILE)
    assert [(each.rounds, each.round_s) for each in found.partial_rounds] == [(2, alone.round_s)]
    assert alone.round_s < whole.round_s and replace(found, partial_rounds=()) == whole
    assert 3 * found.mean_round_s == pytest.approx(whole.round_s + 2 * alone.round_s + whole.average_s)
