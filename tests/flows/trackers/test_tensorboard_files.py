"""TensorBoard files hold each point of a run once, whatever came between."""

import errno
from pathlib import Path

import pytest
from tensorboardX.record_writer import RecordWriter

from flows.trackers.points import Point
from flows.trackers.tensorboard_files import VERSION, TensorBoardFiles
from tests.flows.trackers.event_file import events_of, scalars


def rounds(*losses: float) -> list[Point]:
    """A point per round, a second after each other."""
    return [Point(step=step, at_s=1000.0 + step, values={"train/loss": loss}) for step, loss in enumerate(losses)]


def test_points_are_read_back_with_their_steps_and_times(tmp_path: Path) -> None:
    """What is written in several updates is read back in order, behind the version of the format."""
    files = TensorBoardFiles(tmp_path / "demo-1", clock=lambda: 1000.0)
    files.update([])
    assert not (tmp_path / "demo-1").exists()
    files.update(rounds(2.0, 1.5))
    files.update(rounds(2.0, 1.5, 1.25))
    assert scalars(tmp_path / "demo-1") == {"train/loss": [(0, 2.0), (1, 1.5), (2, 1.25)]}
    first, *others = events_of(tmp_path / "demo-1")
    assert first.file_version == VERSION
    assert [event.wall_time for event in others] == [1000.0, 1001.0, 1002.0]
    files.close("done")


def test_a_round_that_is_run_again_appears_once(tmp_path: Path) -> None:
    """After a recovery that goes back two rounds, a reader finds what was trained last, and readers see a new file."""
    files = TensorBoardFiles(tmp_path, clock=iter((1000.0, 1010.0)).__next__)
    files.update(rounds(2.0, 1.5, 1.25))
    (before,) = tmp_path.iterdir()
    files.update(rounds(2.0))
    files.update(rounds(2.0, 1.75))
    (after,) = tmp_path.iterdir()
    assert scalars(tmp_path) == {"train/loss": [(0, 2.0), (1, 1.75)]}
    assert after.name > before.name


def test_a_second_writer_replaces_what_a_killed_one_left(tmp_path: Path) -> None:
    """A run that goes on after a kill in the middle of a record has all points once."""
    TensorBoardFiles(tmp_path, clock=lambda: 1000.0).update(rounds(2.0, 1.5))
    (half,) = tmp_path.iterdir()
    half.write_bytes(half.read_bytes()[:-3])
    TensorBoardFiles(tmp_path, clock=lambda: 1001.0).update(rounds(2.0, 1.5, 1.25))
    assert scalars(tmp_path) == {"train/loss": [(0, 2.0), (1, 1.5), (2, 1.25)]}


def test_after_a_full_disk_everything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the disk reaches the caller, and the update after it writes what was lost."""
    files = TensorBoardFiles(tmp_path, clock=iter((1000.0, 1030.0)).__next__)
    files.update(rounds(2.0))
    with monkeypatch.context() as full:

        def refuse(self: RecordWriter) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        full.setattr(RecordWriter, "flush", refuse)
        with pytest.raises(OSError, match="No space left"):
            files.update(rounds(2.0, 1.5))
    files.update(rounds(2.0, 1.5, 1.25))
    assert scalars(tmp_path) == {"train/loss": [(0, 2.0), (1, 1.5), (2, 1.25)]}
