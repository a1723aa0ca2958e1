"""The pace of an emulated device: processes and containers."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.training_request import TrainingRequest
from fleetune.launching.process_limits import CpuThrottle
from fleetune.links.authentication import new_key_pair
from fleetune.training.task import WorkerTask
from fleetune.training.worker_command import WorkerCommands
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import plan, prepared, training_task

TRAINING = TrainingRequest(rounds=1, batch_samples=1, micro_batch_samples=1)


class Machine:
    """A machine whose clocks go on by what is run on it."""

    def __init__(self) -> None:
        self.now_s = self.cpu_used_s = 0.0

    def clock_s(self) -> float:
        """Wall time."""
        return self.now_s

    def cpu_s(self) -> float:
        """Processor time of the calling thread."""
        return self.cpu_used_s

    def sleep(self, seconds: float) -> None:
        """Wait without computing."""
        self.now_s += seconds

    def compute(self, cpu_s: float, wall_s: float) -> None:
        """Take processor time while the clock goes on."""
        self.cpu_used_s += cpu_s
        self.now_s += wall_s


@pytest.mark.parametrize(
    ("cores", "cpu_s", "wall_s", "lasts_s"),
    [
        (0.25, 2.0, 2.0, 8.0),  # at the machine's full speed, as after a wait
        (0.25, 2.0, 8.0, 8.0),  # held to the quota by the engine
        (0.25, 2.0, 9.5, 9.5),  # others had the processor
        (1.5, 2.0, 2.0, 2.0),
        (None, 2.0, 3.0, 3.0),
    ],
)
def test_what_takes_c_seconds_of_a_processor_lasts_c_over_cores(
    cores: float | None, cpu_s: float, wall_s: float, lasts_s: float
) -> None:
    """However fast it was run, work lasts as long as on a device with so many cores, and never longer than it took."""
    machine = Machine()
    throttle = CpuThrottle(cores, machine.clock_s, machine.cpu_s, machine.sleep)
    with throttle.throttled():
        machine.compute(cpu_s, wall_s)
    assert machine.now_s == lasts_s


def test_work_at_once_after_other_work_makes_up_for_what_that_lasted_too_long() -> None:
    """Passes in a row last as long as their processor time allows, though an engine held one of them back; a device
    that has waited makes up for nothing, and nobody for more than one period of a quota."""
    machine = Machine()
    throttle = CpuThrottle(0.5, machine.clock_s, machine.cpu_s, machine.sleep)

    def lasts_s(cpu_s: float, wall_s: float) -> float:
        began_s = machine.now_s
        with throttle.throttled():
            machine.compute(cpu_s, wall_s)
        return machine.now_s - began_s

    assert lasts_s(0.01, 0.024) == pytest.approx(0.024)
    assert lasts_s(0.01, 0.010) == pytest.approx(0.016), "4 ms of it were made up for"
    assert lasts_s(0.01, 0.010) == pytest.approx(0.020)
    assert lasts_s(0.01, 0.027) == pytest.approx(0.027)
    machine.sleep(0.05)
    assert lasts_s(0.01, 0.010) == pytest.approx(0.020), "it has waited"
    assert lasts_s(0.01, 1.020) == pytest.approx(1.020)
    assert lasts_s(0.01, 0.005) == pytest.approx(0.010)
    assert lasts_s(0.01, 0.005) == pytest.approx(0.020)


@pytest.mark.parametrize(
    ("launcher", "emulated", "cores"), [("process", True, 0.25), ("docker", True, 0.25), ("docker", False, None)]
)
def test_emulated_devices_keep_an_even_pace(tmp_path: Path, launcher: str, emulated: bool, cores: float | None) -> None:
    """Bug: a container computed its first milliseconds after each wait at full speed, as its quota is granted anew
    while it waits, so pipelines were faster than any forecast. A container that emulates nothing is not slowed."""
    ready = prepared(model_request(BY_NAME["bert"], dropout=True), data_request(BY_NAME["bert"], tmp_path), tmp_path)
    task = training_task(ready, plan(ready.units, [], [[8]]), TRAINING, tmp_path, cores=0.25)
    devices = tuple(replace(device, launcher=launcher, emulated=emulated) for device in task.fleet.devices)
    commands = WorkerCommands(
        task=replace(task, fleet=replace(task.fleet, devices=devices)),
        run="run",
        keys={"d0": new_key_pair()},
        coordinator_address="",
        coordinator_public=b"",
    )
    written = Path(commands.of("d0").arguments[1])
    assert json_io.read(WorkerTask, written).cores == cores
