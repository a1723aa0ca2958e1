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
from fleetune.training import coordinator
from fleetune.training.task import TrainingTask
from stages.entry_point import StageContext, main
from stages.own_data import own_data
from stages.reviser import replanning
from stages.scoring import scorer


def train(context: StageContext, change: Callable[[TrainingTask], TrainingTask] = lambda task: task) -> None:
    """Train by the plan, whose forecast goes along; resumes an interrupted attempt. change: called with the task."""
    channel, seed, config = context.channel, context.task.seed, context.task.config
    fleet = json_io.read(Fleet, context.input("fleet") / "fleet.json")
    fleet.check_real()
    with open_sites(FleetPlacement.from_fleet(fleet), channel.note) as sites:
        plan = json_io.read(PlanResult, context.input("plan") / "plan.json")
        model = json_io.load(ModelRequest, config["model"], "model")
        profile = json_io.read(Profile, context.input("profile") / "profile.json")
        task = TrainingTask(
            plan=plan,
            fleet=fleet,
            profile=profile,
            model_folder=context.input("model"),
            data_folder=context.input("data"),
            local=own_data(context, sites, model, plan.plan),
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
            **replanning(plan, fleet, profile, seed, config.get("data", {}).get("local", {})),
        )
        coordinator.train(change(task))
    (context.output("metrics") / "forecast.json").write_bytes((context.input("plan") / "forecast.json").read_bytes())


if __name__ == "__main__":
    main(train)
