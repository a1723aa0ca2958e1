"""Cancel, Retry, Pause, Resume and kills in the middle of a training, as people do them with the real service."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from flows.service.flow_process import ALONE_S
from tests.support.flows.service.client import ServiceClient
from tests.support.flows.service.training import ROUNDS, Training, write_run_file

CANCEL_S, PAUSE_S = 10.0, 10.0
"""Seconds within which all processes of a run have ended."""
SHUTDOWN_S = CANCEL_S + 2 * ALONE_S
"""The same where its worker, and then the run, has to find out that there is no server to report to."""
SIGNALS, SIGNALS_EVERY_S = 40, 0.005
"""How often a run is told to end in a row, as by the kernel: far more often than it has waits to interrupt."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run file of all trainings, which share their stages."""
    return write_run_file(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def planned(service: ServiceClient, config: Path) -> Path:
    """The same run file, once the plan of its trainings is stored."""
    ended = service.ended(service.start(base=str(config), until="plan"))
    assert ended["state_name"] == "Completed", ended["state"]["message"]
    return config


def only_training(service: ServiceClient, planned: Path, learning_rate: float, *changes: str) -> Training:
    """A run of nothing but a training and what follows it."""
    return Training(service, planned, learning_rate, start_from="train", until="monitor", changes=changes)


def test_cancel_and_retry_lose_no_round(service: ServiceClient, config: Path) -> None:
    """Cancel in the middle of a training ends all processes within 10 s, with a checkpoint of the last committed round;
    Retry goes on from it, to the very weights of a training that nobody has interrupted.
    """
    training = Training(service, config, 1e-3, until="monitor")
    service.set_state(training.run, "CANCELLING", "Cancelling")
    training.end_in_s(CANCEL_S)
    assert training.saved == [training.rounds], service.logs(training.run)
    assert service.ended(training.run)["state_name"] == "Cancelled"
    service.expect_tasks(training.run, train="Cancelled", monitor="Cancelled")
    assert service.logged(training.run, f"ended after round {training.rounds} of {ROUNDS}, with a checkpoint")
    assert service.logged(training.run, "train: stopped")
    assert "failed" not in service.logs(training.run) and "Traceback" not in service.logs(training.run)
    trained = training.retried()
    base = service.flow_run(training.run)["parameters"]["base"]
    whole = service.start(base=base, start_from="train", until="monitor")
    ended = service.ended(whole)
    assert ended["state_name"] == "Completed", ended["state"]["message"]
    assert "goes on from round" not in service.logs(whole)
    assert training.model_of(whole) == trained


def test_pause_takes_hold_in_the_middle_of_a_stage(service: ServiceClient, planned: Path) -> None:
    """Bug: after Pause a training went on to its end, and Resume started a second process beside it. Pause, with what
    the UI's dialog posts, ends the run's processes with a checkpoint, and Resume goes on from it.
    """
    training = only_training(service, planned, 2e-3)
    training.pause()
    training.end_in_s(PAUSE_S)
    assert service.flow_run(training.run)["state_name"] == "Suspended"
    assert training.saved == [training.rounds] and training.rounds < ROUNDS
    before = training.rounds
    service.call("POST", f"/flow_runs/{training.run}/resume")
    training.finished(before)


def test_the_truth_after_kills(service: ServiceClient, planned: Path) -> None:
    """A killed worker's run ends with a checkpoint and says Crashed, with its tasks; so does a run that was killed
    itself. The keeper starts another worker, and Retry goes on: the deployment's one slot is free at once.

    Bug: the kernel tells of a process's end up to once for each of its threads, and the run lost its rounds.
    """
    training = only_training(service, planned, 3e-3)
    (flow,) = training.find("flow_process")
    training.kill("flows.service.worker")
    with suppress(psutil.NoSuchProcess):
        for _ in range(SIGNALS):
            flow.terminate()
            psutil.wait_procs([flow], timeout=SIGNALS_EVERY_S)
    training.end_in_s(CANCEL_S)
    assert training.saved == [training.rounds], service.logs(training.run)
    assert service.ended(training.run)["state_name"] == "Crashed"
    before = training.rounds
    service.set_state(training.run, "SCHEDULED", "AwaitingRetry")
    service.until(lambda: training.rounds > before)
    training.kill("flow_process")
    service.until(lambda: service.flow_run(training.run)["state_name"] == "Crashed")
    service.expect_tasks(training.run, train="Crashed", monitor="Crashed")
    assert "Running" not in service.tasks(training.run).values()
    service.set_state(training.run, "SCHEDULED", "AwaitingRetry")
    training.finished(before)


def test_shutdowns_lose_no_round(service: ServiceClient, planned: Path) -> None:
    """SIGTERM to the worker, SIGTERM to every process at once (the machine shuts down) and kill -9 of the keeper: each
    ends the run with a checkpoint of its last committed round, `up` tells the truth, and Retry goes on. A power cut
    (kill -9 of every process at once) leaves no time for a checkpoint: Retry goes on from the newest one.

    Bug: Prefect's worker killed its runs when it was terminated, and lost their rounds. Bug: after a shutdown a run
    lived on for 28 s, since the server that forks its stages passed for a stage.
    """
    rounds = 2 * ROUNDS
    training = only_training(service, planned, 5e-3, "training.checkpoint_every_rounds=3", f"training.rounds={rounds}")
    worker = training.terminate("flows.service.worker")
    training.end_in_s(CANCEL_S)
    assert training.saved[-1] == training.rounds, service.logs(training.run)
    service.until(lambda: {process.pid for process in training.find("flows.service.worker")} - {worker})
    assert service.ended(training.run)["state_name"] == "Crashed"
    for end in (training.terminate_all, lambda: os.kill(service.record.keeper, signal.SIGKILL), training.cut_power):
        training.goes_on()
        end()
        training.end_in_s(SHUTDOWN_S)
        newest = training.saved[-1]
        assert newest <= training.rounds < rounds
        assert newest == training.rounds or end == training.cut_power
        training.up()
        assert service.flow_run(training.run)["state_name"] == "Crashed"
        service.expect_tasks(training.run, train="Crashed", monitor="Crashed")
    service.set_state(training.run, "SCHEDULED", "AwaitingRetry")
    training.finished(newest)


def test_a_run_survives_its_server(service: ServiceClient, planned: Path) -> None:
    """kill -9 of the server in the middle of a training: the keeper starts it again, and the run ends well.

    Bug: leases of the deployment's slot were in the server's memory. Prefect's engine renews one every 225 s, and ended
    a training that was longer, because the new server did not know it.
    """
    training = only_training(service, planned, 4e-3)
    lease = service.flow_run(training.run)["state"]["state_details"]["deployment_concurrency_lease_id"]
    killed = training.kill("flows.service.http_server")
    service.until(lambda: {process.pid for process in training.find("flows.service.http_server")} - {killed})
    service.call("POST", f"/v2/concurrency_limits/leases/{lease}/renew", {"lease_duration": 300})
    service.until(lambda: training.alive == [])
    assert service.ended(training.run)["state_name"] == "Completed"
