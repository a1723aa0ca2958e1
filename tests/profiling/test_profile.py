"""The profile of a model on a fleet, put together from what its devices answer."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetune.contracts import wire
from fleetune.contracts.profile import Profile
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.profiling.profile import _per_sample, batch_sizes, profile
from tests.profiling.instances import Scripted, ScriptedJob, prepared, profiling_task


def costs(units: int, pace: float) -> dict[str, Any]:
    """The answer of a device: batch sizes are 1, 2, 4 and 6."""
    return {
        "event": "costs",
        "runtime_bytes": 1000,
        "units": [
            {
                "name": f"unit {number}",
                "forward_s": [pace * (1 + number)] * 4,
                "backward_s": [pace * 2 * (1 + number)] * 4,
                "activation_bytes": [100 + 10 * size for size in (1, 2, 4, 6)],
                "flops": [7 * size for size in (1, 2, 4, 6)],
            }
            for number in range(units)
        ],
    }


@pytest.mark.parametrize(
    "micro_batch, sizes",
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (4, (1, 2, 4)),
        (6, (1, 2, 4, 6)),
        (8, (1, 2, 4, 8)),
        (9, (1, 2, 4, 8, 9)),
    ],
)
def test_batch_sizes_are_powers_of_two_and_the_micro_batch(micro_batch: int, sizes: tuple[int, ...]) -> None:
    """Ascending, without repeats, from 1 to the micro-batch."""
    assert batch_sizes(micro_batch) == sizes


@given(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(1, 300))
def test_what_a_sample_costs_is_a_slope(fixed: int, each: int, micro_batch: int) -> None:
    """What a unit needs whatever the batch is not counted per sample, save where only one batch size is known."""
    sizes = batch_sizes(micro_batch)
    amounts = [fixed + each * size for size in sizes]
    assert _per_sample(amounts, sizes) == (each if len(sizes) > 1 else fixed + each)


def test_a_cost_that_falls_with_the_batch_counts_as_none() -> None:
    """Bytes per sample are never negative."""
    assert _per_sample([100, 90], (1, 2)) == 0


def test_the_profile_has_every_device_in_the_order_of_the_fleet(tmp_path: Path) -> None:
    """Times per device, sizes from the first; only an emulated device is told its cores."""
    graph, _ = prepared(tmp_path)
    units = len(graph.units)
    launcher = Scripted({"ann": ScriptedJob([costs(units, 1.0)], 0), "bob": ScriptedJob([costs(units, 3.0)], 0)})
    made = profile(profiling_task(tmp_path, launcher, ("ann", "bob")))
    assert wire.read(Profile, tmp_path / "profile" / "profile.json") == made
    assert made.batch_sizes == (1, 2, 4, 6)
    assert [unit.name for unit in made.units] == [unit.name for unit in graph.units]
    assert {unit.activation_bytes for unit in made.units} == {10}
    assert {unit.flops for unit in made.units} == {7}
    assert [times.device for times in made.times] == ["ann", "bob"]
    assert made.of("bob").forward_s[1] == (6.0,) * 4
    assert made.of("ann").backward_s[1] == (4.0,) * 4
    assert {name: task.cores for name, task in launcher.given.items()} == {"ann": None, "bob": 0.5}


@pytest.mark.parametrize(
    "job, kind, why",
    [
        (ScriptedJob([{"event": "error", "message": "no room"}], 64), Refused, "no room"),
        (ScriptedJob([{"event": "error", "message": "no room"}], 75), TryAgain, "no room"),
        (ScriptedJob([{"event": "progress", "done": 1, "total": 6}], -9), TryAgain, "profiling"),
        (ScriptedJob([{"event": "progress", "done": 6, "total": 6}], 0), TryAgain, "profiling"),
        (ScriptedJob([], 1), TryAgain, "profiling"),
    ],
)
def test_a_device_that_fails_is_named_and_ends_the_others(
    job: ScriptedJob, kind: type[FleetuneError], why: str, tmp_path: Path
) -> None:
    """At once, though the first device is still at work; the exit code says whether trying again can help."""
    patient = ScriptedJob([], 0)  # answers nothing until it is stopped
    with pytest.raises(kind, match=f"device bob.*{why}") as failure:
        profile(profiling_task(tmp_path, Scripted({"ann": patient, "bob": job}), ("ann", "bob")))
    assert failure.type is kind
    assert patient.stopped.is_set()
    assert not (tmp_path / "profile" / "profile.json").exists()
