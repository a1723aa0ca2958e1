"""Plans of several lanes train in containers as they do in processes."""

import dataclasses
from pathlib import Path

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.fleet import PROCESS, Fleet
from fleetune.contracts.plan import Lane, PlanResult
from fleetune.contracts.profile import Profile
from fleetune.launching import LocalSites
from fleetune.training import coordinator
from fleetune.training.task import TrainingTask
from tests.engine.pipelines import Told, config, run

ROUNDS = 6


@pytest.mark.slow
def test_split_learning_in_containers_gives_the_weights_of_processes(store_root: Path, tmp_path: Path) -> None:
    """Two clients, a helper that works for both, and averages every 4 rounds: every tensor agrees in every bit."""
    strategy = {"name": "split-learning", "options": {"helpers": ["desk"], "average_every_rounds": 4}}
    told = run(config(tmp_path, count=3, strategy=strategy), store_root, until="train")
    folder = {kind: told.store.folder(kind, digest) for kind, digest in told.record.outputs.items()}
    fleet = json_io.read(Fleet, folder["fleet"] / "fleet.json")
    assert {device.launcher for device in fleet.devices} == {"docker"}
    plan = json_io.read(PlanResult, folder["plan"] / "plan.json")
    assert len(plan.plan.lanes) == 2 and {"desk"} == set.intersection(*map(set, map(_devices, plan.plan.lanes)))
    _train_on_processes(told, plan, _as_processes(fleet), tmp_path)
    ours, theirs = tmp_path / "output" / "checkpoint" / "state", folder["checkpoint"] / "state"
    names = {path.name for path in theirs.glob("*.safetensors")}
    assert names and names == {path.name for path in ours.glob("*.safetensors")}
    for name in names:
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


def _devices(lane: Lane) -> tuple[str, ...]:
    return tuple(device for segment in lane.segments for device in segment.devices)


def _as_processes(fleet: Fleet) -> Fleet:
    """The same devices, with as many threads, as processes of this machine."""
    devices = tuple(dataclasses.replace(device, launcher=PROCESS) for device in fleet.devices)
    return dataclasses.replace(fleet, devices=devices, emulated_links=None)


def _train_on_processes(told: Told, plan: PlanResult, fleet: Fleet, folder: Path) -> None:
    inputs = {kind: told.store.folder(kind, told.record.outputs[kind]) for kind in ("model", "data", "profile")}
    given = told.record.config
    metrics = coordinator.train(
        TrainingTask(
            plan=plan,
            fleet=fleet,
            profile=json_io.read(Profile, inputs["profile"] / "profile.json"),
            model_folder=inputs["model"],
            data_folder=inputs["data"],
            model=given.model,
            training=given.training,
            seed=given.seed,
            work=folder / "work",
            output=folder / "output",
            sites=LocalSites(),
        )
    )
    assert len(metrics.rounds) == ROUNDS
