"""TensorBoard event files of a run: `tensorboard --logdir STORE/tensorboard` shows runs by their ids."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.trackers.points import Point

PATTERN = "events.out.tfevents.*"
VERSION = "brain.Event:2"
"""Of the files' format; without it a reader drops points whose steps are not in order over all names."""


class TensorBoardFiles:
    """Writes the file of one run, by the records of the package `tensorboard`.

    A file is only appended to. When rounds are run again, and after an error, a new file with all points replaces it,
    so that no reader finds a round twice.
    """

    name = "tensorboard"

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """folder: of this run alone; created with the first point. clock: seconds since 1970."""
        self._folder, self._clock = folder, clock
        self._file: Any = None
        self._written: list[Point] = []

    def update(self, points: Sequence[Point]) -> None:
        """See Tracker."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if not points:
            return
        if self._file is None or list(points[: len(self._written)]) != self._written:
            self._begin_file()
        fresh = points[len(self._written) :]
        try:
            for point in fresh:
                values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
                self._write(Event(wall_time=point.at_s, step=point.step, summary=Summary(value=values)))
            if fresh:
                self._file.flush()
        except BaseException:
            self._end_file()
            raise
        self._written = list(points)

    def close(self, state: str) -> None:
        """See Tracker."""
        if self._file is not None:
            self._file.close()

    def _begin_file(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._end_file()
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in self._folder.glob(PATTERN):
            old.unlink()
        began_s = self._clock()
        name = PATTERN.replace("*", f"{began_s:017.6f}.fleetune")  # readers go on with the file of the greatest name
        self._file = RecordWriter((self._folder / name).open("wb"))
        self._write(Event(wall_time=began_s, file_version=VERSION))

    def _write(self, event: Any) -> None:
        self._file.write(event.SerializeToString())

    def _end_file(self) -> None:
        """Forget the file, also one that a full disk keeps from being closed."""
        file, self._file, self._written = self._file, None, []
        if file is not None:
            with suppress(OSError):
                file.close()
