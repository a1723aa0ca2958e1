"""The display of a run's progress."""

import io

import pytest
from rich.console import Console

from flows.cli.options import CommonOptions
from flows.cli.progress_display import (
    BarDisplay,
    LineDisplay,
    ProgressListener,
    bars,
    event_line,
    progress_line,
    show_progress,
)
from flows.tracking import StageEvent


class Screen:
    """A terminal with bars on it, and a clock that is moved by hand."""

    def __init__(self, columns: int = 120) -> None:
        self.now_s = 0.0
        self.written = io.StringIO()
        self.console = Console(file=self.written, width=columns, markup=False, highlight=False)
        self.progress = bars(self.console, lambda: self.now_s)
        self.watch = BarDisplay(self.progress)

    def on_event(self, stage: str, kind: str, text: str = "", done: float = 0, total: float = 0) -> None:
        """Send an event that counts samples."""
        self.watch.on_event(
            StageEvent(stage=stage, kind=kind, text=text, done=done, total=total, unit="samples", seconds=2)
        )

    def bars(self) -> list[str]:
        """The lines of the bars as they are drawn now."""
        self.written.seek(0)
        self.written.truncate()
        self.console.print(self.progress.get_renderable())
        return [line for line in self.written.getvalue().splitlines() if line.strip()]


def test_waiting() -> None:
    """A bar is shown before the first event."""
    screen = Screen()
    assert "getting ready" in screen.bars()[0]
    screen.on_event("discover", "started", "ran: never run before")
    assert len(screen.bars()) == 1 and "getting ready" not in screen.bars()[0]


def test_pace_and_time_left() -> None:
    """A bar shows the samples done, samples per second, and the time left."""
    screen = Screen()
    screen.on_event("train", "started", "ran: never run before")
    for second in range(11):
        screen.now_s = float(second)
        screen.on_event("train", "progress", "training", done=8.0 * second, total=320)
    [bar] = screen.bars()
    assert "train     training" in bar
    assert "80/320 samples, 8 samples/s" in bar
    assert "00:30" in bar


def test_one_bar_each() -> None:
    """Concurrent stages have one bar each; a line replaces the bar of a stage that has ended."""
    screen = Screen()
    screen.on_event("train", "started", "ran: data changed")
    screen.on_event("monitor", "started", "ran: beside train")
    assert [bar.split()[1] for bar in screen.bars()] == ["train", "monitor"]
    screen.on_event("train", "done", "ran: data changed")
    assert "train     done in 2.0 s - data changed" in screen.written.getvalue()
    assert [bar.split()[1] for bar in screen.bars()] == ["monitor"]


def test_other_work_counts_anew() -> None:
    """Pace and time left restart when a stage begins another piece of work."""
    screen = Screen()
    for second in range(5):
        screen.now_s = float(second)
        screen.on_event("profile", "progress", "reading", done=100.0 * second, total=400)
    for second in range(5, 10):
        screen.now_s = float(second)
        screen.on_event("profile", "progress", "timing", done=second - 4.0, total=100)
    assert "5/100 samples, 1 samples/s" in screen.bars()[0]


def progress(done: float) -> StageEvent:
    """Progress event of training after `done` of 9 samples."""
    loss = f"round {done:.0f} of 9, loss 2.5"
    return StageEvent(stage="train", kind="progress", text="training", done=done, total=9, unit="samples", detail=loss)


def test_lines() -> None:
    """Without a terminal each start, end and note is one line without colours."""
    written = io.StringIO()
    watch = LineDisplay(Console(file=written))
    for kind, text in (("started", "ran: seed changed"), ("progress", "training"), ("note", "a remark")):
        watch.on_event(StageEvent(stage="train", kind=kind, text=text))
    watch.on_event(StageEvent(stage="train", kind="failed", text="slow left", seconds=3))
    assert written.getvalue() == "train     started - seed changed\ntrain     note - a remark\ntrain     failed\n"


