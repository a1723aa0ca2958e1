"""Forecasts of plans that recompute activations."""

from dataclasses import replace

import pytest

from fleetune.clock import Clock
from fleetune.clock.event_simulation import simulate_graph
from fleetune.clock.recompute import Activations, activations
from fleetune.contracts import json_io
from fleetune.contracts.plan import Plan
from tests.support.clock import fleets

UNITS = [
    fleets.unit("embeddings"),
    *(fleets.unit(f"layer.{k}.{part}", activation_bytes=300) for k in range(2) for part in ("attention", "mlp")),
    fleets.unit("head"),
]
PROFILE = fleets.profile(UNITS, fleets.PACES)
FIRST, SECOND = "embeddings layer.0.attention layer.0.mlp layer.1.attention", "layer.1.mlp head"


def plans(devices: tuple[str, str] = ("a", "b")) -> tuple[Plan, Plan]:
    """A plan cut inside the second block, and the same whose first segment recomputes."""
    kept = fleets.plan((FIRST, {devices[0]: 2}, 3), (SECOND, {devices[1]: 2}, 1))
    (lane,) = kept.lanes
    segments = (replace(lane.segments[0], recompute=True), lane.segments[1])
    return kept, replace(kept, lanes=(replace(lane, segments=segments),))


def test_a_block_keeps_its_inputs_and_one_is_computed_again() -> None:
    """By hand: embeddings keep 100 bytes a sample; the whole block keeps its 200 of input and has 600 inside; half a
    block its 200 of 300. Units outside blocks are not touched."""
    own = [PROFILE.unit(name) for name in FIRST.split()]
    assert activations(PROFILE, own, recompute=False) == Activations(100 + 3 * 300)
    assert activations(PROFILE, own, recompute=True) == Activations(100 + 200 + 200, again=600)
    assert activations(PROFILE, own[-1:], recompute=True) == Activations(200, again=300)
    assert activations(PROFILE, [PROFILE.unit("head")], recompute=True) == Activations(100)
    assert activations(PROFILE, [], recompute=True) == Activations(0)


def test_a_first_unit_that_is_a_block_keeps_stored_activations() -> None:
    """Its inputs are data, as large as what leaves it: 200 bytes of 600."""
    stored = fleets.profile(UNITS[1:], fleets.PACES)
    assert activations(stored, stored.units[:2], recompute=True) == Activations(200, again=600)


def test_memory_and_time_of_a_segment_that_recomputes() -> None:
    """Three kept micro-batches of 2 samples: 6 times what is kept, 2 times what is computed again; a backward takes the
    forwards of its blocks longer, and no other device's time changes."""
    clock = Clock(fleets.FLEET, PROFILE)
    kept, again = plans()
    saved = 6 * (100 + 3 * 300) - (6 * 500 + 2 * 600)
    assert clock.memory_bytes(kept, "a") - clock.memory_bytes(again, "a") == saved
    assert clock.memory_bytes(kept, "b") == clock.memory_bytes(again, "b")
    inside_s = sum(clock.unit_times("a", 2)[0][1:4])
    before, after = ({d.device: d.amount for d in clock.forecast(plan).busy_s} for plan in (kept, again))
    assert after["a"] - before["a"] == pytest.approx(3 * inside_s, abs=1e-8)
    assert after["b"] == before["b"]


def test_both_simulations_agree_on_recomputed_segments() -> None:
    """The compiled simulation of chains and the general one have the same round, and so has the forecast."""
    clock = Clock(fleets.FLEET, PROFILE)
    _, again = plans()
    assert again.is_chain
    assert clock.round_s(again) == simulate_graph(clock.lower(again).graph).end_ns / 1e9


def test_units_without_a_backward_are_not_computed_again() -> None:
    """Blocks below the first trained parameter have no backward, in which their forward could run."""
    below = {"embeddings", "layer.0.attention", "layer.0.mlp"}
    times = tuple(
        replace(
            each,
            backward_s=tuple(
                tuple(0.0 for _ in row) if unit.name in below else row
                for unit, row in zip(UNITS, each.backward_s, strict=True)
            ),
        )
        for each in PROFILE.times
    )
    clock = Clock(fleets.FLEET, replace(PROFILE, times=times))
    before, after = ({d.device: d.amount for d in clock.forecast(plan).busy_s} for plan in plans())
    assert after["a"] - before["a"] == pytest.approx(3 * clock.unit_times("a", 2)[0][3], abs=1e-8)


def test_a_neutral_plan_does_not_mention_it() -> None:
    """A plan whose segments keep their activations reads as before; one that recomputes is parsed back."""
    kept, again = plans()
    assert "recompute" not in json_io.text(kept)
    assert json_io.parse(Plan, json_io.text(again).encode(), "plan") == again
