"""train: model, data, plan, fleet, profile -> checkpoint, metrics."""

from collections.abc import Callable

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.training_request import TrainingRequest
from fleetune.launching import open_sites
from fleetune.launching.placement import FleetPlacement
from fleetune.preparation.local_data import DeviceWork
from fleetune.training import coordinator
from fleetune.training.local_data import prepare_own_data
from fleetune.training.task import TrainingTask
from stages.entry_point import StageContext, main
from stages.reviser import replanning
from stages.scoring import scorer


def train(context: StageContext, change: Callable[[TrainingTask], TrainingTask] = lambda task: task) -> None:
    """Train by the plan, whose forecast goes along; resumes an interrupted attempt. change: called with the task."""
    channel, seed, config = context.channel, context.task.seed, context.task.config
    fleet = json_io.read(Fleet, context.input("fleet") / "fleet.json")
    fleet.check_real()
    with open_sites(FleetPlacement.from_fleet(fleet), channel.note) as sites:
        plan = json_io.read(PlanResult, context.input("plan") / "plan.json")
        model, sources = json_io.load(ModelRequest, config["model"], "model"), config.get("data", {}).get("local", {})
        profile = json_io.read(Profile, context.input("profile") / "profile.json")
        own = DeviceWork(sites=sites, sources=sources, model=model, work=context.work, progress=channel.progress)
        task = TrainingTask(
            plan=plan,
            fleet=fleet,
            profile=profile,
            model_folder=context.input("model"),
            data_folder=context.input("data"),
            local=prepare_own_data(own, plan.plan, context.input("data"), seed, channel.note),
            model=model,
            training=json_io.load(TrainingRequest, config["training"], "training"),
            seed=seed,
            work=context.work,
            output=context.outputs,
            sites=sites,
            progress=channel.progress,
            note=channel.note,
            resumed=channel.resumed,
            earlier=context.earlier,
            score=scorer(context),
            stop=context.termination,
            returns=True,
            **replanning(plan, fleet, profile, seed),
        )
        coordinator.train(change(task))
    (context.output("metrics") / "forecast.json").write_bytes((context.input("plan") / "forecast.json").read_bytes())


if __name__ == "__main__":
    main(train)
