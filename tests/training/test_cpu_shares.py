"""Workers are held to their devices' CPU shares once they have loaded."""

import time
from pathlib import Path

from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import TryAgain
from fleetune.monitoring import EventLog
from fleetune.training.device_watch import Said
from fleetune.training.worker_group import WorkerGroup
from tests.support.links.ends import PATIENCE_S, until
from tests.support.training.fake_workers import FakeLauncher, FakeWorker
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import plan, prepared, training_task

TRAINING = TrainingRequest(rounds=3, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3)


class Shares:
    """The devices whose engines are asked to hold them to their shares; `away` cannot be asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away = set[str]()

    def limit(self, worker: FakeWorker) -> None:
        """Ask for one."""
        self.asked.append(worker.device)
        if worker.device in self.away:
            raise TryAgain("its engine does not answer")

    def taken(self) -> list[str]:
        """Return who was asked for since the last call."""
        asked, self.asked = self.asked, []
        return asked


def come_back(workers: WorkerGroup, launcher: FakeLauncher, device: str) -> None:
    """Lose a device's worker and wait until the next one says hello."""
    lost = next(worker for worker in launcher.workers if worker.device == device)
    lost.out_of_reach = True  # the coordinator's word ends it
    workers.dismiss(device)
    until_s = time.monotonic() + PATIENCE_S
    while lost.poll() is None:
        assert time.monotonic() < until_s
        workers.receive()
    workers.start_again(device)
    while not any(isinstance(each, Said) and each.kind == "hello" for each in workers.receive()):
        assert time.monotonic() < until_s


def test_only_a_device_that_came_is_held_to_its_share(tmp_path: Path) -> None:
    """Bug: after each return of any device all engines were asked again, and one that could not be asked ended the
    training of all devices. It is noted now, and tried again with the next round that is started.
    """
    ready = prepared(
        model_request(BY_NAME["bert"], dropout=False), data_request(BY_NAME["bert"], tmp_path), tmp_path / "bert"
    )
    launcher, shares, said = FakeLauncher(), Shares(), list[str]()
    launcher.on_limit = shares.limit
    made = plan(ready.units, [1], [[8], [8]])
    task = training_task(ready, made, TRAINING, tmp_path, launcher=launcher, note=said.append)
    with EventLog(tmp_path / "events.jsonl") as events, WorkerGroup(task, None, events) as workers:
        shares.away = {"d1"}
        workers.limit_cpu()
        assert shares.taken() == ["d0", "d1"]
        assert said == ["device d1 may compute faster than its share: its engine does not answer"]
        shares.away = set()
        workers.limit_cpu()
        workers.limit_cpu()
        assert shares.taken() == ["d1"]
        come_back(workers, launcher, "d0")
        workers.limit_cpu()
        assert shares.taken() == ["d0"]
        until(lambda: launcher.workers[-1].welcomed)  # so that the coordinator's word reaches it
