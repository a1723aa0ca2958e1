"""Inputs of a training: the coordinator's, from the stage, and each worker's, from the coordinator."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.head_scores import HeadScores
from fleetune.contracts.plan import Plan, PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.record import record
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.task import NoStopRequest, Progress, StopRequest, ignore_progress
from fleetune.contracts.training_request import TrainingRequest
from fleetune.launching import Sites
from fleetune.links.endpoint import Endpoint, EndpointFactory
from fleetune.training.validation import BeginScoring

COORDINATOR = "coordinator"
"""Name of the coordinator on the links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceData:
    """Prepared training samples that lie on a device."""

    folder: Path
    """On the device, inside a folder of its own; as `PreparedData` reads it."""
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask:
    """Input of the coordinator."""

    plan: PlanResult
    fleet: Fleet
    profile: Profile
    model_folder: Path
    """Holds graph.json, start.safetensors and model/config.json."""
    data_folder: Path
    local: Mapping[str, DeviceData] = field(default_factory=dict)
    """Device -> data of its own, which its lane trains on; empty: lanes are dealt the rows in `data_folder`."""
    model: ModelRequest
    training: TrainingRequest
    seed: int
    work: Path
    """Checkpoints, commit log and worker logs; survives an interrupted attempt."""
    output: Path
    """Receives checkpoint/ and metrics/."""
    sites: Sites
    """Launchers of the workers; already entered as a context."""
    make_endpoint: EndpointFactory = Endpoint
    """Makes the coordinator's end of the links; the workers' are made by what the launchers start."""
    progress: Progress = ignore_progress
    note: Callable[[str], None] = lambda text: None
    """Receives sentences for readers of the run: where training resumes, and what cannot be used."""
    resumed: Callable[[str], None] | None = None
    """Receives the sentence that says where training resumes, instead of `note`."""
    earlier: tuple[Path, ...] = ()
    """Work folders of unfinished attempts at the same training by other plans."""
    clock: Callable[[], float] = time.monotonic
    measured_busy: Callable[[int, Mapping[str, float]], Mapping[str, float]] = lambda round, busy_s: busy_s
    """(Round, device -> measured compute seconds) -> the seconds by which blocks are dealt anew."""
    logged: Callable[[int], None] = lambda round: None
    """Receives each round that is in the commit log and was not yet sent to the devices."""
    score: BeginScoring | None = None
    """Scores a checkpoint beside the training, for `training.evaluate_every_rounds`."""
    stop: StopRequest = field(default_factory=NoStopRequest)
    """Ends the training once it has a checkpoint of the last committed round."""
    returns: bool = False
    """True if lost devices are started again, and taken into the plan at the border of a round; with the first loss,
    the `spares` too."""
    revise: Callable[[Plan, Collection[str]], PlanResult] | None = None
    """(Plan, devices that are lost) -> a plan for the others; Infeasible or Refused if there is none. None: a training
    that loses a device ends, and goes on from its newest checkpoint when it is run again."""
    choose_gates: Callable[[Plan, Iterable[HeadScores]], Mapping[str, str]] | None = None
    """(Plan, scores of all heads) -> subnet -> operations, for plans that refresh their gates."""
    load_planners: Callable[[], None] = lambda: None
    """Imports what `revise` calls, in a thread beside the first rounds: at a loss all devices would wait for it."""
    around_stragglers: Callable[[Plan, Collection[str], Mapping[str, float], bool], PlanResult] | None = None
    """(Plan, devices that are lost, straggler -> its compute seconds over those of its profile, whether there must be
    another plan) -> a plan; Infeasible if none is worth it. For `training.replan_stragglers`."""

    dealt: Plan | None = None
    """The plan that dealt the lanes their samples and seeds, where the training has gone on from an attempt by another
    one; None: `plan`."""

    @property
    def dealing(self) -> Plan:
        """The plan that dealt the lanes their samples and seeds."""
        return self.dealt or self.plan.plan

    @property
    def spares(self) -> tuple[str, ...]:
        """Profiled devices that the first plan leaves out, though its strategy might use them. None where samples or
        roles belong to devices.
        """
        plan, result = self.plan.plan, self.plan
        if not self.returns or self.revise is None or self.local or plan.collector or len(plan.lanes) > 1:
            return ()
        profiled = {times.device for times in self.profile.times}
        usable = profiled & set(result.options.get("devices") or profiled)
        names = (device.name for device in self.fleet.devices)
        return tuple(name for name in names if name in usable and name not in plan.devices)


@record
class WorkerTask:
    """One worker's task file. Keys and addresses are not in it: they travel through stdin."""

    device: str
    run: str
    plan: Plan
    """The first; each `Migration` brings the one that follows."""
    dealt: Annotated[Plan | None, Field(exclude_if=lambda value: value is None)] = None
    """See `TrainingTask`."""
    model: ModelRequest
    training: TrainingRequest
    seed: int
    model_folder: str
    data_folder: str
    """The run's data, or those of the device itself where data are local."""
    local_samples: Annotated[dict[str, int], Field(exclude_if=lambda value: not value)] = field(default_factory=dict)
    """Device -> number of its own training samples, where data are local."""
    work: str
    accelerator: str
    memory_bytes: int
    """The most that it may take of a GPU's memory; on CPUs its launcher limits it."""
    cores: float | None
    """CPU quota of an emulated device; None for full speed."""
    threads: int
    returns: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True if the others train on until it is loaded."""
    bind: str
    """Address that the worker listens on."""
    address: str = ""
    """Address that others connect to; empty for the bound one."""
    delays_s: dict[str, float] = field(default_factory=dict)
    """Sender -> latency of an emulated link, added at the receiver."""


@record
class WorkerKeys:
    """Keys and addresses of a run, passed on the first line of a worker's stdin."""

    public: str
    secret: str
    coordinator_address: str
    coordinator_public: str
    peers: dict[str, str]
    """Device -> public key of every worker that this one accepts messages from."""
