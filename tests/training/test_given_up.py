"""A device that was given up and comes back does no harm, and ends."""

import time
from pathlib import Path

import pytest

from fleetune.contracts.training_request import TrainingRequest
from fleetune.monitoring import EventLog
from fleetune.recovery.holdings import Attempt
from fleetune.training.device_watch import Said
from fleetune.training.worker_group import WorkerGroup
from tests.links.ends import PATIENCE_S
from tests.training.fake_workers import FakeLauncher, FakeWorker
from tests.training.model_families import BY_NAME, data_request, model_request
from tests.training.runs import plan, prepared, training_task

TRAINING = TrainingRequest(rounds=3, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3)


def test_a_device_that_comes_back_is_told_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine could not be asked when it was given up, so that it lives on; what it says counts for nothing."""
    ready = prepared(
        model_request(BY_NAME["bert"], dropout=False), data_request(BY_NAME["bert"], tmp_path), tmp_path / "bert"
    )
    launcher = FakeLauncher()
    task = training_task(ready, plan(ready.units, [1], [[8], [8]]), TRAINING, tmp_path, launcher=launcher)
    with EventLog(tmp_path / "events.jsonl") as events, WorkerGroup(task, None, events) as workers:
        with monkeypatch.context() as patched:
            patched.setattr(FakeWorker, "stop", lambda *_, **__: 0)
            workers.dismiss("d1")
        workers.begin_attempt(Attempt(1, 1), ["d0"])
        back = next(worker for worker in launcher.workers if worker.device == "d1")
        until_s = time.monotonic() + PATIENCE_S
        while back.poll() is None:
            assert time.monotonic() < until_s
            assert not [each for each in workers.receive() if isinstance(each, Said) and each.device == "d1"]
        assert workers.living == ("d0",)
