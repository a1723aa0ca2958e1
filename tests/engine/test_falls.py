"""Containers that are paused or killed in the middle of a training: the others go on without them, and lose nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fleetune.contracts import json_io
from fleetune.contracts.fleet import PROCESS, Fleet
from fleetune.contracts.metrics import TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.task import Progress, ignore_progress
from fleetune.launching import open_sites
from fleetune.launching.docker import cleanup
from fleetune.launching.placement import FleetPlacement
from fleetune.monitoring import follow
from fleetune.training import coordinator
from fleetune.training.checkpoints import trained_tensors
from fleetune.training.task import TrainingTask
from stages.reviser import reviser
from tests.engine.pipelines import Told, config, run
from tests.engine.places import ignored
from tests.engine.test_pipeline import configured, fleet_of

ROUNDS, SAMPLES = 8, 32
TOLERANCE = 1e-5


def trained(told: Told, folder: Path, fleet: Fleet, progress: Progress = ignore_progress) -> TrainingMetrics:
    """Train the plan of a run on the devices of a fleet."""
    found = {kind: told.store.folder(kind, digest) for kind, digest in told.record.outputs.items()}
    plan = json_io.read(PlanResult, found["plan"] / "plan.json")
    profile = json_io.read(Profile, found["profile"] / "profile.json")
    given = configured(told)
    with open_sites(FleetPlacement.from_fleet(fleet), ignored) as sites:
        return coordinator.train(
            TrainingTask(
                plan=plan,
                fleet=fleet,
                profile=profile,
                model_folder=found["model"],
                data_folder=found["data"],
                model=given.model,
                training=given.training,
                seed=3,
                work=folder / "work",
                output=folder / "output",
                sites=sites,
                progress=progress,
                revise=reviser(plan, fleet, profile, 3),
            )
        )


def worker(engine: Any, device: str) -> Any:
    """The container in which a device trains."""
    running = engine.containers.list(filters={"label": cleanup.RUN_LABEL}, ignore_removed=True)
    (found,) = [each for each in running if f"/workers/{device}/" in " ".join(each.attrs["Config"]["Cmd"])]
    return found


def after(falls: dict[int, Callable[[], object]]) -> Progress:
    """Return a listener that lets each of these happen when so many rounds are committed for the first time."""

    def listen(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        if (fall := falls.pop(int(done) // SAMPLES, None)) is not None:
            fall()

    return listen


def test_containers_that_are_paused_and_killed_cost_no_round(engine: Any, tmp_path: Path) -> None:
    """One of a group of three is paused and given up; later one is killed. The third holds all that they held: losses
    and weights are those of a training that nothing befell, and no container is left, the paused one neither.
    """
    training = {"rounds": ROUNDS, "batch_samples": SAMPLES, "micro_batch_samples": 8, "checkpoint_every_rounds": 1000}
    changes = {"strategy": {"name": "dp"}, "training": training, "stages": {"launcher": "process"}}
    told = run(config(tmp_path, 3, **changes), tmp_path / "store", until="plan")
    fleet = fleet_of(told)
    as_processes = tuple(replace(each, launcher=PROCESS, emulated=False) for each in fleet.devices)
    whole = trained(told, tmp_path / "whole", replace(fleet, devices=as_processes))
    falls: dict[int, Callable[[], object]] = {
        2: lambda: worker(engine, "nano").pause(),
        5: lambda: worker(engine, "shed").kill(),
    }
    met = trained(told, tmp_path / "met", fleet, after(falls))
    assert not falls, "both have happened"
    events = follow(tmp_path / "met" / "output" / "metrics" / "events.jsonl", lambda *_: None, alive=lambda: False)
    assert [each.split()[1] for each in events.failures] == ["nano", "shed"], events.failures
    assert [each.round for each in met.rounds] == list(range(ROUNDS))
    for ours, other in zip(met.rounds, whole.rounds, strict=True):
        assert abs(ours.loss - other.loss) <= TOLERANCE * abs(other.loss), (ours, other)
    states = [trained_tensors(tmp_path / name / "output" / "checkpoint" / "state") for name in ("whole", "met")]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        distance = float(torch.linalg.vector_norm(tensor.double() - states[1][name].double()))
        assert distance <= TOLERANCE * max(1.0, float(torch.linalg.vector_norm(tensor.double()))), name
