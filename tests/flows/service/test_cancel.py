"""Cancel, Retry, Pause, Resume and kills in the middle of a training, as people do them with the real service."""

import datetime
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from fleetune.filesystem import file_digest
from tests.flows.service.client import ServiceClient

pytestmark = pytest.mark.slow

ROUNDS, CANCEL_S, PAUSE_S = 60, 10.0, 10.0
"""Rounds of each training; and seconds within which all processes of a run have ended."""
SAMPLE_S = 0.02
"""Processor time of a computation that shows how busy the machine is."""
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


class Training:
    """A flow run in the middle of its training, with the processes that it consists of."""

    def __init__(self, service: ServiceClient, config: Path, learning_rate: float) -> None:
        """Start it and wait for some rounds; the learning rate makes it a training of its own."""
        self.service = service
        before = set((service.root / "work").glob("*"))
        self.run = service.start(base=str(config), changes=[f"training.learning_rate={learning_rate}"])
        self.work: Path = service.until(
            lambda: next((w for w in set((service.root / "work").glob("*")) - before if self._rounds(w) > 4), None)
        )
        self.processes = [
            process for name in ("flow_process", "stages.", "training.worker") for process in self._of(name)
        ]
        assert len(self.processes) >= 5

    @property
    def rounds(self) -> int:
        """The number of committed rounds."""
        return self._rounds(self.work)

    @property
    def saved(self) -> list[int]:
        """The rounds of its complete checkpoints."""
        return [int(mark.parent.name.removeprefix("round-")) for mark in self.work.glob("checkpoints/*/round.json")]

    @property
    def alive(self) -> list[psutil.Process]:
        """Its processes that have not ended."""
        return psutil.wait_procs(self.processes, timeout=0)[1]

    def kill(self, name: str) -> int:
        """kill -9 of the service's process whose command line holds `name`; its process id."""
        found = self._of(name)
        (process,) = [one for one in found if one.ppid() not in [other.pid for other in found]]  # no child before exec
        os.kill(process.pid, signal.SIGKILL)
        return process.pid

    def end_in_s(self, limit_s: float) -> None:
        """Wait until every process has ended, and check the seconds that it took.

        Where other programs take their share of the processor, the limit is as much longer as they make a computation.
        """
        began_s, computed_s, wall_s = time.monotonic(), 0.0, 0.0
        while self.alive:
            at_s, cpu_s = time.monotonic(), time.thread_time()
            while time.thread_time() - cpu_s < SAMPLE_S:
                pass
            computed_s, wall_s = computed_s + SAMPLE_S, wall_s + time.monotonic() - at_s
            took_s, slowness = time.monotonic() - began_s, max(1.0, wall_s / computed_s)
            assert took_s < limit_s * slowness, f"{self.alive} after {took_s:.1f} s, {slowness:.1f} times slower"
            psutil.wait_procs(self.processes, timeout=10 * SAMPLE_S)

    def retried(self) -> str:
        """Retry as the UI does, and wait for the end; the digest of the trained model."""
        before = self.rounds if self.work.exists() else 0
        self.service.set_state(self.run, "SCHEDULED", "AwaitingRetry")
        return self.finished(before)

    def finished(self, before: int) -> str:
        """Wait for the end of the run, whose training has resumed after `before` rounds; its model's digest."""
        assert self.service.ended(self.run)["state_name"] == "Completed"
        assert self.service.logged(self.run, f"goes on from round {before} of {ROUNDS}")
        return self.model_of(self.run)

    def model_of(self, flow_run: str) -> str:
        """Digest of the weights that a flow run has trained."""
        run = self.service.flow_run(flow_run)["parameters"]["base"]
        stages = json.loads((self.service.root / "runs" / run / "run.json").read_text())["stages"]
        digest = next(stage["outputs"]["checkpoint"] for stage in stages if stage["stage"] == "train")
        return file_digest(self.service.root / "artifacts" / "checkpoint" / digest / "model" / "model.safetensors")

    def _of(self, name: str) -> list[psutil.Process]:
        keeper = psutil.Process(self.service.record.keeper)
        return [process for process in keeper.children(recursive=True) if name in _command(process)]

    @staticmethod
    def _rounds(work: Path) -> int:
        log = work / "commits.jsonl"
        return len(log.read_text().splitlines()) if log.exists() else 0


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


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
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=300)
    details = {"pause_timeout": until.isoformat(), "pause_reschedule": True}
    state = {"type": "PAUSED", "name": "Suspended", "state_details": details}
    service.call("POST", f"/flow_runs/{training.run}/set_state", {"state": state, "force": True})
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
    training.kill("prefect worker start")
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


def test_a_run_survives_its_server(service: ServiceClient, config: Path) -> None:
    """kill -9 of the server in the middle of a training: the keeper starts it again, and the run ends well."""
    training = Training(service, config, 4e-3)
    killed = training.kill("flows.service.http_server")
    service.until(lambda: {process.pid for process in training._of("flows.service.http_server")} - {killed})
    service.until(lambda: training.alive == [])
    assert service.ended(training.run)["state_name"] == "Completed"
