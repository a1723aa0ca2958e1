"""Cancel, Pause, Ctrl-C, shutdowns and kills in the middle of a training on containers: nothing of it is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from fleetune.launching.docker import cleanup
from flows.service.flow_process import ALONE_S
from tests.support.engine.pipelines import LINKS, config
from tests.support.flows.service.client import ServiceClient
from tests.support.flows.service.training import Training, committed_rounds, end_in_s, saved_rounds

ROUNDS, END_S = 90, 10.0
"""Rounds of each training, of which two interruptions take at most a third; and seconds within which nothing of it is
left."""
SLOW_LINKS = {**LINKS, "latency_s": 0.06}
"""Latency makes rounds long at no processor time, so that few are enough to be in the midst of a training twice."""
ONLY_TRAINING = {"start_from": "train", "until": "monitor"}
STOPPED = 130
"""Exit code of a command that was told to end."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceClient]:
    """A service of an empty store."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            patch.delenv(name)
        client = ServiceClient(tmp_path_factory.mktemp("service") / "runs")
        client.command("up", "--port", str(client.free_port()))
        yield client
        if client.files.starting():
            client.command("down")


@pytest.fixture(scope="module")
def slow(service: ServiceClient, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run file of a training with three rounds a second, without checkpoints by the clock or by rounds; its plan
    is stored.
    """
    emulated = {"cores": 0.8, "memory_bytes": 1_000_000_000}
    devices = [
        {"name": name, "launcher": "docker", "accelerator": "cpu", "emulate": dict(emulated)}
        for name in ("desk", "nano")
    ]
    fleet = {"devices": devices, "links": SLOW_LINKS, "image": "fleetune-mounted"}
    training = {"rounds": ROUNDS, "batch_samples": 32, "micro_batch_samples": 8, "checkpoint_every_rounds": 1000}
    folder = tmp_path_factory.mktemp("config")
    path = config(folder, fleet=fleet, training=training)
    ended = service.ended(service.start(base=str(path), until="plan"))
    assert ended["state_name"] == "Completed", ended["state"]["message"]
    return path


class ContainerTraining(Training):
    """A training on containers, in the middle of it."""

    names = ("flow_process", "stages.train", cleanup.__name__)

    def __init__(self, service: ServiceClient, engine: Any, config: Path, learning_rate: float) -> None:
        """See Training."""
        self._engine, self._before = engine, left_on(engine)
        super().__init__(service, config, learning_rate, **ONLY_TRAINING)
        assert len(self.left) > len(self.names)

    @property
    def left(self) -> set[str]:
        """What it has on the engine."""
        return left_on(self._engine) - self._before

    @property
    def alive(self) -> list[Any]:
        """What of it has not ended."""
        return [*super().alive, *self.left]

    def terminate_all(self) -> None:
        """SIGTERM to every process and container at once."""
        super().terminate_all()
        for container in self._engine.containers.list(filters={"label": cleanup.RUN_LABEL}, ignore_removed=True):
            with suppress(Exception):  # it has just ended
                container.kill(signal.SIGTERM)

    def kill_all(self) -> None:
        """kill -9 of every process of the service and of the run, those that would clean up as well."""
        keeper = psutil.Process(self.service.record.keeper)
        processes = [keeper, *keeper.children(recursive=True)]
        for process in processes:
            process.suspend()  # so that none can answer the end of another
        for process in processes:
            process.kill()
        psutil.wait_procs(processes)


def left_on(engine: Any) -> set[str]:
    """Ids of all containers, ended ones too, networks and volumes that runs have on an engine."""
    filters = {"label": cleanup.RUN_LABEL}
    containers = engine.containers.list(all=True, filters=filters, ignore_removed=True)
    things = (*containers, *engine.networks.list(filters=filters), *engine.volumes.list(filters=filters))
    return {thing.id for thing in things}


