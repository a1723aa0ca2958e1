"""What training is given: by the stage to the coordinator, and by the coordinator to each worker."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Plan, PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.record import record
from fleetune.contracts.run_config import ModelRequest, TrainingRequest
from fleetune.contracts.task import Progress, quiet
from fleetune.launching import Sites


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask:
    """The whole input of the train stage."""

    plan: PlanResult
    fleet: Fleet
    profile: Profile
    profile_folder: Path
    """profile.json, graph.json, start.safetensors and model/config.json."""
    data_folder: Path
    model: ModelRequest
    training: TrainingRequest
    seed: int
    work: Path
    """Outlives an interrupted attempt: checkpoints, commit log, worker logs."""
    output: Path
    """Gets checkpoint/ and metrics/."""
    sites: Sites
    """Where the workers run; entered already."""
    progress: Progress = quiet
    note: Callable[[str], None] = lambda text: None
    """Is told in words what a reader of the run should know: where it goes on, and what cannot be used."""
    resumed: Callable[[str], None] | None = None
    """Is told where it goes on, instead of `note`."""
    earlier: tuple[Path, ...] = ()
    """Such work folders of unfinished attempts at the same training by other plans."""
    clock: Callable[[], float] = time.monotonic


@record
class WorkerTask:
    """One worker's task file. Keys and addresses are not in it: they travel through stdin."""

    device: str
    run: str
    plan: Plan
    model: ModelRequest
    training: TrainingRequest
    seed: int
    profile_folder: str
    data_folder: str
    work: str
    accelerator: str
    cores: float | None
    """The quota of an emulated device; None runs at full speed."""
    threads: int
    first_round: int
    state: str | None
    """Folder of the checkpoint to go on from."""
    bind: str
    """Where the worker listens."""
    address: str = ""
    """What others connect to; empty: whatever `bind` came to."""
    delays_s: dict[str, float] = field(default_factory=dict)
    """sender -> latency of an emulated link, added where its messages arrive."""


@record
class WorkerKeys:
    """The first line of a worker's stdin."""

    public: str
    secret: str
    coordinator_address: str
    coordinator_public: str
    peers: dict[str, str]
    """device -> public key, of everybody this worker may hear from."""
