"""train: model, data, plan, fleet, profile -> checkpoint, metrics."""

import shutil
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Plan, PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.run_config import ModelRequest, TrainingRequest
from fleetune.errors import Refused
from fleetune.launching import Sites, open_sites
from fleetune.launching.placement import FleetPlacement
from fleetune.preparation.local_data import DeviceWork, prepare_on_devices
from fleetune.training import coordinator
from fleetune.training.task import DeviceData, TrainingTask
from stages.entry_point import StageContext, main


def train(context: StageContext) -> None:
    """Train by the plan; resumes the newest checkpoint of an interrupted attempt, also of one by another plan."""
    fleet = json_io.read(Fleet, context.input("fleet") / "fleet.json")
    if fleet.simulated:
        raise Refused(f"device {fleet.simulated[0]} is simulated: a run with it ends after plan; use --until plan")
    with open_sites(FleetPlacement.from_fleet(fleet), context.channel.note) as sites:
        plan = json_io.read(PlanResult, context.input("plan") / "plan.json")
        coordinator.train(
            TrainingTask(
                plan=plan,
                fleet=fleet,
                profile=json_io.read(Profile, context.input("profile") / "profile.json"),
                model_folder=context.input("model"),
                data_folder=context.input("data"),
                local=_prepared_on_devices(context, plan.plan, sites),
                model=json_io.load(ModelRequest, context.task.config["model"], "model"),
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


def _prepared_on_devices(context: StageContext, plan: Plan, sites: Sites) -> dict[str, DeviceData]:
    """Have the devices on which lanes begin prepare data of their own; empty where all data are central."""
    sources = context.task.config.get("data", {}).get("local", {})
    if not sources:
        return {}
    owners = {lane.segments[0].devices[0] for lane in plan.lanes}
    unused = ", ".join(sorted(set(sources) - owners))
    if unused:
        context.channel.note(f"data.local: by this plan no lane begins on {unused}, so what lies there is not used")
    work = DeviceWork(
        sites=sites,
        sources={device: source for device, source in sources.items() if device in owners},
        model=json_io.load(ModelRequest, context.task.config["model"], "model"),
        work=context.work,
        progress=context.channel.progress,
    )
    found = prepare_on_devices(work, context.input("data"), context.task.seed)
    return {device: DeviceData(folder=folder, samples=samples) for device, (folder, samples) in found.items()}


if __name__ == "__main__":
    main(train)
