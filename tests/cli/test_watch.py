"""What a person sees while a run goes on."""

import io

import pytest
from rich.console import Console

from flows.cli.watch import Bars, Lines, bars, in_a_line
from flows.events import StageEvent


class Screen:
    """A terminal of 120 columns with bars on it, and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.written = io.StringIO()
        self.console = Console(file=self.written, width=120, markup=False, highlight=False)
        self.progress = bars(self.console, lambda: self.now_s)
        self.watch = Bars(self.progress)

    def hear(self, stage: str, kind: str, text: str = "", done: float = 0, total: float = 0) -> None:
        """An event; samples are what is counted."""
        self.watch.hear(
            StageEvent(stage=stage, kind=kind, text=text, done=done, total=total, unit="samples", seconds=2)
        )

    def bars(self) -> list[str]:
        """The bars as they are drawn now, a line each."""
        self.written.seek(0)
        self.written.truncate()
        self.console.print(self.progress.get_renderable())
        return [line for line in self.written.getvalue().splitlines() if line.strip()]


def test_waiting() -> None:
    """Before the first event there is a bar too: something is being done."""
    screen = Screen()
    assert "getting ready" in screen.bars()[0]
    screen.hear("discover", "started", "ran: never run before")
    assert len(screen.bars()) == 1 and "getting ready" not in screen.bars()[0]


def test_pace_and_time_left() -> None:
    """A bar tells how many samples are done, how many a second, and the time that is left."""
    screen = Screen()
    screen.hear("train", "started", "ran: never run before")
    for second in range(11):
        screen.now_s = float(second)
        screen.hear("train", "progress", "training", done=8.0 * second, total=320)
    [bar] = screen.bars()
    assert "train     training" in bar
    assert "80/320 samples, 8 samples/s" in bar
    assert "00:30" in bar


def test_one_bar_each() -> None:
    """Stages that run beside each other have a bar each; the bar of one that has ended gives way to a line."""
    screen = Screen()
    screen.hear("train", "started", "ran: data changed")
    screen.hear("monitor", "started", "ran: beside train")
    assert [bar.split()[1] for bar in screen.bars()] == ["train", "monitor"]
    screen.hear("train", "done", "ran: data changed")
    assert "train     done in 2.0 s - data changed" in screen.written.getvalue()
    assert [bar.split()[1] for bar in screen.bars()] == ["monitor"]


def test_other_work_counts_anew() -> None:
    """When a stage goes over to something else, pace and time left are those of that."""
    screen = Screen()
    for second in range(5):
        screen.now_s = float(second)
        screen.hear("profile", "progress", "reading", done=100.0 * second, total=400)
    for second in range(5, 10):
        screen.now_s = float(second)
        screen.hear("profile", "progress", "timing", done=second - 4.0, total=100)
    assert "5/100 samples, 1 samples/s" in screen.bars()[0]


def test_lines() -> None:
    """Away from a terminal only starts and ends are told, each in one line without colours."""
    written = io.StringIO()
    watch = Lines(Console(file=written))
    for kind, text in (("started", "ran: seed changed"), ("progress", "training"), ("note", "a remark")):
        watch.hear(StageEvent(stage="train", kind=kind, text=text))
    watch.hear(StageEvent(stage="train", kind="failed", text="slow left", seconds=3))
    assert written.getvalue() == "train     started - seed changed\ntrain     failed\n"


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
    """A line says what happened and why, without saying it twice."""
    assert in_a_line(StageEvent(stage="plan", kind=kind, text=text)).plain == line
