"""A checkpoint that cannot be completed costs nothing but itself, unless the coordinator's disk is at fault."""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import TryAgain
from fleetune.launching import Command, Job
from fleetune.training.checkpoints import CHECKPOINTS, SAVING, checkpoint_folder, newest_complete
from tests.support.training.recording import Recording
from tests.support.training.runs import Prepared, plan, run_plan

TRAINING = TrainingRequest(
    rounds=6, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3, checkpoint_every_rounds=2
)


class Hostile:
    """A job in a container whose commands do what they like in the folders that it may write; all else is the job's."""

    def __init__(self, job: Job, command: Command, theirs: Path) -> None:
        self._job, self._writes, self._theirs = job, command.writes, theirs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def collect(self, folder: Path, into: Path) -> None:
        """Plant links at all names that the coordinator may use, a pipe for a shard, and a link for a folder."""
        for top in self._writes:
            for round in [path for path in top.glob("round-*") if path.is_dir() and not path.is_symlink()]:
                for name in ("commits.jsonl", "commits.jsonl.part", "round.json", "round.json.part"):
                    with suppress(FileExistsError):
                        (round / name).symlink_to(self._theirs / "file")
                if round.name == checkpoint_folder(Path(), 2).name:
                    shard = next(round.glob("*.safetensors"))
                    shard.unlink()
                    os.mkfifo(shard)
                if round.name == checkpoint_folder(Path(), 4).name:
                    round.rename(round.with_name("away"))
                    round.symlink_to(self._theirs)


class HostileLauncher(Recording):
    """Starts jobs that are hostile."""

    def __init__(self, theirs: Path) -> None:
        super().__init__()
        self._theirs = theirs

    def start(self, command: Command) -> Job:
        """Start a command."""
        return Hostile(super().start(command), command, self._theirs)  # type: ignore[return-value]


class Failing:
    """A job whose files of one checkpoint cannot be fetched as they were written; all else is the job's."""

    def __init__(self, job: Job, fail: Callable[[Path], None]) -> None:
        self._job, self._fail = job, fail

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def collect(self, folder: Path, into: Path) -> None:
        """Fetch what it wrote of a checkpoint."""
        if folder.name == checkpoint_folder(Path(), 4).name:
            self._fail(folder)


class FailingLauncher(Recording):
    """Starts jobs whose files cannot be fetched."""

    def __init__(self, fail: Callable[[Path], None]) -> None:
        super().__init__()
        self._fail = fail

    def start(self, command: Command) -> Job:
        """Start a command."""
        return Failing(super().start(command), self._fail)  # type: ignore[return-value]


def unreachable(folder: Path) -> None:
    """An engine that is just being restarted."""
    raise TryAgain(f"{folder} could not be fetched from its container (connection refused)")


def damage(folder: Path) -> None:
    """A transfer or a disk that damages a file."""
    next(folder.glob("*.safetensors")).write_bytes(b"as a bad disk has it")


def full(folder: Path) -> None:
    """No room on the coordinator's disk."""
    try:
        raise OSError(errno.ENOSPC, "No space left on device")
    except OSError as error:
        raise TryAgain(f"{folder} could not be written ({error.strerror}): make room") from None


@pytest.mark.parametrize(("fail", "why"), [(unreachable, "connection refused"), (damage, "is damaged")])
def test_a_training_goes_on_without_a_checkpoint_that_failed(
    fail: Callable[[Path], None], why: str, bert: Prepared, tmp_path: Path
) -> None:
    """Bug: an engine that could not be asked after a device had written its shard ended the training, although nothing
    was lost. The user is told, and the next checkpoint is complete again.
    """
    said = list[str]()
    made = plan(bert.units, [], [[8]])
    metrics = run_plan(bert, made, TRAINING, tmp_path / "run", launcher=FailingLauncher(fail), note=said.append)
    assert len(metrics.rounds) == TRAINING.rounds
    assert [each for each in said if each.startswith("no checkpoint of round 4: ") and why in each], said
    found = newest_complete(tmp_path / "run" / "work", said.append)
    assert found is not None and found.mark.round == TRAINING.rounds


@pytest.mark.parametrize("fail", [unreachable, damage])
def test_the_last_checkpoint_is_tried_twice(fail: Callable[[Path], None], bert: Prepared, tmp_path: Path) -> None:
    """A last checkpoint whose files are damaged or out of reach once is written again, and the training ends well."""
    said, tried = list[str](), list[Path]()

    def fail_once(folder: Path) -> None:
        tried.append(folder)
        if len(tried) == 1:
            fail(folder)

    training = replace(TRAINING, rounds=4)
    launcher = FailingLauncher(fail_once)
    metrics = run_plan(
        bert, plan(bert.units, [], [[8]]), training, tmp_path / "run", launcher=launcher, note=said.append
    )
    assert len(metrics.rounds) == 4 and len(tried) == 2
    assert [each for each in said if each.startswith("no checkpoint of round 4: ")], said
    found = newest_complete(tmp_path / "run" / "work", said.append)
    assert found is not None and found.mark.round == 4


def test_a_disk_that_is_full_ends_a_training(bert: Prepared, tmp_path: Path) -> None:
    """It would take no later checkpoint either: the run exits with 75 and words, and the checkpoint before is there."""
    said = list[str]()
    with pytest.raises(TryAgain, match="No space left on device") as caught:
        run_plan(bert, plan(bert.units, [], [[8]]), TRAINING, tmp_path / "run", launcher=FailingLauncher(full))
    assert caught.value.exit_code == 75
    found = newest_complete(tmp_path / "run" / "work", said.append)
    assert found is not None and found.mark.round == 2


@pytest.mark.timeout(120)
def test_a_hostile_container_costs_its_checkpoints_only(bert: Prepared, tmp_path: Path) -> None:
    """Bug: the coordinator wrote `commits.jsonl.part` into a folder that containers write, through whatever link they
    had put there. It writes in no such folder, follows no link of theirs, waits for no pipe, and the training goes on.
    """
    theirs, said = tmp_path / "theirs", list[str]()
    theirs.mkdir()
    (theirs / "file").write_text("theirs")
    made = plan(bert.units, [], [[8]])
    run_plan(bert, made, TRAINING, tmp_path / "run", launcher=HostileLauncher(theirs), note=said.append)
    assert [path.name for path in theirs.iterdir()] == ["file"] and (theirs / "file").read_text() == "theirs"
    for round in (2, 4):
        assert [each for each in said if each.startswith(f"no checkpoint of round {round}: ")], said
    found = newest_complete(tmp_path / "run" / "work", said.append)
    assert found is not None and found.mark.round == TRAINING.rounds


def test_a_device_writes_no_folder_of_another_one(bert: Prepared, tmp_path: Path) -> None:
    """A container sees checkpoints without being able to change them, and no device's shards but its own."""
    launcher, made = Recording(), plan(bert.units, [1], [[8], [8]])
    run_plan(bert, made, replace(TRAINING, rounds=2), tmp_path / "run", launcher=launcher)
    work = tmp_path / "run" / "work"
    writes = [folder for command in launcher.commands for folder in command.writes]
    assert len({*writes}) == len(made.devices) and {folder.parent for folder in writes} == {work / SAVING}
    assert {command.live_reads for command in launcher.commands} == {(work / CHECKPOINTS,)}
