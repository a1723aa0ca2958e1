"""A round that is broken off, wherever it is, and run again leads to the same state bit by bit."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fleetune.contracts import json_io
from fleetune.contracts.plan import Lane, LinkUse, Plan, Segment, Share
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import TryAgain
from fleetune.launching import ProcessLauncher
from fleetune.monitoring import EventLog
from fleetune.recovery.holdings import INITIAL, LIVE, PREPARED, Attempt, Version
from fleetune.training.checkpoints import SAVE, savers_of, saving_folder
from fleetune.training.device_watch import FellSilent, HeardAgain, Said
from fleetune.training.exchange import FIRST_ATTEMPT
from fleetune.training.migration import Migration, parse_version
from fleetune.training.worker_group import WorkerGroup
from tests.support.training.losing_worker import LosingLauncher
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import Prepared, plan, prepared, training_task

ROUNDS, BROKEN = 3, 1
TRAINING = TrainingRequest(
    rounds=ROUNDS, batch_samples=24, micro_batch_samples=8, learning_rate=1e-2, optimizer="adamw"
)
PATIENCE_S = 120.0
BEGUN, FIRST, SECOND = Attempt(1, 1), Attempt(1, 2), Attempt(1, 3)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A tiny ResNet, full of batch norms."""
    folder = tmp_path_factory.mktemp("resnet")
    return prepared(model_request(BY_NAME["resnet"], dropout=False), data_request(BY_NAME["resnet"], folder), folder)


def chain(ready: Prepared) -> Plan:
    """One device with all batch norms, then a group of two, with error feedback on the links from the first."""
    made = plan(ready.units, [ready.units.index("resnet.pooler")], [[8], [4, 4]])
    uses = tuple(LinkUse(source="d0", target=target, codec="int8", feedback=True) for target in ("d1", "d2"))
    return replace(made, links=uses)


