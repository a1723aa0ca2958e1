"""train: fleet, profile, data, plan -> checkpoint, metrics."""

from pathlib import Path

from fleetune import training
from fleetune.contracts import wire
from fleetune.contracts.config.model import ModelRequest
from fleetune.contracts.config.training import TrainingRequest
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.errors import Refused
from fleetune.launching import open_sites
from fleetune.launching.quarters import found
from stages.entry import Desk, main


def train(desk: Desk) -> None:
    """Train by the plan; an interrupted attempt goes on from what it left in the work folder, or another plan did."""
    fleet = wire.read(Fleet, desk.input("fleet") / "fleet.json")
    if fleet.simulated:
        raise Refused(f"device {fleet.simulated[0]} is simulated: a run with it ends after plan; use --until plan")
    profile_folder = desk.input("profile")
    with open_sites(found(fleet), desk.channel.note) as sites:
        training.train(
            training.TrainingTask(
                plan=wire.read(PlanResult, desk.input("plan") / "plan.json"),
                fleet=fleet,
                profile=wire.read(Profile, profile_folder / "profile.json"),
                profile_folder=profile_folder,
                data_folder=desk.input("data"),
                model=wire.load(ModelRequest, desk.task.config["model"], "model"),
                training=wire.load(TrainingRequest, desk.task.config["training"], "training"),
                seed=desk.task.seed,
                work=desk.work,
                output=Path(desk.task.output),
                sites=sites,
                progress=desk.channel.progress,
                note=desk.channel.note,
                resumed=desk.channel.resumed,
                earlier=tuple(map(Path, desk.task.earlier)),
            )
        )


if __name__ == "__main__":
    main(train)