def test_cancel_and_pause_remove_containers_and_lose_no_round(service: ServiceClient, engine: Any, slow: Path) -> None:
    """Cancel and Pause in the UI end processes, containers and networks within 10 s, with a checkpoint of the last
    committed round; Retry and Resume go on, to the very weights of a training that nobody has interrupted.
    """
    training = ContainerTraining(service, engine, slow, 1e-3)
    service.set_state(training.run, "CANCELLING", "Cancelling")
    training.end_in_s(END_S)
    assert training.saved == [training.rounds]
    assert service.ended(training.run)["state_name"] == "Cancelled"
    service.expect_tasks(training.run, train="Cancelled", monitor="Cancelled")
    training.goes_on()
    training.pause()
    training.end_in_s(END_S)
    before = training.rounds
    assert training.saved[-1] == before < ROUNDS
    service.call("POST", f"/flow_runs/{training.run}/resume")
    trained = training.finished(before)
    whole = service.start(base=service.flow_run(training.run)["parameters"]["base"], **ONLY_TRAINING)
    assert service.ended(whole)["state_name"] == "Completed"
    assert "goes on from round" not in service.logs(whole)
    assert training.model_of(whole) == trained


def test_a_shutdown_loses_no_round_and_up_removes_what_kills_leave(
    service: ServiceClient, engine: Any, slow: Path
) -> None:
    """SIGTERM to all processes and containers at once, as when the machine shuts down, leaves a checkpoint of the last
    committed round. After kill -9 of everything, the processes that clean up included, `up` removes the containers.
    Each time the run reads Crashed, and Retry goes on.
    """
    training = ContainerTraining(service, engine, slow, 2e-3)
    training.terminate_all()
    training.end_in_s(2 * ALONE_S + END_S)
    saved = training.rounds
    assert training.saved == [saved]
    training.up()
    assert service.flow_run(training.run)["state_name"] == "Crashed"
    training.goes_on()
    training.kill_all()
    assert training.left, "nobody was there to remove them"
    training.up()
    assert not training.left
    assert service.flow_run(training.run)["state_name"] == "Crashed"
    service.expect_tasks(training.run, train="Crashed", monitor="Crashed")
    service.set_state(training.run, "SCHEDULED", "AwaitingRetry")
    training.finished(saved)


def test_ctrl_c_and_sigterm_end_a_command_with_a_checkpoint(service: ServiceClient, engine: Any, slow: Path) -> None:
    """Ctrl-C and SIGTERM to `fleetune run` end its processes, containers and networks within 10 s, with a checkpoint of
    the last committed round; the same command goes on from there.
    """
    before, known, saved = left_on(engine), set(service.root.glob("work/*")), 0

    def work() -> Path | None:
        assert command.alive, command.said()
        new = set(service.root.glob("work/*")) - known
        return next((folder for folder in new if committed_rounds(folder) > saved + 2), None)

    for number in (signal.SIGINT, signal.SIGTERM):
        with Command("run", str(slow), "--root", str(service.root), "--set", "training.learning_rate=3e-3") as command:
            folder = service.until(work)
            family = psutil.Process(command.process.pid).children(recursive=True)
            assert left_on(engine) - before
            command.process.send_signal(number)
            end_in_s(lambda: [*command.alive, *_running(family), *(left_on(engine) - before)], END_S)  # noqa: B023
            said = command.said()
        assert command.process.returncode == STOPPED, said
        assert "the same command goes on" in said
        assert not saved or f"goes on from round {saved} of {ROUNDS}" in said
        saved = committed_rounds(folder)
        assert saved_rounds(folder)[-1] == saved < ROUNDS


class Command:
    """`fleetune` as a process, which is killed at the end of the context."""

    def __init__(self, *words: str) -> None:
        code = "from flows.cli import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def alive(self) -> list[object]:
        """The process while it runs."""
        return [self.process] if self.process.poll() is None else []

    def said(self) -> str:
        """All that it has printed, once it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.read()


def _running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return psutil.wait_procs(processes, timeout=0)[1]