class Conversation:
    """A coordinator without a conductor: a test says what is to happen."""

    def __init__(self, workers: WorkerGroup, made: Plan) -> None:
        self._workers, self._plan, self._heard = workers, made, list[Said]()
        self.attempt = FIRST_ATTEMPT

    def gather(self, kind: str, devices: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
        """Return the header of one message of this kind from each device; by default from all."""
        found: dict[str, dict[str, Any]] = {}
        until_s = time.monotonic() + PATIENCE_S
        while not found.keys() >= set(devices or self._plan.devices):
            assert time.monotonic() < until_s, f"{kind} of {sorted(found)} only"
            for said in [said for said in self._heard if said.kind == kind and said.device not in found]:
                found[said.device] = said.header
                self._heard.remove(said)
            if not found.keys() >= set(devices or self._plan.devices):
                for each in self._workers.receive():
                    if isinstance(each, FellSilent | HeardAgain):
                        continue  # a busy machine; nobody asks
                    assert isinstance(each, Said), each
                    self._heard.append(each)
        return found

    def abort(self, attempt: Attempt) -> list[list[str]]:
        """Begin an attempt; return the forms of what each device holds of the running round."""
        self.attempt = attempt
        self._heard = [said for said in self._heard if tuple(said.header["attempt"]) >= attempt]
        self._workers.begin_attempt(attempt, self._plan.devices)
        said = self.gather("aborted")
        return [[each["form"] for each in said[device]["holdings"]] for device in sorted(said)]

    def move(self, version: Version, commit: dict[str, Any] | None = None) -> None:
        """Let all devices come to a version, of which nothing moves."""
        order = Migration(plan=self._plan, version=version, commit=commit)
        self._say("move", order=json_io.dump(order))
        self.gather("moved")
        self._say("drop_old", version={"rounds": version.rounds, "attempt": version.attempt})

    def start(self, round: int) -> None:
        """Start a round."""
        self._say("start", round=round)

    def commit_of(self, round: int, attempt: Attempt) -> dict[str, Any]:
        """Return the commit of a round; the last one has a checkpoint."""
        last = round + 1 == ROUNDS
        scales = dict.fromkeys(("main", "one", "two"), 1.0)
        told = {"checkpoint": last, "backup": False, "starts_next": not last, "kept": [ROUNDS]}
        return {"round": round, "attempt": attempt, "scales": scales, "moves": {}, **told}

    def commit(self, round: int) -> None:
        """Commit a round that this attempt has prepared."""
        self._workers.send(self._plan.devices, "commit", self.commit_of(round, self.attempt))

    def _say(self, kind: str, **content: Any) -> None:
        self._workers.send(self._plan.devices, kind, {"attempt": self.attempt, **content})


Broken = Callable[[Conversation], None]
"""Breaks round BROKEN off, and leads to where the `ready` of it, or of the round after it, comes."""


def driven(ready: Prepared, folder: Path, broken: Broken | None, loses: str = "") -> dict[str, torch.Tensor]:
    """Run all rounds; return every tensor of the last state, by file and name.

    loses: kind of the messages that are lost in round BROKEN before it is broken off.
    """
    launcher = LosingLauncher(loses, BROKEN, folder / "lost") if loses else ProcessLauncher()
    task = training_task(ready, chain(ready), TRAINING, folder, launcher=launcher)
    with EventLog(folder / "events.jsonl") as events, WorkerGroup(task, None, events) as workers:
        said, round = begun(workers, chain(ready)), 0
        while round < ROUNDS:
            if round == BROKEN and broken is not None:
                if loses:
                    wait_for(folder / "lost")
                broken(said)
                broken = None
            reported = said.gather("ready")
            (round,) = {header["round"] for header in reported.values()}
            said.commit(round)
            round += 1
        said.gather("saved", savers_of(chain(ready)))
    files = sorted(task.work.glob(f"{saving_folder(Path(), '*', ROUNDS)}/*.safetensors"))
    return {f"{path.name} {name}": tensor for path in files for name, tensor in load_file(path).items()}


def begun(workers: WorkerGroup, made: Plan) -> Conversation:
    """Return the conversation in which round 0 runs."""
    said = Conversation(workers, made)
    assert said.abort(BEGUN) == [[]] * len(made.devices), "nothing is loaded before it is known what"
    said.move(INITIAL)
    said.start(0)
    return said


def wait_for(mark: Path) -> None:
    """Wait until a worker has lost a message."""
    until_s = time.monotonic() + PATIENCE_S
    while not mark.exists():
        assert time.monotonic() < until_s, "no message was lost"
        time.sleep(0.01)


HELD = Version(BROKEN, BEGUN)


def in_the_middle(said: Conversation) -> None:
    """Break the round off while devices wait for each other, and run it again; others may have prepared it."""
    assert [LIVE] in said.abort(SECOND)
    said.move(HELD)
    said.start(BROKEN)


def reported_by_one(said: Conversation) -> None:
    """Break the round off once the device that takes no part in the all-reduce has reported it; run it again.

    Bug: that report was taken for the one of the second attempt, and the round committed before it was prepared.
    """
    said.gather("ready", ("d0",))
    in_the_middle(said)


def prepared_twice(said: Conversation) -> None:
    """Break the round off once all have prepared it, and once more before it begins again."""
    said.gather("ready")
    for attempt in (FIRST, SECOND):
        assert said.abort(attempt) == [[LIVE, PREPARED]] * 3
    said.move(HELD)
    said.start(BROKEN)


def prepared_and_committed(said: Conversation) -> None:
    """Break the round off once all have prepared it, and commit it after all, as it is in the log."""
    said.gather("ready")
    said.abort(SECOND)
    said.move(Version(BROKEN + 1, BEGUN), said.commit_of(BROKEN, BEGUN))
    said.start(BROKEN + 1)


@pytest.fixture(scope="module")
def whole(ready: Prepared, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The state after all rounds, none of them broken off."""
    found = driven(ready, tmp_path_factory.mktemp("whole"), None)
    assert any("running_var" in name for name in found) and any("exp_avg" in name for name in found)
    assert any("feedback" in name for name in found), sorted(found)
    return found


@pytest.mark.parametrize(
    ("broken", "loses"),
    [
        (in_the_middle, "values-F"),
        (in_the_middle, "values-B"),
        (in_the_middle, "ring"),
        (reported_by_one, "ring"),
        (prepared_twice, ""),
        (prepared_and_committed, ""),
    ],
    ids=["forward", "backward", "all-reduce", "reported by one", "prepared", "rolled forward"],
)
def test_a_round_that_is_broken_off_and_run_again_changes_nothing(
    broken: Broken, loses: str, ready: Prepared, whole: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Parameters, moments, batch statistics and residuals are bit by bit those of a training without the abort.

    Three workers: one device, and a group of two that reduces its gradients, with error feedback on the links.
    """
    found = driven(ready, tmp_path, broken, loses)
    assert found.keys() == whole.keys()
    assert [name for name in whole if not torch.equal(found[name], whole[name])] == []


def test_a_state_is_saved_in_an_attempt_after_its_own(ready: Prepared, tmp_path: Path) -> None:
    """Bug: what devices said of it had the attempt that committed the state, and was dropped as old: a stop in the
    first round after any recovery, and a loss in the last checkpoint, waited until nobody answered."""
    task = training_task(ready, chain(ready), TRAINING, tmp_path)
    with EventLog(tmp_path / "events.jsonl") as events, WorkerGroup(task, None, events) as workers:
        said = begun(workers, chain(ready))
        said.gather("ready")
        said.commit(0)
        said.gather("ready")
        said.abort(SECOND)
        said.move(HELD)
        workers.send(("d0", "d1"), SAVE, {"attempt": SECOND, "round": 1})
        saved = said.gather("saved", ("d0", "d1"))
        assert {parse_version(header["version"]) for header in saved.values()} == {HELD}


def test_a_device_that_is_told_to_begin_another_round_says_what_it_holds(ready: Prepared, tmp_path: Path) -> None:
    """A worker that has one round done does not run round 2 on it: the error names both."""

    def too_far(said: Conversation) -> None:
        said.abort(SECOND)
        said.move(HELD)
        said.start(BROKEN + 1)

    with pytest.raises(TryAgain, match="was told to begin round 2 with 1 rounds done"):
        driven(ready, tmp_path, too_far)


def test_an_average_that_is_broken_off_leaves_no_version(ready: Prepared, tmp_path: Path) -> None:
    """Between a step and the end of the average that follows it, a lane holds neither the old version nor the new one.

    The devices do not go back to it: they say that they hold nothing, and begin again by what is on disk.
    """
    lanes = tuple(
        Lane(name=name, segments=(Segment(units=ready.units, shares=(Share(device=device, samples=8),), warmup=1),))
        for name, device in (("one", "d0"), ("two", "d1"))
    )
    made = replace(chain(ready), lanes=lanes, links=(), average_every_rounds=1)
    task = training_task(ready, made, TRAINING, tmp_path, launcher=LosingLauncher("push-A", 0, tmp_path / "lost"))
    with EventLog(tmp_path / "events.jsonl") as events, WorkerGroup(task, None, events) as workers:
        said = begun(workers, made)
        said.gather("ready")
        said.commit(0)
        wait_for(tmp_path / "lost")
        assert [LIVE] not in said.abort(SECOND), "what is neither the old state nor the new one is no version"
        said.move(INITIAL)
        said.start(0)
        assert {header["round"] for header in said.gather("ready").values()} == {0}
