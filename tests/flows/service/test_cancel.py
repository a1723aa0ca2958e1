"""Cancel, Retry, Pause, Resume and kills in the middle of a training, as people do them with the real service."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.service.flow_process import ORPHAN_S
from tests.flows.service.client import ServiceClient
from tests.flows.service.training import Training

pytestmark = pytest.mark.slow

ROUNDS, CANCEL_S, PAUSE_S = 60, 10.0, 10.0
"""Rounds of each training; and seconds within which all processes of a run have ended."""
CONFIG: dict[str, Any] = {
    "name": "small",
    "seed": 4,
    "fleet": {"devices": [{"name": "a", "emulate": {"cores": 0.1}}, {"name": "b", "emulate": {"cores": 0.1}}]},
    "model": {
        "task": "sequence-classification",
        "config": {
            "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 128, "vocab_size": 300,
        },
    },
    "data": {"source": "rows.jsonl", "max_length": 32},
    "training": {"rounds": ROUNDS, "batch_samples": 16, "micro_batch_samples": 4, "checkpoint_every_rounds": 1000},
    "strategy": {"name": "pp"},
}  # fmt: skip


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run file of a training without checkpoints by the clock; it is the same for all tests, which share stages."""
    folder = tmp_path_factory.mktemp("config")
    rows = [{"text": f"{i} {word} " * (1 + i % 4), "label": word} for i in range(40) for word in ("red", "green")]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "small.yaml").write_text(yaml.safe_dump(CONFIG))
    return folder / "small.yaml"


def test_cancel_and_retry_lose_no_round(service: ServiceClient, config: Path) -> None:
    """Cancel in the middle of a training ends all processes within 10 s, with a checkpoint of the last committed round;
    Retry goes on from it, to the very weights of a training that nobody has interrupted.
    """
    training = Training(service, config, 1e-3)
    service.set_state(training.run, "CANCELLING", "Cancelling")
    training.end_in_s(CANCEL_S)
    assert training.saved == [training.rounds]
    assert service.ended(training.run)["state_name"] == "Cancelled"
    service.expect_tasks(training.run, train="Cancelled", monitor="Cancelled")
    assert service.logged(training.run, f"ended after round {training.rounds} of {ROUNDS}, with a checkpoint")
    assert service.logged(training.run, "train: stopped")
    assert "failed" not in service.logs(training.run) and "Traceback" not in service.logs(training.run)
    trained = training.retried()
    whole = service.start(base=service.flow_run(training.run)["parameters"]["base"], start_from="train")
    ended = service.ended(whole)
    assert ended["state_name"] == "Completed", ended["state"]["message"]
    assert "goes on from round" not in service.logs(whole)
    assert training.model_of(whole) == trained


def test_pause_takes_hold_in_the_middle_of_a_stage(service: ServiceClient, config: Path) -> None:
    """Bug: after Pause a training went on to its end, and Resume started a second process beside it. Pause, with what
    the UI's dialog posts, ends the run's processes with a checkpoint, and Resume goes on from it.
    """
    training = Training(service, config, 2e-3)
    training.pause()
    training.end_in_s(PAUSE_S)
    assert service.flow_run(training.run)["state_name"] == "Suspended"
    assert training.saved == [training.rounds] and training.rounds < ROUNDS
    before = training.rounds
    service.call("POST", f"/flow_runs/{training.run}/resume")
    training.finished(before)


def test_the_truth_after_kills(service: ServiceClient, config: Path) -> None:
    """A killed worker's run ends with a checkpoint and says Crashed, with its tasks; so does a run that was killed
    itself. The keeper starts another worker, and Retry goes on.
    """
    training = Training(service, config, 3e-3)
    training.kill("flows.service.worker")
    training.end_in_s(CANCEL_S)
    assert training.saved == [training.rounds]
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


def test_shutdowns_lose_no_round(service: ServiceClient, config: Path) -> None:
    """SIGTERM to the worker, SIGTERM to every process at once (the machine shuts down) and kill -9 of the keeper: each
    ends the run with a checkpoint of its last committed round, `up` tells the truth, and Retry goes on.

    Bug: Prefect's worker killed its runs when it was terminated, and lost their rounds.
    """
    training = Training(service, config, 5e-3)
    worker = training.terminate("flows.service.worker")
    training.end_in_s(CANCEL_S)
    assert training.saved == [training.rounds]
    service.until(lambda: {process.pid for process in training.find("flows.service.worker")} - {worker})
    assert service.ended(training.run)["state_name"] == "Crashed"
    for end in (training.terminate_all, lambda: os.kill(service.record.keeper, signal.SIGKILL)):
        training.goes_on()
        end()
        training.end_in_s(ORPHAN_S + CANCEL_S)
        assert training.saved[-1] == training.rounds < ROUNDS
        training.up()
        assert service.flow_run(training.run)["state_name"] == "Crashed"
        service.expect_tasks(training.run, train="Crashed", monitor="Crashed")
    training.retried()


def test_a_run_survives_its_server(service: ServiceClient, config: Path) -> None:
    """kill -9 of the server in the middle of a training: the keeper starts it again, and the run ends well."""
    training = Training(service, config, 4e-3)
    killed = training.kill("flows.service.http_server")
    service.until(lambda: {process.pid for process in training.find("flows.service.http_server")} - {killed})
    service.until(lambda: training.alive == [])
    assert service.ended(training.run)["state_name"] == "Completed"
