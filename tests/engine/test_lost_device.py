"""A container that is killed in the middle of a training: the others go on without it."""

import dataclasses
import re
from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.fleet import PROCESS, Fleet
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.launching import open_sites
from fleetune.launching.placement import FleetPlacement
from fleetune.training import coordinator
from fleetune.training.task import TrainingTask
from stages.reviser import reviser
from tests.support.engine.pipelines import Told, config, run
from tests.support.engine.places import Note, ignored
from tests.support.training.ends import assert_same_end
from tests.support.training.runs import final_state

ROUNDS, SAVED_AFTER, KILLED_AFTER = 8, 4, 6
"""A checkpoint is written beside the next round, and is there for certain after the one behind that."""


def train(told: Told, folder: Path, fleet: Fleet, progress: Any, note: Note) -> None:
    """Train by the plan of a run that ended with it."""
    inputs = {kind: told.store.folder(kind, digest) for kind, digest in told.record.outputs.items()}
    plan = json_io.read(PlanResult, inputs["plan"] / "plan.json")
    profile = json_io.read(Profile, inputs["profile"] / "profile.json")
    given: Any = told.record.config
    with open_sites(FleetPlacement.from_fleet(fleet), ignored) as sites:
        task = TrainingTask(
            plan=plan,
            fleet=fleet,
            profile=profile,
            model_folder=inputs["model"],
            data_folder=inputs["data"],
            model=given.model,
            training=dataclasses.replace(given.training, rounds=ROUNDS, checkpoint_every_rounds=SAVED_AFTER),
            seed=3,
            work=folder / "work",
            output=folder / "output",
            sites=sites,
            progress=progress,
            note=note,
            revise=reviser(plan, fleet, profile, 3),
        )
        coordinator.train(task)


def test_a_killed_container_takes_nothing_with_it(store_root: Path, tmp_path: Path, engine: Any) -> None:
    """Bug: what it alone held was on a disk that no container could be told to read, and the run ended. The weights are
    those of the same training by processes, without a loss."""
    told = run(config(tmp_path), store_root, until="plan")
    fleet = json_io.read(Fleet, told.store.folder("fleet", told.record.outputs["fleet"]) / "fleet.json")
    left, said = [KILLED_AFTER], list[str]()

    def kill(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        if detail.startswith(f"round {KILLED_AFTER} ") and left:
            left.clear()
            (worker,) = [
                each
                for each in engine.containers.list(filters={"label": "fleetune.run"}, ignore_removed=True)
                if any("/workers/nano/" in part for part in each.attrs["Config"]["Cmd"])
            ]
            worker.kill()

    train(told, tmp_path / "lost", fleet, kill, said.append)
    here = tuple(dataclasses.replace(device, launcher=PROCESS) for device in fleet.devices)
    train(told, tmp_path / "whole", dataclasses.replace(fleet, devices=here), lambda *_, **__: None, ignored)
    again = rf"goes on from round {SAVED_AFTER} on desk: the checkpoint is read, \d rounds? run again"
    assert any(re.search(again, each) for each in said), said
    assert_same_end(final_state(tmp_path / "whole"), tmp_path / "lost")
