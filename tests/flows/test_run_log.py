"""Lines of a run's log."""

import logging

import pytest

from flows.run_log import RunLog
from flows.tracking import StageEvent


class Log:
    """A log with a clock that is moved by hand."""

    def __init__(self, quiet: tuple[str, ...] = ()) -> None:
        self.now_s = 100.0
        self.lines: list[str] = []
        logger = logging.Logger("test")
        logger.addHandler(self)  # type: ignore[arg-type]
        self.level = logging.NOTSET
        self._log = RunLog(logger, lambda: self.now_s, quiet)

    def handle(self, record: logging.LogRecord) -> None:
        """Keep a line, as a handler of the logger."""
        self.lines.append(record.getMessage())

    def hear(self, kind: str, text: str = "", stage: str = "train", **fields: float) -> None:
        """Send an event."""
        self._log.hear(StageEvent(stage=stage, kind=kind, text=text, **fields))  # type: ignore[arg-type]

    def round(self, number: int, at_s: float) -> None:
        """Training has done a round of 32 samples, of 40."""
        self.now_s = at_s
        detail = f"round {number} of 40, loss 2.13"
        event = StageEvent(
            stage="train",
            kind="progress",
            text="training",
            done=32.0 * number,
            total=1280.0,
            unit="samples",
            detail=detail,
        )
        self._log.hear(event)


@pytest.fixture
def log() -> Log:
    """An empty log."""
    return Log()


def test_training_tells_its_pace_and_the_time_left(log: Log) -> None:
    """Every ten seconds a line, by the pace of the last seconds: a resumed training counts only its own rounds."""
    for number in range(20, 40):
        log.round(number, at_s=100 + (number - 20) * 0.8)
    assert log.lines == ["train: round 20 of 40, loss 2.13", "train: round 33 of 40, loss 2.13, 40 samples/s, 6 s left"]


def test_the_pace_follows_a_training_that_slows_down(log: Log) -> None:
    """An hour of fast rounds does not hide that the last ones are slow."""
    for number in range(1, 21):
        log.round(number, at_s=100 + number)
    for number in range(21, 31):
        log.round(number, at_s=120 + 16 * (number - 20))
    assert log.lines[-1] == "train: round 30 of 40, loss 2.13, 2 samples/s, 160 s left".replace("160 s", "2 min 40 s")


def test_no_word_is_doubled(log: Log) -> None:
    """Bug: lines read `prepare: reused: reused: same key as ...`."""
    log.hear("reused", "reused: same key as demo-1", stage="prepare")
    log.hear("started", "ran: measured in every run", stage="discover")
    log.hear("done", "ran: measured in every run; the stored fleet is kept", stage="discover", seconds=4.04)
    log.hear("started", "ran: never run before")
    log.round(40, at_s=200)
    log.hear("done", "ran: never run before", seconds=34.2)
    log.hear("stopped", "stopped: train did not end well", stage="monitor")
    log.hear("failed", "no disk", stage="evaluate", seconds=1)
    assert log.lines == [
        "prepare: reused (same key as demo-1)",
        "discover: started (measured in every run)",
        "discover: done in 4.0 s (the stored fleet is kept)",
        "train: started (never run before)",
        "train: round 40 of 40, loss 2.13",
        "train: done in 34.2 s (round 40 of 40, loss 2.13)",
        "monitor: stopped (train did not end well)",
        "evaluate: failed after 1.0 s: no disk",
    ]


def test_other_stages_count_their_work(log: Log) -> None:
    """Each piece of work has a pace of its own; shares have none, and a follower says nothing."""
    quiet = Log(quiet=("monitor",))
    quiet.hear("progress", "rounds committed", stage="monitor", done=1, total=40)
    assert quiet.lines == []
    for at_s, text, done, total, unit in (
        (100, "tokenizing", 100, 4000, "files"),
        (110, "tokenizing", 1100, 4000, "files"),
        (121, "preparing data", 0, 10, "samples"),
        (131, "preparing data", 5, 10, "samples"),
        (142, "finding devices", 2, 3, "devices"),
    ):
        log.now_s = at_s
        log._log.hear(StageEvent(stage="prepare", kind="progress", text=text, done=done, total=total, unit=unit))
    for at_s, share in ((200, 20.0), (210, 45.5)):
        log.now_s = at_s
        log._log.hear(StageEvent(stage="profile", kind="progress", text="profiling", done=share, total=100, unit="%"))
    assert log.lines == [
        "prepare: tokenizing 100 of 4000 files",
        "prepare: tokenizing 1100 of 4000 files, 100 files/s, 29 s left",
        "prepare: preparing data 0 of 10 samples",
        "prepare: preparing data 5 of 10 samples, 0.5 samples/s, 10 s left",
        "prepare: finding devices 2 of 3",
        "profile: profiling 20 %",
        "profile: profiling 46 %, 21 s left",
    ]
