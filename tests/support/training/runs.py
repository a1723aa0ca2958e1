"""Runs the partitioned runtime, for tests: in one process, or in separate ones over real links."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Device, Fleet, Link
from fleetune.contracts.metrics import TrainingMetrics
from fleetune.contracts.plan import Lane, Plan, PlanResult, Segment, Share
from fleetune.contracts.profile import DeviceTimes, Profile, Unit
from fleetune.contracts.run_config import DataRequest, ModelRequest
from fleetune.contracts.task import StageTask
from fleetune.contracts.training_request import TrainingRequest
from fleetune.launching import LocalSites
from fleetune.models.graph import Graph
from fleetune.training.coordinator import train
from fleetune.training.task import TrainingTask
from tests.support.links.in_memory import MemoryLinks
from tests.support.preparation.instances import PreparedFolders, prepared_once
from tests.support.training.in_one_process import ThreadLauncher

MICRO_BATCH, MICRO_BATCHES = 8, 3


@dataclass(frozen=True)
class Prepared:
    """A model and data, ready to be trained by any plan."""

    graph: Graph
    model: ModelRequest
    folders: PreparedFolders
    seed: int

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the units in order."""
        return tuple(unit.name for unit in self.graph.units)


def prepared(model: ModelRequest, data: DataRequest, folder: Path, seed: int = 3) -> Prepared:
    """Prepare model and data below a folder; several plans may train from the result, which is made once a run."""
    graph, folders = prepared_once(folder, model, data, seed)
    return Prepared(graph, model, folders, seed)


def plan(units: tuple[str, ...], cuts: list[int], shares: list[list[int]]) -> Plan:
    """Return a plan of one lane: segments between `cuts`, each with these samples per device, named d0, d1, ..."""
    borders = [0, *cuts, len(units)]
    names = iter(f"d{number}" for number in range(100))
    segments = tuple(
        Segment(
            units=units[borders[p] : borders[p + 1]],
            shares=tuple(Share(device=next(names), samples=s) for s in samples),
            warmup=2 * (len(shares) - p) - 1,
        )
        for p, samples in enumerate(shares)
    )
    lanes = (Lane(name="main", segments=segments),)
    return Plan(strategy="test", micro_batch_samples=MICRO_BATCH, micro_batches=MICRO_BATCHES, lanes=lanes)


def run_plan(ready: Prepared, made: Plan, training: TrainingRequest, folder: Path, **changes: Any) -> TrainingMetrics:
    """Train by the coordinator; workers are threads, and messages stay in memory, unless something asks for processes.

    Each of these does: `processes`; a `launcher`; `threads` of each device (default 1); `cores`: CPU quota of each
    device, emulated (by default they compute at full speed); `accelerators`: device -> `cuda:N`, the others compute on
    CPUs. `latency_s`: of the links. `memory_bytes`: of each device.
    """
    return train(training_task(ready, made, training, folder, **changes))


def training_task(ready: Prepared, made: Plan, training: TrainingRequest, folder: Path, **changes: Any) -> TrainingTask:
    """Return the task of `run_plan`. `spares`: more devices of the fleet."""
    devices = (*made.devices, *changes.pop("spares", ()))
    threads, latency_s = changes.pop("threads", 1), changes.pop("latency_s", 1e-4)
    cores, accelerators = changes.pop("cores", None), changes.pop("accelerators", {})
    memory_bytes, launcher = changes.pop("memory_bytes", 8 << 30), changes.pop("launcher", None)
    if changes.pop("processes", False) or launcher or threads > 1 or cores is not None or accelerators:
        ends: dict[str, Any] = {"sites": LocalSites(launcher)}
    else:
        links = MemoryLinks()
        ends = {"sites": LocalSites(ThreadLauncher(links)), "make_endpoint": links.endpoint}
    fleet = Fleet(
        devices=tuple(
            Device(
                name=d,
                memory_bytes=memory_bytes,
                accelerator=accelerators.get(d, "cpu"),
                cores=cores or float(threads),
                emulated=cores is not None,
                threads=threads,
                fingerprint="test",
            )
            for d in devices
        ),
        links=tuple(
            Link(source=a, target=b, latency_s=latency_s, bytes_per_s=1e8) for a in devices for b in devices if a != b
        ),
    )
    rows = ((0.01,),) * len(ready.units)
    profile = Profile(
        model="test",
        units=tuple(
            Unit(
                name=u, param_bytes=1, trainable_bytes=1, activation_bytes=1, output_bytes=1, gradient_bytes=1, flops=1
            )
            for u in ready.units
        ),
        batch_sizes=(1,),
        times=tuple(DeviceTimes(device=d, runtime_bytes=1 << 30, forward_s=rows, backward_s=rows) for d in devices),
    )
    result = PlanResult(plan=made, objective=1.0, lower_bound=None, status="feasible", solve_s=0.0, method="test")
    return TrainingTask(
        plan=result,
        fleet=fleet,
        profile=profile,
        model_folder=ready.folders.model,
        data_folder=ready.folders.data,
        model=ready.model,
        training=training,
        seed=ready.seed,
        work=folder / "work",
        output=folder / "output",
        **ends,
        **changes,
    )


def final_state(folder: Path) -> dict[str, Tensor]:
    """Return every parameter and buffer after training, by name."""
    found: dict[str, Tensor] = {}
    for path in sorted((folder / "output" / "checkpoint" / "state").glob("*.safetensors")):
        found.update({k.removeprefix("model|"): t for k, t in load_file(path).items() if k.startswith("model|")})
    return found


def stage_task(ready: Prepared, made: Plan, folder: Path, training: TrainingRequest) -> Path:
    """Write the task of the stage `train`, with its input artifacts."""
    task = training_task(ready, made, training, folder)
    json_io.write(task.fleet, folder / "fleet" / "fleet.json")
    json_io.write(task.profile, folder / "profile" / "profile.json")
    json_io.write(task.plan, folder / "plan" / "plan.json")
    (folder / "plan" / "forecast.json").write_text("{}")
    inputs = {"model": ready.folders.model, "data": ready.folders.data}
    inputs |= {kind: folder / kind for kind in ("fleet", "profile", "plan")}
    stage = StageTask(
        stage="train",
        run="r",
        seed=ready.seed,
        config={"model": json_io.dump(ready.model), "training": json_io.dump(training)},
        inputs={kind: str(path) for kind, path in inputs.items()},
        output=str(folder / "output"),
        work=str(folder / "work"),
    )
    json_io.write(stage, folder / "task.json")
    return folder / "task.json"
