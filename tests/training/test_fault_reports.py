"""Errors of the coordinator when a training cannot go on: they name the cause, and never an innocent device."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.links.message import Message
from fleetune.monitoring import follow
from fleetune.training.exchange import TransferKey
from fleetune.training.task import COORDINATOR
from tests.support.training.fake_workers import FakeLauncher, FakeWorker, WorkerScript
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import Prepared, plan, prepared, run_plan

TRAINING = TrainingRequest(rounds=3, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3)
VALUES = {
    "round": 0,
    "lane": "main",
    "segment": 1,
    "step": 9,
    "tensors": [],
    "sent_s": 0.0,
    "attempt": [1, 1],
}


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A tiny model, whose description the coordinator reads."""
    folder = tmp_path_factory.mktemp("bert")
    return prepared(model_request(BY_NAME["bert"], dropout=False), data_request(BY_NAME["bert"], folder), folder)


Failure = Callable[..., FleetuneError]


@pytest.fixture
def failure_of(ready: Prepared, tmp_path: Path) -> Failure:
    """Returns the error that ends a training of three devices with these scripts."""

    def failure(**scripts: WorkerScript) -> FleetuneError:
        with pytest.raises(FleetuneError) as caught:
            three = plan(ready.units, [1, 2], [[8], [8], [8]])
            run_plan(ready, three, TRAINING, tmp_path, launcher=FakeLauncher(**scripts))
        return caught.value

    return failure


def failures(folder: Path) -> tuple[str, ...]:
    """Return the failures in the event log."""
    return follow(folder / "work" / "events.jsonl", lambda *_: None, alive=lambda: False).failures


def waits_for(peer: str) -> WorkerScript:
    """Return a script that waits for values from a peer."""

    def waits(worker: FakeWorker) -> None:
        worker.exchange.receive(TransferKey("values", 0, "main", 1, 0, peer))

    return waits


def test_a_message_lost_between_two_devices_is_attributed_to_their_link(failure_of: Failure, tmp_path: Path) -> None:
    """Bug: the run hung for 120 s and blamed d0, which only waited. The next beat reports the gap, and the round is run
    again; a link that goes on losing messages costs the device behind it.
    """

    def loses(worker: FakeWorker) -> None:
        worker.skip("d2")
        worker.endpoint.send("d2", Message("values", VALUES | {"attempt": worker.exchange.attempt}))
        worker.wait_for_stop()

    error = failure_of(d0=waits_for("d1"), d1=loses, d2=waits_for("d1"))
    why = "link d1>d2: 1 message was lost when the connection broke"
    assert isinstance(error, TryAgain) and str(error).startswith(why), str(error)
    found = follow(tmp_path / "work" / "events.jsonl", lambda *_: None, alive=lambda: False)
    assert [each.split("s: ", 1)[1] for each in found.recoveries[:2]] == [
        why,
        "goes on from round 0 on d0, d1, d2: the initial weights are read",
    ]
    assert not [each for each in found.failures if "device d0" in each or "device d1" in each]


def test_a_message_lost_on_its_way_to_the_coordinator_is_attributed_to_that_link(failure_of: Failure) -> None:
    """The error names the link, and the device only as one end of it."""

    def loses(worker: FakeWorker) -> None:
        worker.skip(COORDINATOR)
        worker.wait_for_stop()

    error = failure_of(d1=loses)
    assert str(error).startswith("link d1>coordinator: 1 message was lost when the connection broke"), str(error)


def test_a_device_that_ends_is_named_before_those_that_wait_for_it(failure_of: Failure, tmp_path: Path) -> None:
    """Devices that wait for it, and the connections that broke with it, are not named."""
    error = failure_of(d0=waits_for("d1"), d1=lambda worker: None, d2=waits_for("d1"))
    assert str(error).startswith("device d1 ended normally; run again")
    assert "device d1 was lost" in failures(tmp_path)[0]


@pytest.mark.parametrize(("filled", "told"), [(0.99, True), (0.4, False)])
def test_a_full_memory_is_told_of_a_silent_device(filled: float, told: bool, failure_of: Failure) -> None:
    """Short of memory by little, a container is not killed by the kernel but reads its own code again and again: it had
    been lost as silent, and nothing led to its memory.
    """

    def falls_silent(worker: FakeWorker) -> None:
        worker.filled = filled
        worker.fall_silent()

    error = failure_of(d0=waits_for("d1"), d1=falls_silent, d2=waits_for("d1"))
    assert str(error).startswith("device d1 is silent for")
    assert (", with 99% of its memory in use" in str(error)) == told == ("memory in use" in str(error)), str(error)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message("beat", {"progress": "x"}), "device d1 sent a beat that cannot be read"),
        (Message("moved", {"attempt": "7"}), "device d1 sent a 'moved' that cannot be read"),
        (Message("saved", {"attempt": [1]}), "device d1 sent a 'saved' that cannot be read"),
        (Message("gossip", {}), "device d1 sent 'gossip', which is not a message of workers"),
        (Message("ready", {"round": 0}, (b"[7]",)), "device d1 reports a round in rows that cannot be read"),
        (Message("failed", {"exit_code": "x"}), "device d1 failed: None"),
    ],
    ids=lambda each: each.kind if isinstance(each, Message) else "",
)
def test_the_sender_of_a_malformed_message_is_named(message: Message, words: str, failure_of: Failure) -> None:
    """Bug: a malformed message ended the coordinator with an error of Python's own."""

    def says(worker: FakeWorker) -> None:
        worker.endpoint.send(COORDINATOR, message)
        worker.wait_for_stop()

    assert words in str(failure_of(d1=says))


def test_beats_are_answered_and_the_coordinator_announces_that_it_is_alive(failure_of: Failure, tmp_path: Path) -> None:
    """Both tell a worker that the coordinator lives, and the answers give it the coordinator's clock."""

    def looks(worker: FakeWorker) -> None:
        while not worker.exchange.offset_s:
            worker.exchange.receive_next()
            worker.exchange.start_round(0)
        heard = worker.endpoint.last_arrival_s(COORDINATOR) is not None
        why = f"offset {abs(worker.exchange.offset_s) < 60.0}, heard {heard}"
        worker.exchange.send_control("failed", {"why": why, "exit_code": Refused.exit_code})
        worker.wait_for_stop()

    error = failure_of(d2=looks)
    assert isinstance(error, Refused) and "device d2 failed: offset True, heard True" in str(error)