def test_lines_tell_now_and_then_how_far_it_is() -> None:
    """Bug: a run printed nothing during training when its output went to a file; every 15 s each stage prints a line
    with round and loss, without control characters."""
    written, now_s = io.StringIO(), [0.0]
    watch = LineDisplay(Console(file=written), lambda: now_s[0])
    watch.on_event(StageEvent(stage="train", kind="started", text="ran: seed changed"))
    watch.on_event(StageEvent(stage="monitor", kind="progress", text="following"))
    for second in range(32):
        now_s[0] = float(second)
        watch.on_event(progress(second / 4))
    watch.on_event(StageEvent(stage="monitor", kind="progress", text="following"))
    assert written.getvalue().splitlines() == [
        "train     started - seed changed",
        "train     round 4 of 9, loss 2.5 - 3.8/9 samples (42 %)",
        "train     round 8 of 9, loss 2.5 - 7.5/9 samples (83 %)",
        "monitor   following",
    ]


@pytest.mark.parametrize(
    ("total", "unit", "line"),
    [
        (12, "rows", "profile   reading - 3/12 rows (25 %)"),
        (12, "", "profile   reading - 3/12 (25 %)"),
        (12, "%", "profile   reading - 25 %"),
        (0, "", "profile   reading"),
    ],
)
def test_how_far(total: float, unit: str, line: str) -> None:
    """A line shows the count and its percentage; a percentage by itself is shown once."""
    event = StageEvent(stage="profile", kind="progress", text="reading", done=3, total=total, unit=unit)
    assert progress_line(event).plain == line


def test_bars_show_round_and_loss() -> None:
    """A bar shows round and loss beside the samples, and a change of them does not restart the count."""
    screen = Screen()
    for second in range(3):
        screen.now_s = float(second)
        screen.watch.on_event(progress(float(second)))
    [bar] = screen.bars()
    assert "train     round 2 of 9, loss 2.5" in bar and "2/9 samples, 1 samples/s" in bar


@pytest.mark.parametrize(("columns", "pace", "bar"), [(30, False, False), (80, True, False), (120, True, True)])
def test_bars_fit_their_terminal(columns: int, pace: bool, bar: bool) -> None:
    """Bug: a long reason pushed everything else off the line; stage and description are visible at any width."""
    screen = Screen(columns)
    screen.on_event("train", "started", "ran: training.rounds, training.checkpoint_every_rounds and 2 more changed")
    [line] = screen.bars()
    assert "train     training.roun" in line and len(line) <= columns
    for second in range(3):
        screen.now_s = float(second)
        screen.watch.on_event(progress(float(second)))
    [line] = screen.bars()
    assert "train     round 2 of 9" in line and len(line) <= columns
    assert ("2/9 samples, 1 samples/s" in line, "━" in line) == (pace, bar)


def test_the_run_itself_has_no_bar() -> None:
    """The start of the run is a line that stays and holds the run's id."""
    screen = Screen()
    screen.on_event("run", "started", "demo-1")
    assert "run       started - demo-1" in screen.written.getvalue()
    assert screen.watch.run == "demo-1"
    assert len(screen.bars()) == 1 and "getting ready" in screen.bars()[0]


@pytest.mark.parametrize(
    ("term", "json", "kind"),
    [
        ("xterm", False, BarDisplay),
        ("dumb", False, LineDisplay),
        ("xterm", True, BarDisplay),
        ("dumb", True, ProgressListener),
    ],
)
def test_a_terminal_that_cannot_move_its_cursor(
    monkeypatch: pytest.MonkeyPatch, term: str, json: bool, kind: type[ProgressListener]
) -> None:
    """On a dumb terminal, where bars are not drawn, events are printed as lines."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, to rich
    monkeypatch.setenv("TERM", term)
    with show_progress(CommonOptions(as_json=json)) as watch:
        assert type(watch) is kind


@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        ("started", "ran: seed changed", "plan      started - seed changed"),
        ("reused", "reused: same key as x", "plan      reused - same key as x"),
        ("stopped", "stopped: train did not end well", "plan      stopped - train did not end well"),
        ("done", "", "plan      done in 0.0 s"),
        ("note", "x: a remark", "plan      note - x: a remark"),
    ],
)
def test_in_a_line(kind: str, text: str, line: str) -> None:
    """A line states the event and its reason, each once."""
    assert event_line(StageEvent(stage="plan", kind=kind, text=text)).plain == line
