"""Forecasts of plans: rounds, timelines, memory and bytes."""

from dataclasses import replace

import pytest

from fleetune.clock import forecast
from fleetune.contracts import json_io
from fleetune.contracts.metrics import Forecast
from fleetune.contracts.plan import DeviceOrder, Lane, Segment, Share, actions_of
from fleetune.contracts.profile import Spread
from fleetune.errors import Refused
from tests.support.clock import fleets


def test_memory_is_runtime_weights_state_and_kept_activations() -> None:
    """Segment 0 on a: 50 + 2·1000 + 2·1000·(1+2) + 3 kept micro-batches · 4 samples · 2·100; b and c sum gradients,
    which takes 2·1000 more."""
    amounts = {m.device: m.amount for m in forecast(fleets.PLAN, fleets.FLEET, fleets.PROFILE).memory_bytes}
    assert amounts == {"a": 50 + 8000 + 2400, "b": 50 + 10000 + 600, "c": 50 + 10000 + 200}


def test_a_device_takes_its_share_of_what_activations_need_elsewhere() -> None:
    """A GPU beside CPUs, whose allocator loses memory: of the 2400 bytes of activations it needs two thirds."""
    times = tuple(replace(t, activation_share=2 / 3) if t.device == "a" else t for t in fleets.PROFILE.times)
    said = forecast(fleets.PLAN, fleets.FLEET, replace(fleets.PROFILE, times=times))
    assert {m.device: m.amount for m in said.memory_bytes} == {"a": 50 + 8000 + 1600, "b": 10650, "c": 10250}


def test_warmups_beyond_the_micro_batches_keep_no_more() -> None:
    """K = 9 with M = 3 keeps three micro-batches."""
    plan = fleets.plan(("u0 u1 u2 u3", {"a": 1}, 9))
    assert forecast(plan, fleets.FLEET, fleets.PROFILE).memory_bytes[0].amount == 50 + 16000 + 3 * 400


def test_link_bytes_are_cut_and_ring() -> None:
    """b takes 3 of 4 samples of 3 micro-batches, c takes 1; the ring of two sends all trained bytes once each way."""
    said = forecast(fleets.PLAN, fleets.FLEET, fleets.PROFILE)
    assert {(link.source, link.target): link.bytes for link in said.link_bytes} == {
        ("a", "b"): 3 * 3 * 200,
        ("a", "c"): 3 * 1 * 200,
        ("b", "a"): 3 * 3 * 200,
        ("c", "a"): 3 * 1 * 200,
        ("b", "c"): 2000,
        ("c", "b"): 2000,
    }


def test_busy_time_is_the_sum_of_the_tasks() -> None:
    """a runs 2 units 3 times on 4 samples: 3·2·(1+2)·0.001·4.1 s."""
    busy = {b.device: b.amount for b in forecast(fleets.PLAN, fleets.FLEET, fleets.PROFILE).busy_s}
    assert busy["a"] == pytest.approx(3 * 2 * 3 * 0.001 * 4.1)


def test_a_forecast_has_an_interval_from_what_was_measured() -> None:
    """Its ends are the rounds with all passes and links at their fastest and at their slowest; without measurements it
    has none, and none is in its JSON."""
    plain = forecast(fleets.PLAN, fleets.FLEET, fleets.PROFILE)
    assert plain.interval is None and "interval" not in json_io.dump(plain)
    alone = fleets.plan(("u0 u1 u2 u3", {"b": 2}, 1))
    spread = replace(
        fleets.PROFILE, times=tuple(replace(t, spread=Spread(low=0.9, high=1.25)) for t in fleets.PROFILE.times)
    )
    said = forecast(alone, fleets.FLEET, spread)
    assert said.interval is not None and said.round_s == forecast(alone, fleets.FLEET, fleets.PROFILE).round_s
    assert said.interval.low_s == pytest.approx(0.9 * said.round_s)
    assert said.interval.high_s == pytest.approx(1.25 * said.round_s)
    loose = replace(fleets.FLEET, links=tuple(replace(link, fit_error=0.2) for link in fleets.FLEET.links))
    said = forecast(fleets.PLAN, loose, fleets.PROFILE)
    assert said.interval is not None and said.interval.low_s < said.round_s < said.interval.high_s
    assert forecast(alone, loose, fleets.PROFILE).interval is None, "no link of the plan is used"
    both = forecast(fleets.PLAN, loose, spread)
    assert both.interval is not None and both.interval.covers(both.round_s)
    assert both.interval.low_s < said.interval.low_s and said.interval.high_s < both.interval.high_s
    assert json_io.parse(Forecast, json_io.text(both), "forecast") == both


