"""profile: fleet, model, data -> profile (units and their costs on every device)."""

from collections.abc import Callable
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.run_config import ModelRequest, ProfileRequest
from fleetune.contracts.training_request import TrainingRequest
from fleetune.launching import open_sites
from fleetune.launching.placement import FleetPlacement
from fleetune.profiling.cache import MeasurementCache
from fleetune.profiling.profile import profile as profile_fleet
from fleetune.profiling.task import ProfilingTask
from stages.entry_point import StageContext, main


def profile(context: StageContext, measure: Callable[[ProfilingTask], object] = profile_fleet) -> None:
    """Measure every unit of the prepared model on every device that no earlier run has measured.

    measure: profiles what it is given.
    """
    config, task = context.task.config, context.task
    asked = json_io.load(ProfileRequest, config.get("profile", {}), "profile")
    fleet = json_io.read(Fleet, context.input("fleet") / "fleet.json")
    with open_sites(FleetPlacement.from_fleet(fleet), context.channel.note) as sites:
        measure(
            ProfilingTask(
                fleet=fleet,
                model=json_io.load(ModelRequest, config["model"], "model"),
                training=json_io.load(
                    TrainingRequest, {"rounds": 1, **config["training"]}, "training"
                ),  # none of its own
                seed=task.seed,
                model_folder=context.input("model"),
                data_folder=context.input("data"),
                output=context.output("profile"),
                work=context.work,
                sites=sites,
                progress=context.channel.progress,
                note=context.channel.note,
                scores=asked.scores,
                codecs=asked.codecs,
                partial=asked.partial,
                cache=MeasurementCache(Path(task.cache), task.run, anew=task.anew) if task.cache else None,
            )
        )


if __name__ == "__main__":
    main(profile)
