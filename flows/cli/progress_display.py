"""Display of a run's progress: bars on a terminal that can move its cursor, else a line for each start, end and note of
a stage and for its progress every PROGRESS_INTERVAL_S seconds; nothing with --json.

With --json the bars are drawn on stderr where that is a terminal, so that stdout stays one document.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from flows.cli.options import CommonOptions
from flows.cli.terminal import terminal
from flows.tracking import StageEvent

RUN = "run"
"""Stage name in events of the run as a whole."""
PROGRESS_INTERVAL_S = 15.0
WIDE, MEDIUM = 110, 80
"""Least columns of a terminal for bars, and for pace and time left."""
ENDED = {"done": "green", "reused": "cyan", "failed": "red", "stopped": "yellow"}


class ProgressListener:
    """Receives the events of a run and displays nothing."""

    run = ""
    """Id of the run, once it has begun."""

    def on_event(self, event: StageEvent) -> None:
        """Receive one event; callable from any thread."""
        if event.stage == RUN and event.kind == "started":
            self.run = event.text

    def report(self, stage: str, what: str, done: float, total: float) -> None:
        """Report progress of work that is not a stage."""
        self.on_event(StageEvent(stage=stage, kind="progress", text=what, done=done, total=total))


class LineDisplay(ProgressListener):
    """Prints a line when a stage starts, ends or emits a note, and its progress every PROGRESS_INTERVAL_S seconds."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._console, self._clock = console, clock
        self._change = threading.Lock()
        self._printed_s: dict[str, float] = {}

    def on_event(self, event: StageEvent) -> None:
        """See ProgressListener."""
        super().on_event(event)
        with self._change:
            now_s = self._clock()
            if event.kind != "progress":
                self._printed_s[event.stage] = now_s
                self._console.print(event_line(event))
            elif now_s - self._printed_s.setdefault(event.stage, now_s) >= PROGRESS_INTERVAL_S:
                self._printed_s[event.stage] = now_s
                self._console.print(progress_line(event))


class BarDisplay(ProgressListener):
    """Shows a bar for each running stage; a line remains when it has ended."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._change = threading.Lock()
        self._tasks: dict[str, TaskID] = {}
        self._what: dict[str, str] = {}
        self._waiting: TaskID | None = progress.add_task("", total=None, what="getting ready", unit="")

    def on_event(self, event: StageEvent) -> None:
        """See ProgressListener."""
        super().on_event(event)
        with self._change:
            if event.stage == RUN:
                return self._progress.console.print(event_line(event))
            if self._waiting is not None:
                self._progress.remove_task(self._waiting)
                self._waiting = None
            if event.kind == "progress":
                self._move(event)
            elif event.kind == "started":
                self._task(event.stage, reason(event))
            else:
                self._progress.console.print(event_line(event))
                if event.kind in ENDED and event.stage in self._tasks:
                    self._progress.remove_task(self._tasks.pop(event.stage))

    def _task(self, stage: str, what: str) -> TaskID:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=None, what=self._short(what), unit="")
        return self._tasks[stage]

    def _move(self, event: StageEvent) -> None:
        """Update a bar; a new piece of work restarts its count, so that pace and time left are its own."""
        task, total = self._task(event.stage, event.text), event.total or None
        if self._what.get(event.stage) != event.text:
            self._what[event.stage] = event.text
            self._progress.reset(task, total=total, completed=0)
        what = self._short(_description(event))
        self._progress.update(task, completed=event.done, total=total, what=what, unit=event.unit)

    def _short(self, words: str) -> str:
        """Cut the text to the width that the bar leaves for it."""
        room = description_width(self._progress.console.width)
        return words if len(words) <= room else words[: room - 1] + "…"


class PaceColumn(ProgressColumn):
    """Done, total and pace: `960/1280 samples, 31.2 samples/s`."""

    def render(self, task: Task) -> Text:
        """Text of the column."""
        unit = task.fields.get("unit", "")
        if task.total is None or not unit:
            return Text("")
        pace = f", {_short(task.speed)} {unit}/s" if task.speed else ""
        return Text(f"{_short(task.completed)}/{_short(task.total)} {unit}{pace}")


def event_line(event: StageEvent) -> Text:
    """An event as one line; the reason of a failure is left to the end of the command."""
    took = f" in {event.seconds:.1f} s" if event.kind == "done" else ""
    why = "" if event.kind == "failed" else reason(event)
    line = Text(f"{event.stage:<9} ")
    line.append(event.kind + took, style=ENDED.get(event.kind, ""))
    return line.append(f" - {why}" if why else "")


def progress_line(event: StageEvent) -> Text:
    """A progress event as one line: `train     round 12 of 40, loss 2.13 - 384/1280 samples (30 %)`."""
    said = f"{event.stage:<9} {_description(event)}"
    if not event.total:
        return Text(said)
    share = f"{100 * event.done / event.total:.0f} %"
    count = f"{_short(event.done)}/{_short(event.total)} {event.unit}".rstrip()
    return Text(f"{said} - {share}" if event.unit == "%" else f"{said} - {count} ({share})")


def _description(event: StageEvent) -> str:
    """The most detailed text on what a stage is doing."""
    return event.detail or event.text


def reason(event: StageEvent) -> str:
    """The reason of an event, without the prefix that its kind repeats."""
    word, colon, rest = event.text.partition(": ")
    return rest if colon and word in ("ran", "reused", "stopped") else event.text


@contextmanager
def show_progress(options: CommonOptions) -> Iterator[ProgressListener]:
    """A listener for the duration of the block, chosen by where the output goes."""
    console = terminal(stderr=options.as_json)
    if not console.is_terminal or console.is_dumb_terminal:
        yield ProgressListener() if options.as_json else LineDisplay(console)
        return
    with bars(console) as progress:
        yield BarDisplay(progress)


def bars(console: Console, clock: Callable[[], float] | None = None) -> Progress:
    """An empty display of bars, with the columns that fit the terminal; `clock` returns seconds."""
    spinner = SpinnerColumn()
    stage = TextColumn("{task.description:<9}", markup=False)
    what = TextColumn("{task.fields[what]}", markup=False)
    columns: tuple[ProgressColumn, ...] = (spinner, stage, what)
    if console.width >= WIDE:
        columns = (*columns, BarColumn(bar_width=24), PaceColumn(), TimeRemainingColumn(compact=True))
    elif console.width >= MEDIUM:
        columns = (*columns, PaceColumn(), TimeRemainingColumn(compact=True))
    return Progress(*columns, console=console, transient=True, get_time=clock)


def description_width(width: int) -> int:
    """Columns of the terminal that remain for the description of a bar."""
    return width - (80 if width >= WIDE else 52 if width >= MEDIUM else 13)


def _short(amount: float) -> str:
    return f"{amount:.0f}" if amount >= 100 or amount == int(amount) else f"{amount:.1f}"
