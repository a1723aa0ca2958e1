"""Memory of a measuring process, and the forecast of a training worker's memory."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetune.clock import Clock
from fleetune.contracts import json_io
from fleetune.contracts.fleet import Device, Fleet
from fleetune.contracts.task import ignore_progress
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import Infeasible
from fleetune.launching import MALLOC_ENVIRONMENT, Command, LocalSites, ProcessLauncher
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from fleetune.planning import solve
from fleetune.planning.strategy import Problem
from fleetune.profiling.measuring_process import extrapolated
from fleetune.profiling.memory import (
    WORKER_MODULES_BYTES,
    UnitMemory,
    fitting_sizes,
    unit_memory,
    windows,
)
from fleetune.profiling.profile import profile
from fleetune.profiling.task import ProfilingTask
from fleetune.training.coordinator import train
from fleetune.training.task import TrainingTask
from fleetune.training.worker_command import WORKER
from tests.support.models.instances import recorded
from tests.support.profiling.instances import MODEL, measure_task, prepared
from tests.support.profiling.unit_costs import costs
from tests.support.training.model_families import BY_NAME

FAMILY = BY_NAME["bert"]
NEEDS = {name: UnitMemory(state_bytes=100, kept_bytes=10, sample_bytes=5, input_bytes=0) for name in "abcd"}
"""Of one unit at 2 samples: 100 + 20, and 20 for gradients."""
MARGIN = 0.06
"""Between the forecast and the peak of a training, as it was seen: 3 % at most, twice."""


def test_what_units_need_is_counted_without_data_as_it_is_measured(tmp_path: Path) -> None:
    """Activations counted on meta tensors equal the measured ones, except for buffers of the kernels."""
    ready = recorded(FAMILY, tmp_path)
    needs = unit_memory(ready.graph, skeleton(configuration(ready.request, ready.labels), ready.request))
    measured = costs(ready, [list(ready.units)])
    assert tuple(needs) == tuple(measured)
    for name, cost in measured.items():
        assert needs[name].activations(4) == pytest.approx(cost.activation_bytes[-1], rel=0.25), name


IMPORTS = f"""
import importlib, json, sys
from fleetune.linux import resident_bytes
from fleetune.profiling import measuring_process
before, before_bytes = set(sys.modules), resident_bytes()
importlib.import_module("{WORKER}")
print(json.dumps([sorted(set(sys.modules) - before), resident_bytes() - before_bytes]))
"""


def test_the_imports_that_are_weighed_are_those_of_the_worker_that_trains() -> None:
    """The training worker imports no library beyond those of a measuring process, and its own modules take about
    WORKER_MODULES_BYTES.

    Bug: the profile imported the worker by a name that the stage key does not see, so that new imports of the worker
    left the stored memory as it was.
    """
    ended = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    modules, used_bytes = json.loads(ended.stdout)
    assert {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names) == {"fleetune"}
    assert WORKER in modules
    assert used_bytes == pytest.approx(WORKER_MODULES_BYTES, rel=0.6)


def test_windows_hold_what_fits_with_its_activations() -> None:
    """Bug: a profile within 0.6 GB used 20.9 GB, because windows counted weights without activations. Every unit is in
    one window, in order."""
    assert windows(NEEDS, 2, 4 * 120 + 20) == [["a", "b", "c", "d"]]
    assert windows(NEEDS, 2, 4 * 120 + 19) == [["a", "b", "c"], ["d"]]
    assert windows(NEEDS, 20, 4 * 120 + 20) == [["a"], ["b"], ["c"], ["d"]]
    assert windows(NEEDS, 2, 0) == [["a"], ["b"], ["c"], ["d"]]


def test_batch_sizes_that_no_window_holds_are_left_out() -> None:
    """Batch sizes at which the largest unit does not fit are left out; if none fits, the error names the unit and its
    bytes."""
    needs = {**NEEDS, "big": UnitMemory(state_bytes=0, kept_bytes=0, sample_bytes=90, input_bytes=5)}
    assert fitting_sizes(needs, (1, 2, 4, 8), 10**6) == (1, 2, 4, 8)
    assert fitting_sizes(needs, (1, 2, 4, 8), 2 * 400) == (1, 2, 4)
    with pytest.raises(Infeasible, match=r"unit big alone takes 0.00 GB at 1 samples, and a worker leaves 0.00 GB"):
        fitting_sizes(needs, (1, 2), 199)


def test_what_was_not_measured_goes_on_as_the_measured_ends() -> None:
    """Larger sizes are on the line through the first and the last, or in proportion if that does not rise: on a busy
    machine 4,096 samples once seemed to take as long as 64."""
    assert extrapolated([1.0, 3.0, 5.0], (1, 2, 4), (1, 2, 4)) == (1.0, 3.0, 5.0)
    assert extrapolated([1.0, 3.0, 5.0], (1, 2, 4), (1, 2, 4, 8, 16)) == pytest.approx((1, 3, 5, 31 / 3, 21))
    assert extrapolated([2.0], (2,), (2, 4)) == (2.0, 4.0)
    assert extrapolated([3.0, 2.0], (1, 2), (1, 2, 4)) == (3.0, 2.0, 4.0)


def measuring(folder: Path, **changes: Any) -> tuple[int | None, list[dict[str, Any]], Any]:
    """Run a measuring process within its memory limit; returns exit code, lines and job."""
    _, folders = prepared(folder)
    task = measure_task(folders, **changes)
    json_io.write(task, folder / "task.json")
    arguments = ("--task", str(folder / "task.json"))
    command = Command(
        module="fleetune.profiling.measuring_process",
        arguments=arguments,
        environment=MALLOC_ENVIRONMENT,
        log=folder / "log",
    )
    job = ProcessLauncher(task.memory_bytes).start(command)
    try:
        return job.wait(300), [json.loads(line) for line in job.lines()], job
    finally:
        job.stop(0)


def test_profiling_stays_within_the_memory_of_its_device(tmp_path: Path) -> None:
    """Bug: a profile within 0.6 GB used 20.9 GB. Batches that fit are measured in windows of a few units; every batch
    size has times."""
    code, lines, job = measuring(tmp_path / "free", batch_sizes=(1,))
    idle_worker_bytes = next(line["runtime_bytes"] for line in lines if line["event"] == "loading")
    sizes = tuple(4**power for power in range(8))
    code, lines, job = measuring(tmp_path / "bound", batch_sizes=sizes, memory_bytes=idle_worker_bytes + 200_000_000)
    assert code == 0, (lines[-1], job.used_bytes, idle_worker_bytes)
    assert job.used_bytes <= idle_worker_bytes + 200_000_000
    for unit in lines[-1]["units"]:
        assert len(unit["forward_s"]) == len(unit["activation_bytes"]) == len(sizes)
    one_s, all_s = (sum(unit["forward_s"][place] for unit in lines[-1]["units"]) for place in (0, -1))
    assert all_s > 2 * one_s, "thousands of samples take their time"
    assert max(unit["activation_bytes"][-1] for unit in lines[-1]["units"]) > 10**9, "it would not have fitted"


def test_the_forecast_of_a_small_model_is_what_training_takes(tmp_path: Path) -> None:
    """Bug: 481 MB were forecast and 538 MB used of 500 MB, because the profile did not count the training worker's
    imports. The measured peak equals the forecast, and a note reports a peak beyond the budget."""
    device = Device(name="desk", memory_bytes=8 << 30, cores=1.0, fingerprint="test")
    training = TrainingRequest(rounds=3, batch_samples=12, micro_batch_samples=6, checkpoint_every_rounds=1)
    prepared(tmp_path)
    task = ProfilingTask(
        fleet=Fleet(devices=(device,)),
        model=MODEL,
        training=training,
        seed=3,
        model_folder=tmp_path / "profile",
        data_folder=tmp_path / "data",
        output=tmp_path / "profile",
        work=tmp_path / "profiling",
        sites=LocalSites(),
        progress=ignore_progress,
    )
    made = profile(task)
    problem = Problem(fleet=task.fleet, profile=made, micro_batch_samples=6, micro_batches=2, seed=3, options={})
    plan = solve("single", problem)
    forecast = Clock(task.fleet, made).memory_bytes(plan.plan, "desk")
    notes: list[str] = []
    tight = replace(task.fleet, devices=(replace(device, memory_bytes=forecast // 2),))  # a budget that does not bind
    metrics = train(
        TrainingTask(
            plan=plan,
            fleet=tight,
            profile=made,
            model_folder=task.model_folder,
            data_folder=task.data_folder,
            model=MODEL,
            training=training,
            seed=3,
            work=tmp_path / "work",
            output=tmp_path / "output",
            sites=LocalSites(),
            note=notes.append,
        )
    )
    (peak,) = metrics.peak_memory_bytes
    assert peak.amount == pytest.approx(forecast, rel=MARGIN)
    assert [note for note in notes if note.startswith(f"device desk used {peak.amount / 1e6:.0f} MB of its")]
