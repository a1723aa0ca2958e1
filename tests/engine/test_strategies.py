"""Plans of all kinds train in containers as they do in processes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.fleet import PROCESS, Fleet
from fleetune.contracts.plan import Lane, Plan, PlanResult
from fleetune.contracts.profile import Profile
from fleetune.launching import LocalSites
from fleetune.training import coordinator
from fleetune.training.task import TrainingTask
from tests.support.engine.pipelines import PROCESSES, Told, config, run

ROUNDS = 6


STRATEGIES: dict[str, dict[str, Any]] = {
    "asteroid": {"strategy": {"name": "asteroid", "options": {"warmup": [2, 1]}}},
    "lola-deft": {"strategy": {"name": "lola-deft", "options": {"server": "desk"}}},
    "split-learning": {
        "strategy": {"name": "split-learning", "options": {"helpers": ["desk"], "average_every_rounds": 4}}
    },
    "fusionllm": {"strategy": {"name": "asteroid", "options": {"compression": "int8", "warmup": [2, 1]}}},
    "d2ft": {
        "strategy": {"name": "d2ft", "options": {"full": 2, "forward_only": 1, "warmup": [2, 1]}},
        "profile": {"scores": True},
    },
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_plans_in_containers_give_the_weights_of_processes(name: str, store_root: Path, tmp_path: Path) -> None:
    """A pipeline, blocks of a server's devices, averaged clients of a helper, a codec on the links, gated heads: every
    tensor agrees in every bit.
    """
    count = 3 if name in ("split-learning", "lola-deft") else 2
    told = run(config(tmp_path, count=count, **STRATEGIES[name], stages=PROCESSES), store_root, until="train")
    folder = {kind: told.store.folder(kind, digest) for kind, digest in told.record.outputs.items()}
    fleet = json_io.read(Fleet, folder["fleet"] / "fleet.json")
    assert {device.launcher for device in fleet.devices} == {"docker"}
    plan = json_io.read(PlanResult, folder["plan"] / "plan.json")
    assert SPECIAL[name](plan.plan), plan.plan
    _train_on_processes(told, plan, _as_processes(fleet), tmp_path)
    ours, theirs = tmp_path / "output" / "checkpoint" / "state", folder["checkpoint"] / "state"
    names = {path.name for path in theirs.glob("*.safetensors")}
    assert names and names == {path.name for path in ours.glob("*.safetensors")}
    for file in names:
        assert (ours / file).read_bytes() == (theirs / file).read_bytes(), file


SPECIAL: dict[str, Callable[[Plan], bool]] = {
    "asteroid": lambda plan: len(plan.lanes[0].segments) == 2 and len(plan.devices) == 2,
    "lola-deft": lambda plan: plan.collector == "desk" and all(lane.segments[0].trains for lane in plan.lanes),
    "split-learning": lambda plan: {"desk"} == set.intersection(*map(set, map(_devices, plan.lanes))),
    "fusionllm": lambda plan: {use.codec for use in plan.links} == {"int8"} and len(plan.devices) == 2,
    "d2ft": lambda plan: len(plan.devices) == 2 and {"1", "2", "3"} >= set("".join(g.operations for g in plan.gates)),
}
"""What a plan of each has that others have not."""


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
