"""The trackers that a run's config asks for."""

import importlib.util

from fleetune.contracts.tracking import TrackingRequest
from fleetune.errors import Refused
from fleetune.store import RunRecord, Store
from fleetune.store.store import TENSORBOARD
from flows.trackers.mlflow_run import MlflowRun
from flows.trackers.points import Tracker
from flows.trackers.tensorboard_files import TensorBoardFiles
from flows.trackers.wandb_run import WandbRun


def check_installed(request: TrackingRequest) -> None:
    """Refuse a tracker whose package is not installed. TensorBoard, which nobody has asked for, is no reason."""
    for name, asked in (("wandb", request.wandb), ("mlflow", request.mlflow)):
        if asked is not None and not _is_installed(name):
            raise Refused(
                f"tracking.{name}: the package {name} is not installed; install fleetune[{name}], or leave "
                f"tracking.{name} out"
            )


def _is_installed(module: str) -> bool:
    """Return whether a module can be imported; a folder that is called like it, such as W&B's own files, is none."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


def open_trackers(store: Store, run: RunRecord) -> list[Tracker]:
    """Return the trackers of a run; nothing is written or sent yet."""
    request = run.config.tracking
    found: list[Tracker] = []
    if request.tensorboard:
        found.append(TensorBoardFiles(store.local / TENSORBOARD / run.id))
    if request.wandb is not None:
        found.append(WandbRun(request.wandb, run, store.local))
    if request.mlflow is not None:
        found.append(MlflowRun(request.mlflow, run))
    return found
