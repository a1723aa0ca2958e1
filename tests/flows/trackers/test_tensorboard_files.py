"""TensorBoard files hold each point of a run once, whatever came between."""

import errno
from pathlib import Path

import pytest
from tensorboard.summary.writer.record_writer import RecordWriter

from flows.trackers.points import Point
from flows.trackers.tensorboard_files import TensorBoardFiles
from tests.support.flows.trackers.event_file import points, scalars


def rounds(*losses: float) -> list[Point]:
    """A point per round, a second after each other."""
    return [Point(step=step, at_s=1000.0 + step, values={"train/loss": loss}) for step, loss in enumerate(losses)]


def test_points_are_read_back_with_their_steps_and_times(tmp_path: Path) -> None:
    """What is written in several updates is read back in order."""
    files = TensorBoardFiles(tmp_path / "demo-1", clock=lambda: 1000.0)
    files.update([])
    assert not (tmp_path / "demo-1").exists()
    files.update(rounds(2.0, 1.5))
    files.update(rounds(2.0, 1.5, 1.25))
    assert scalars(tmp_path / "demo-1") == {"train/loss": [(0, 2.0), (1, 1.5), (2, 1.25)]}
    assert [one.wall_time for one in points(tmp_path / "demo-1")["train/loss"]] == [1000.0, 1001.0, 1002.0]
    files.close("done")


def test_a_score_from_before_the_training_hides_no_round(tmp_path: Path) -> None:
    """A point of step 0 may follow those of later rounds. Without a version of the format, a reader drops these."""
    files = TensorBoardFiles(tmp_path, clock=lambda: 1000.0)
    files.update([*rounds(2.0, 1.5), Point(step=0, at_s=1003.0, values={"test/loss": 2.25})])
    assert scalars(tmp_path) == {"train/loss": [(0, 2.0), (1, 1.5)], "test/loss": [(0, 2.25)]}
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
    files.close("done")


def test_a_second_writer_replaces_what_a_killed_one_left(tmp_path: Path) -> None:
    """A run that goes on after a kill in the middle of a record has all points once."""
    killed = TensorBoardFiles(tmp_path, clock=lambda: 1000.0)
    killed.update(rounds(2.0, 1.5))
    killed.close("interrupted")
    (half,) = tmp_path.iterdir()
    half.write_bytes(half.read_bytes()[:-3])
    second = TensorBoardFiles(tmp_path, clock=lambda: 1001.0)
    second.update(rounds(2.0, 1.5, 1.25))
    second.close("done")
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
    files.close("done")
