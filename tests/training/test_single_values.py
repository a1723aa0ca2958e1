"""A network whose batch norms see one value of each channel in a sample trains on uneven devices."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.contracts.fleet import Device, Fleet, ModelSpeed, SimulatedDevice
from fleetune.contracts.profile import Profile
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import FleetuneError, Refused
from fleetune.planning import Problem, solve
from fleetune.planning.revision import light
from fleetune.profiling.profile import profile
from fleetune.training.coordinator import train
from tests.support.profiling.instances import Scripted, profiling_task
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import prepared, run_plan, training_task

RESNET = BY_NAME["resnet"]
MODEL = model_request(RESNET, dropout=True)
TRAINING = TrainingRequest(rounds=2, batch_samples=8, micro_batch_samples=4, learning_rate=1e-3)
SPEEDS = {"d0": 8e9, "d1": 1e9}


def device(name: str, flops_per_s: float) -> Device:
    """A device of that speed."""
    simulated = SimulatedDevice(memory_bytes=8 << 30, speeds=(ModelSpeed(flops_per_s=flops_per_s),))
    return Device(name=name, memory_bytes=8 << 30, cores=1, fingerprint="f", simulated=simulated)


def without_needs(measured: Profile) -> Profile:
    """The profile as it would be if any unit could be trained on one sample."""
    return replace(measured, units=tuple(replace(unit, min_samples=1) for unit in measured.units))


def test_a_slow_device_is_given_no_single_sample(tmp_path: Path) -> None:
    """Of micro-batches of 4 images, whose last batch norms see one pixel, a device with an eighth of the other's speed
    would be given one sample, on which torch cannot train; it is given two, in the first plan and in revised ones, and
    the model trains."""
    data = replace(data_request(RESNET, tmp_path), image_size=8)
    ready = prepared(MODEL, data, tmp_path)
    task = profiling_task(tmp_path, Scripted({}), tuple(SPEEDS), MODEL, data)
    fleet = Fleet(devices=tuple(device(*each) for each in SPEEDS.items()), links=task.fleet.links)
    measured = profile(replace(task, fleet=fleet, training=TRAINING))
    problem = Problem(fleet=fleet, profile=measured, micro_batch_samples=4, micro_batches=2)
    plan = solve("dp", problem).plan
    assert [share.samples for share in plan.lanes[0].segments[0].shares] == [2, 2]
    assert light(problem, plan, []).plan.lanes == plan.lanes
    metrics = run_plan(ready, plan, TRAINING, tmp_path / "sound")
    assert all(math.isfinite(each.loss) for each in metrics.rounds) and len(metrics.rounds) == 2
    careless = solve("dp", replace(problem, profile=without_needs(measured))).plan
    assert [share.samples for share in careless.lanes[0].segments[0].shares] == [3, 1]
    asked = training_task(ready, careless, TRAINING, tmp_path / "careless")
    with pytest.raises(FleetuneError, match="more than 1 value per channel"):
        train(asked)
    with pytest.raises(Refused, match="plan: device d1 has 1 of every 4 samples of segment main/0, but unit .* needs"):
        train(replace(asked, profile=measured, work=tmp_path / "none"))
    assert not (tmp_path / "none").exists(), "nothing is started"