def test_a_stretched_device_takes_longer_everywhere() -> None:
    """All passes of a device that falls short of its quota are longer by its stretch; others are as before."""
    alone = fleets.plan(("u0 u1 u2 u3", {"b": 2}, 1))
    times = tuple(replace(t, stretch=1.25 if t.device == "b" else 1.0) for t in fleets.PROFILE.times)
    said = forecast(alone, fleets.FLEET, replace(fleets.PROFILE, times=times))
    assert said.round_s == pytest.approx(1.25 * forecast(alone, fleets.FLEET, fleets.PROFILE).round_s)
    assert "stretch" not in json_io.dump(fleets.PROFILE)["times"][0], "profiles of before are written as before"
    with pytest.raises(Refused, match="stretch is 0.5; it is at least 1"):
        replace(times[0], stretch=0.5)
    with pytest.raises(Refused, match="1 must lie between low 1.1 and high 1.2"):
        Spread(low=1.1, high=1.2)


def test_one_device_needs_only_its_compute_time() -> None:
    """Without links the round is the sum of the tasks, to the nanosecond."""
    plan = fleets.plan(("u0 u1 u2 u3", {"b": 2}, 1))
    assert forecast(plan, fleets.FLEET, fleets.PROFILE).round_s == pytest.approx(3 * 4 * 3 * 0.002 * 2.1, abs=1e-9)


def test_rows_carry_actions_links_and_bytes() -> None:
    """Work is named after devices, transfers `a>b` after links, the all-reduce main/1R0 stands on both members."""
    rows = forecast(fleets.PLAN, fleets.FLEET, fleets.PROFILE).rows
    assert (rows[0].device, rows[0].action, rows[0].start_s) == ("a", "main/0F0", 0.0)
    assert {(r.device, r.bytes) for r in rows if r.action == "main/0F1" and r.is_transfer} == {
        ("a>b", 600),
        ("a>c", 200),
    }
    assert {(r.device, r.bytes) for r in rows if r.action == "main/1R0"} == {("b", 2000), ("c", 2000)}
    assert list(rows) == sorted(rows, key=lambda r: r.start_s)


def test_an_explicit_1f1b_order_changes_nothing() -> None:
    """An explicit 1F1B order, with or without the final all-reduce, gives the same forecast as no order."""
    spelled = tuple(
        DeviceOrder(device=d, actions=tuple(str(a) for a in actions_of(fleets.PLAN, d)) + ending)
        for d, ending in (("a", ()), ("b", ("main/1R0",)), ("c", ()))
    )
    usual = forecast(fleets.PLAN, fleets.FLEET, fleets.PROFILE)
    assert forecast(replace(fleets.PLAN, order=spelled), fleets.FLEET, fleets.PROFILE) == usual


def test_another_order_is_followed() -> None:
    """With all forwards first, b's last forward ends before its first backward starts; with 1F1B it does not."""
    plan = fleets.plan(("u0 u1", {"a": 4}, 4), ("u2 u3", {"b": 4}, 1), micro_batches=4)
    first = tuple(f"main/1F{m}" for m in range(4)) + tuple(f"main/1B{m}" for m in range(4))

    def forwards_first(order: tuple[DeviceOrder, ...]) -> bool:
        rows = forecast(replace(plan, order=order), fleets.FLEET, fleets.PROFILE).rows
        when = {r.action: r for r in rows if not r.is_transfer}
        return when["main/1F3"].end_s <= when["main/1B0"].start_s

    assert forwards_first((DeviceOrder(device="b", actions=first),))
    assert not forwards_first(())


def test_forecast_survives_json() -> None:
    """A forecast survives writing and reading unchanged."""
    said = forecast(fleets.PLAN, fleets.FLEET, fleets.PROFILE)
    assert json_io.parse(Forecast, json_io.text(said), "forecast") == said


def test_lanes_of_one_device_take_turns() -> None:
    """Two equal lanes on one device take twice as long as one."""
    segment = Segment(units=("u0",), shares=(Share(device="a", samples=4),), warmup=1)
    once, twice = (
        replace(fleets.PLAN, lanes=tuple(Lane(name=name, segments=(segment,)) for name in names))
        for names in (("left",), ("left", "right"))
    )
    rounds = [forecast(plan, fleets.FLEET, fleets.PROFILE).round_s for plan in (once, twice)]
    assert rounds[1] == pytest.approx(2 * rounds[0], abs=1e-9)


def test_an_order_that_deadlocks_is_refused() -> None:
    """A backward whose gradient needs a later forward of the same device is a deadlock, and the error names the
    device."""
    actions = ("main/0B0", "main/0F0", "main/0F1", "main/0B1", "main/0F2", "main/0B2")
    plan = replace(fleets.PLAN, order=(DeviceOrder(device="a", actions=actions),))
    with pytest.raises(Refused, match="deadlocks; a waits for ever at action 1"):
        forecast(plan, fleets.FLEET, fleets.PROFILE)


@pytest.mark.parametrize(("segments", "word"), [("u0 u9", "unit 'u9'")])
def test_an_unknown_unit_is_named(segments: str, word: str) -> None:
    """A plan for another model is refused."""
    with pytest.raises(Refused, match=word):
        forecast(fleets.plan((segments, {"a": 1}, 1)), fleets.FLEET, fleets.PROFILE)
