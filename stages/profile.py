"""profile: fleet, model, data -> profile (units and their costs on every device), data (arrays to train on)."""

from pathlib import Path

from fleetune import profiling
from fleetune.contracts import wire
from fleetune.contracts.config.data import DataRequest
from fleetune.contracts.config.model import ModelRequest
from fleetune.contracts.config.run import ProfileRequest
from fleetune.contracts.config.training import TrainingRequest
from fleetune.contracts.fleet import Fleet
from fleetune.launching import open_sites
from fleetune.launching.quarters import found
from stages.entry import Desk, main


def profile(desk: Desk) -> None:
    """Cut the model into units, prepare the data, and measure every unit on every device that is new."""
    config, task = desk.task.config, desk.task
    fleet = wire.read(Fleet, desk.input("fleet") / "fleet.json")
    with open_sites(found(fleet), desk.channel.note) as sites:
        profiling.profile(
            profiling.ProfilingTask(
                fleet=fleet,
                model=wire.load(ModelRequest, config["model"], "model"),
                data=wire.load(DataRequest, config["data"], "data"),
                training=wire.load(TrainingRequest, {"rounds": 1, **config["training"]}, "training"),  # none of its own
                seed=task.seed,
                folder=desk.output("profile"),
                data_folder=desk.output("data"),
                work=desk.work,
                sites=sites,
                progress=desk.channel.progress,
                note=desk.channel.note,
                scores=wire.load(ProfileRequest, config.get("profile", {}), "profile").scores,
                kept=profiling.Kept(Path(task.cache), task.run, anew=task.anew) if task.cache else None,
            )
        )


if __name__ == "__main__":
    main(profile)
