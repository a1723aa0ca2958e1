"""profile: fleet, model, data -> profile (units and their costs on every device), data (arrays to train on)."""

from fleetune import profiling
from fleetune.contracts import wire
from fleetune.contracts.config.data import DataRequest
from fleetune.contracts.config.model import ModelRequest
from fleetune.contracts.config.training import TrainingRequest
from fleetune.contracts.fleet import Fleet
from fleetune.launching import ProcessLauncher
from fleetune.profiling.profile import ProfilingTask
from stages.entry import Desk, main


def profile(desk: Desk) -> None:
    """Cut the model into units, prepare the data, and measure every unit on every device."""
    config = desk.task.config
    task = ProfilingTask(
        fleet=wire.read(Fleet, desk.input("fleet") / "fleet.json"),
        model=wire.load(ModelRequest, config["model"], "model"),
        data=wire.load(DataRequest, config["data"], "data"),
        training=wire.load(TrainingRequest, {"rounds": 1, **config["training"]}, "training"),  # no setting of its own
        seed=desk.task.seed,
        folder=desk.output("profile"),
        data_folder=desk.output("data"),
        work=desk.work,
        launcher=ProcessLauncher(),
        progress=desk.channel.progress,
    )
    profiling.profile(task)


if __name__ == "__main__":
    main(profile)
