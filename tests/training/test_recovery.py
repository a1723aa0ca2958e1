"""A training that loses a device or its coordinator resumes from the newest checkpoint with the same result."""

import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from fleetune.contracts.metrics import TrainingMetrics
from fleetune.contracts.plan import Plan
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import FleetuneError, TryAgain
from fleetune.launching import Command, Job
from fleetune.training.checkpoints import newest_complete
from fleetune.training.commit_log import read_commits
from tests.support.training.ends import assert_same_bits
from tests.support.training.listeners import killing
from tests.support.training.recording import Recording
from tests.support.training.runs import Prepared, plan, run_plan

TRAINING = TrainingRequest(
    rounds=9, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3, schedule="cosine", checkpoint_every_rounds=3
)


class Trained(NamedTuple):
    """A whole training on one device."""

    folder: Path
    metrics: TrainingMetrics


@pytest.fixture(scope="module")
def whole(bert: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A training on one device that nothing befalls; of a chain of segments it has every bit."""
    folder = tmp_path_factory.mktemp("whole")
    return Trained(folder, run_plan(bert, plan(bert.units, [], [[8]]), TRAINING, folder))


def killed(bert: Prepared, made: Plan, folder: Path) -> Path:
    """A training whose first device was killed after round 8, with checkpoints of rounds 3 and 6."""
    launcher = Recording()
    with pytest.raises(TryAgain):
        run_plan(bert, made, TRAINING, folder, launcher=launcher, progress=killing(launcher, 8, 0))
    return folder


@pytest.fixture(scope="module")
def killed_single(bert: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that was killed on its only device; tests go on in a copy."""
    return killed(bert, plan(bert.units, [], [[8]]), tmp_path_factory.mktemp("killed"))


@pytest.fixture(scope="module")
def killed_two(bert: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that was killed on two segments; tests go on in a copy."""
    return killed(bert, plan(bert.units, [2], [[8], [8]]), tmp_path_factory.mktemp("killed"))


def test_a_killed_device_is_named_and_the_next_run_ends_with_the_same_weights(
    bert: Prepared, whole: Trained, tmp_path: Path
) -> None:
    """kill -9 of one worker after round 5 exits with 75 and its name; resumed from 3, the weights agree bitwise."""
    made = plan(bert.units, [3], [[8], [8]])
    launcher = Recording()
    with pytest.raises(TryAgain, match=r"device d1 .*killed by signal 9") as caught:
        run_plan(bert, made, TRAINING, tmp_path / "cut", launcher=launcher, progress=killing(launcher, 5, 1))
    assert caught.value.exit_code == 75
    assert all(job.poll() is not None for job in launcher.jobs)
    said: list[str] = []
    metrics = run_plan(bert, made, TRAINING, tmp_path / "cut", note=said.append)
    assert metrics.resumed_from_round == 3
    assert said == ["goes on from round 3 of 9, by an earlier attempt's checkpoint"]
    assert [r.round for r in metrics.rounds] == list(range(9))
    assert_same_bits(whole.folder, tmp_path / "cut")


def test_a_frozen_device_is_named_and_not_one_that_waits_for_it(bert: Prepared, tmp_path: Path) -> None:
    """Bug: the first device of the list was blamed, after 120 s. SIGSTOP of the second of three names the second."""
    launcher = Recording()
    three = plan(bert.units, [1, 3], [[8], [8], [8]])
    silent = (
        r"^device d1 is silent for [\d.]+ s and gave no sign of life when asked(; so is [^;]*)?; run again to go on"
    )
    with pytest.raises(TryAgain, match=silent) as caught:
        frozen = killing(launcher, 5, 1, number=signal.SIGSTOP)
        run_plan(bert, three, TRAINING, tmp_path / "cut", launcher=launcher, progress=frozen)
    assert caught.value.exit_code == 75
    assert all(job.poll() is not None for job in launcher.jobs)
    assert run_plan(bert, three, TRAINING, tmp_path / "cut").resumed_from_round == 3


def test_a_checkpoint_resumes_on_another_plan(bert: Prepared, whole: Trained, killed_two: Path, tmp_path: Path) -> None:
    """Begun on two segments and ended on one device, the weights agree bitwise, since state is saved by name."""
    single = plan(bert.units, [], [[8]])
    shutil.copytree(killed_two, tmp_path / "cut")
    metrics = run_plan(bert, single, TRAINING, tmp_path / "cut")
    assert metrics.resumed_from_round == 6
    assert_same_bits(whole.folder, tmp_path / "cut")


def test_the_checkpoint_of_another_plan_is_adopted(
    bert: Prepared, whole: Trained, killed_two: Path, tmp_path: Path
) -> None:
    """Bug: a fleet that was measured anew was planned anew and began at round 0.

    The newest checkpoint of the other plan's attempt is copied, the weights agree bitwise, and the metrics tell the
    plans apart.
    """
    single = plan(bert.units, [], [[8]])
    shutil.copytree(killed_two, tmp_path / "cut")
    said: list[str] = []
    before = tmp_path / "cut" / "work"
    metrics = run_plan(
        bert, single, TRAINING, tmp_path / "new", earlier=(tmp_path / "none", before), resumed=said.append
    )
    assert said == ["goes on from round 6 of 9, by another plan's checkpoint"]
    assert (metrics.resumed_from_round, metrics.plan_from_round) == (6, 6)
    assert [r.round for r in metrics.rounds] == list(range(9))
    assert metrics.median_round_s == sorted(r.round_s for r in metrics.rounds[6:])[1]
    assert_same_bits(whole.folder, tmp_path / "new")
    assert newest_complete(before, said.append) is not None and len(said) == 1, "nothing of it was changed"
    events = (tmp_path / "new" / "output" / "metrics" / "events.jsonl").read_text()
    assert events.count('"started"') == 2 and events.count('"lost"') == 1 and events.count('"ended"') == 1


def test_rounds_before_a_new_measurement_of_the_links_stay_out_of_the_median(
    bert: Prepared, whole: Trained, killed_two: Path, tmp_path: Path
) -> None:
    """Bug: a training that was killed, and resumed under the same stage key after the links had been measured anew,
    compared the new forecast with the median over the rounds of both fleets, without a note.
    """
    two = plan(bert.units, [2], [[8], [8]])
    shutil.copytree(killed_two, tmp_path / "cut")
    said: list[str] = []
    metrics = run_plan(bert, two, TRAINING, tmp_path / "cut", latency_s=2e-4, note=said.append)
    assert said == ["goes on from round 6 of 9, by an earlier attempt's checkpoint"], "the plan is the same"
    assert (metrics.resumed_from_round, metrics.plan_from_round) == (6, 6)
    assert metrics.median_round_s == sorted(r.round_s for r in metrics.rounds[6:])[1]
    assert_same_bits(whole.folder, tmp_path / "cut")


@pytest.mark.parametrize("log", [None, b"", bytes(300), b"\n"], ids=["missing", "emptied", "zeroed", "a line"])
def test_a_lost_log_and_a_damaged_shard_lose_neither_weights_nor_metrics(
    log: bytes | None, bert: Prepared, whole: Trained, killed_single: Path, tmp_path: Path
) -> None:
    """Bug: training went on with one flipped bit, and a lost commit log ended in an IndexError after all training.

    Both are reported before the first round, and the next attempt ends like an uninterrupted one.
    """
    single = plan(bert.units, [], [[8]])
    shutil.copytree(killed_single, tmp_path / "cut")
    work = tmp_path / "cut" / "work"
    shard = work / "checkpoints" / "round-000006" / "segment-0.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1000] ^= 4
    shard.write_bytes(content)
    (work / "commits.jsonl").unlink()
    if log is not None:
        (work / "commits.jsonl").write_bytes(log)
    said: list[str] = []
    metrics = run_plan(bert, single, TRAINING, tmp_path / "cut", note=said.append)
    assert said == [
        f"the checkpoint of round 6 is not used ({shard} is damaged: its content differs from what was written)",
        "goes on from round 3 of 9, by an earlier attempt's checkpoint",
        f"{work / 'commits.jsonl'} has lost some of 3 rounds: they are taken from the checkpoint",
    ]
    assert metrics.resumed_from_round == 3 and [r.round for r in metrics.rounds] == list(range(9))
    assert_same_bits(whole.folder, tmp_path / "cut")


def test_an_attempt_that_has_all_rounds_writes_all_metrics(bert: Prepared, whole: Trained, tmp_path: Path) -> None:
    """Killed between the last checkpoint and its artifacts, with the log lost too, nothing is trained twice, and the
    metrics are those of the checkpoint.
    """
    single = plan(bert.units, [], [[8]])
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "work" / "commits.jsonl").write_bytes(b"")
    said: list[str] = []
    again = run_plan(bert, single, TRAINING, tmp_path, note=said.append)
    assert said[0] == "all rounds are done, by an earlier attempt's checkpoint"
    assert again.rounds == whole.metrics.rounds and again.resumed_from_round == 9 and again.timeline == ()


def test_a_round_is_in_the_log_only_when_every_device_reported_it(bert: Prepared, tmp_path: Path) -> None:
    """After a device is lost the log holds exactly the rounds that were reported as committed."""
    launcher = Recording()
    told: list[float] = []

    def listen(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        told.append(done)
        killing(launcher, 4, 1)(what, done, total, unit)

    with pytest.raises(TryAgain):
        run_plan(bert, plan(bert.units, [2], [[3, 5], [8]]), TRAINING, tmp_path, launcher=launcher, progress=listen)
    rounds = [r.round for r in read_commits(tmp_path / "work" / "commits.jsonl")]
    assert len(rounds) == len(told) == 4


def test_a_workers_error_reaches_the_coordinator_in_a_sentence(bert: Prepared, tmp_path: Path) -> None:
    """A worker's error reaches the coordinator as a sentence with the device's name and its log's path, not as a
    traceback.
    """
    model = shutil.copytree(bert.folders.model, tmp_path / "model")
    (model / "start.safetensors").write_bytes(b"not safetensors")
    ready = replace(bert, folders=replace(bert.folders, model=model))
    with pytest.raises(FleetuneError, match=r"device d0 failed: .*start\.safetensors: not a readable") as caught:
        run_plan(ready, plan(ready.units, [], [[8]]), TRAINING, tmp_path)
    assert "Traceback" not in str(caught.value) and caught.value.exit_code == 64


def test_keys_are_in_no_file_or_argument(bert: Prepared, tmp_path: Path) -> None:
    """Keys of the run are neither in task files, logs, events and artifacts nor in the workers' command lines."""
    secrets: list[bytes] = []
    seen: list[bytes] = []

    class Spying(Recording):
        def start(self, command: Command) -> Job:
            secrets.extend(part for part in command.first_line.split(b'"') if len(part) == 40)
            job = super().start(command)
            seen.append(Path(f"/proc/{job.pid}/cmdline").read_bytes() + Path(f"/proc/{job.pid}/environ").read_bytes())
            return job

    run_plan(bert, plan(bert.units, [3], [[8], [8]]), TRAINING, tmp_path, launcher=Spying())
    assert len(secrets) == 8  # of two workers: own pair, the coordinator's and the peer's public key
    folders = (tmp_path, bert.folders.model, bert.folders.data)
    files = [p.read_bytes() for folder in folders for p in folder.rglob("*") if p.is_file()]
    assert files and not any(key in text for key in secrets for text in (*files, *seen))
