"""Lines of a run's log."""

import logging
import threading
import time
from typing import Any

import pytest

from flows.run_log import EVERY_S, RunLog
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

    def hear(self, kind: str, text: str = "", stage: str = "train", **fields: Any) -> None:
        """Send an event."""
        self._log.hear(StageEvent(stage=stage, kind=kind, text=text, **fields))

    def beat(self, at_s: float) -> None:
        """The time at which stages are looked at."""
        self.now_s = at_s
        self._log.beat()

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
        log.hear("progress", text, stage="prepare", done=done, total=total, unit=unit)
    for at_s, share in ((200, 20.0), (210, 45.5)):
        log.now_s = at_s
        log.hear("progress", "profiling", stage="profile", done=share, total=100, unit="%")
    assert log.lines == [
        "prepare: tokenizing 100 of 4000 files",
        "prepare: tokenizing 1100 of 4000 files, 100 files/s, 29 s left",
        "prepare: preparing data 0 of 10 samples",
        "prepare: preparing data 5 of 10 samples, 0.5 samples/s, 10 s left",
        "prepare: finding devices 2 of 3",
        "profile: profiling 20 %",
        "profile: profiling 46 %, 21 s left",
    ]


def test_a_silent_stage_says_that_it_works(log: Log) -> None:
    """Bug: a plan that was solved for a minute said nothing. Every ten seconds a line, also where the last thing that
    was said is unknown to the reader, and none of stages that have ended, speak, or are shown by another one.
    """
    log.hear("started", "ran: never run before", stage="plan")
    for second in range(1, 26):
        log.beat(100.0 + second)
    assert log.lines[1:] == ["plan: still at work, 10 s", "plan: still at work, 20 s"]
    log.hear("progress", "solving", stage="plan")
    log.hear("done", stage="plan", seconds=25.0)
    before = list(log.lines)
    log.hear("note", "promoted", stage="run")
    log.beat(200.0)
    assert log.lines == [*before, "run: promoted"]


def test_speaking_stages_need_no_sign_of_life(log: Log) -> None:
    """Between lines of progress nothing else is said; a silence in the middle names the last known progress."""
    log.hear("started", "ran: never run before")
    for number in range(1, 30):
        log.round(number, at_s=100 + number)
        log.beat(100.5 + number)
    assert not [line for line in log.lines if "still" in line]
    log.beat(141.0)
    assert log.lines[-1] == "train: still at work, 41 s (round 29 of 40, loss 2.13)"


def test_stages_that_another_shows_are_silent() -> None:
    """Monitor follows train, whose lines are enough."""
    log = Log(quiet=("monitor",))
    log.hear("started", "ran: never run before", stage="monitor")
    before = list(log.lines)
    log.beat(150.0)
    assert log.lines == before


def test_a_clock_looks_for_silent_stages() -> None:
    """While the block lasts, stages are looked at; a line appears without any event."""
    heard = threading.Event()
    logger = logging.Logger("test")
    logger.addHandler(Sign(heard))
    began_s = time.monotonic()
    log = RunLog(logger, lambda: time.monotonic() - began_s)
    with log.beating():
        log.hear(StageEvent(stage="plan", kind="started"))
        began_s -= EVERY_S
        assert heard.wait(30.0)


class Sign(logging.Handler):
    """Notices a line on a stage that is still at work."""

    def __init__(self, heard: threading.Event) -> None:
        super().__init__()
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        """Look at a line."""
        if "still at work" in record.getMessage():
            self._heard.set()
