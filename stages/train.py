"""train: model, data, plan, fleet, profile -> checkpoint, metrics."""

import shutil
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.run_config import ModelRequest, TrainingRequest
from fleetune.errors import Refused
from fleetune.launching import open_sites
from fleetune.launching.placement import FleetPlacement
from fleetune.preparation.local_data import DeviceWork
from fleetune.training import coordinator
from fleetune.training.local_data import prepare_own_data
from fleetune.training.task import TrainingTask
from stages.entry_point import StageContext, main


def train(context: StageContext) -> None:
    """Train by the plan; resumes the newest checkpoint of an interrupted attempt, also of one by another plan."""
    fleet = json_io.read(Fleet, context.input("fleet") / "fleet.json")
    if fleet.simulated:
        raise Refused(f"device {fleet.simulated[0]} is simulated: a run with it ends after plan; use --until plan")
    with open_sites(FleetPlacement.from_fleet(fleet), context.channel.note) as sites:
        plan = json_io.read(PlanResult, context.input("plan") / "plan.json")
        model = json_io.load(ModelRequest, context.task.config["model"], "model")
        sources = context.task.config.get("data", {}).get("local", {})
        own = DeviceWork(
            sites=sites, sources=sources, model=model, work=context.work, progress=context.channel.progress
        )
        coordinator.train(
            TrainingTask(
                plan=plan,
                fleet=fleet,
                profile=json_io.read(Profile, context.input("profile") / "profile.json"),
                model_folder=context.input("model"),
                data_folder=context.input("data"),
                local=prepare_own_data(own, plan.plan, context.input("data"), context.task.seed, context.channel.note),
                model=model,
                training=json_io.load(TrainingRequest, context.task.config["training"], "training"),
                seed=context.task.seed,
                work=context.work,
                output=Path(context.task.output),
                sites=sites,
                progress=context.channel.progress,
                note=context.channel.note,
                resumed=context.channel.resumed,
                earlier=tuple(map(Path, context.task.earlier)),
                stop=context.termination,
            )
        )
    # The metrics keep the forecast of the fleet that they were measured on: a later run may reuse them on another.
    shutil.copy(context.input("plan") / "forecast.json", context.output("metrics"))


if __name__ == "__main__":
    main(train)
