"""A device that was given up and comes back does no harm, and ends."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import TryAgain
from fleetune.links.message import Received
from fleetune.monitoring import EventLog
from fleetune.recovery.holdings import Attempt
from fleetune.training.device_watch import Found, Lost, Said
from fleetune.training.worker_group import WorkerGroup
from tests.support.links.ends import PATIENCE_S
from tests.support.training.fake_workers import FakeLauncher
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import plan, prepared, training_task

TRAINING = TrainingRequest(rounds=3, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3)


@contextmanager
def begun(folder: Path, launcher: FakeLauncher) -> Iterator[WorkerGroup]:
    """The workers of two devices, which have just started."""
    ready = prepared(
        model_request(BY_NAME["bert"], dropout=False), data_request(BY_NAME["bert"], folder), folder / "bert"
    )
    task = training_task(ready, plan(ready.units, [1], [[8], [8]]), TRAINING, folder, launcher=launcher)
    with EventLog(folder / "events.jsonl") as events, WorkerGroup(task, None, events) as workers:
        yield workers


def dismissed_out_of_reach(workers: WorkerGroup, launcher: FakeLauncher, device: str) -> None:
    """Give up a device whose engine cannot be asked, so that its worker lives on."""
    given_up = next(worker for worker in launcher.workers if worker.device == device)
    given_up.out_of_reach = True
    workers.dismiss(device)
    given_up.out_of_reach = False


def test_a_device_that_comes_back_is_told_to_end(tmp_path: Path) -> None:
    """Its engine could not be asked when it was given up, so that it lives on; what it says counts for nothing."""
    launcher = FakeLauncher()
    with begun(tmp_path, launcher) as workers:
        dismissed_out_of_reach(workers, launcher, "d1")
        workers.begin_attempt(Attempt(1, 1), ["d0"])
        back = next(worker for worker in launcher.workers if worker.device == "d1")
        until_s = time.monotonic() + PATIENCE_S
        while back.poll() is None:
            assert time.monotonic() < until_s
            assert not [each for each in workers.receive() if isinstance(each, Said) and each.device == "d1"]
        assert workers.living == ("d0",)


def test_a_beat_after_a_start_that_failed_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a device that slept was given up and started again in vain; when it woke, its old worker's beat was answered
    over a connection that was gone, and the training ended."""
    launcher = FakeLauncher()
    with begun(tmp_path, launcher) as workers:
        dismissed_out_of_reach(workers, launcher, "d1")
        workers._endpoint.disconnect("d1")  # private: as a start does that fails before its job is there
        # private: a beat that is ignored shows nowhere else
        monkeypatch.setattr(workers, "_handle", counting := Counted(workers._handle))
        until_s = time.monotonic() + PATIENCE_S
        while counting.beats_of_d1 < 3:
            assert time.monotonic() < until_s
            assert not [each for each in workers.receive() if isinstance(each, Said) and each.device == "d1"]
        assert workers.living == ("d0",)


class Counted:
    """Handles what was received, and counts the beats of d1."""

    def __init__(self, handle: Callable[[Received], None]) -> None:
        self._handle, self.beats_of_d1 = handle, 0

    def __call__(self, received: Received) -> None:
        self.beats_of_d1 += received.sender == "d1" and received.message.kind == "beat"
        self._handle(received)


def test_a_device_that_fails_before_a_plan_uses_it_is_lost_and_no_more(tmp_path: Path) -> None:
    """Bug: a spare or returned device that could not load ended a training that did not need it."""
    launcher = FakeLauncher()
    with begun(tmp_path, launcher) as workers:
        until_s, found = time.monotonic() + PATIENCE_S, list[Found]()
        ended = next(worker for worker in launcher.workers if worker.device == "d1")
        workers.dismiss("d1")
        while ended.poll() is None:
            assert time.monotonic() < until_s
            workers.receive()
        workers.start_again("d1")
        while not any(isinstance(each, Said) and each.kind == "loaded" for each in found):
            assert time.monotonic() < until_s
            found += workers.receive()
        back = launcher.workers[-1]
        back.exchange.send_control("failed", {"why": "an error of its GPU", "exit_code": TryAgain.exit_code})
        while not any(isinstance(each, Lost) for each in found):
            assert time.monotonic() < until_s
            found += workers.receive()
        (lost,) = [each for each in found if isinstance(each, Lost)]
        assert (lost.device, lost.why) == ("d1", "failed: an error of its GPU")
        back.exchange.send_control("moved", {"attempt": Attempt(1, 9)})
        back.exchange.send_control("failed", {"why": "as before", "exit_code": TryAgain.exit_code})
        with pytest.raises(TryAgain, match="device d1 failed: as before"):
            while time.monotonic() < until_s:
                workers.receive()
