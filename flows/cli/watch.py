"""While a run goes on: bars on a terminal, one line per start and end of a stage elsewhere, nothing with --json.

With --json the bars are drawn on stderr where that is a terminal, so that stdout stays one document.
"""

import threading
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

from flows.cli.asked import Asked
from flows.events import StageEvent

ENDED = {"done": "green", "reused": "cyan", "failed": "red", "stopped": "yellow"}


class Watch:
    """Hears a run silently."""

    def hear(self, event: StageEvent) -> None:
        """Take in one event; called from any thread."""

    def doing(self, stage: str, what: str, done: float, total: float) -> None:
        """A progress event of work that is no stage."""
        self.hear(StageEvent(stage=stage, kind="progress", text=what, done=done, total=total))


class Lines(Watch):
    """One line when a stage starts and one when it ends, with the reason."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def hear(self, event: StageEvent) -> None:
        """See Watch."""
        if event.kind == "started" or event.kind in ENDED:
            self._console.print(in_a_line(event))


class Bars(Watch):
    """A bar for each stage that runs; a line stays when it has ended."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._change = threading.Lock()
        self._tasks: dict[str, TaskID] = {}
        self._what: dict[str, str] = {}
        self._waiting: TaskID | None = progress.add_task("", total=None, what="getting ready", unit="")

    def hear(self, event: StageEvent) -> None:
        """See Watch."""
        with self._change:
            if self._waiting is not None:
                self._progress.remove_task(self._waiting)
                self._waiting = None
            if event.kind == "progress":
                self._move(event)
            elif event.kind == "started":
                self._task(event.stage, reason(event))
            else:
                self._progress.console.print(in_a_line(event))
                if event.kind in ENDED and event.stage in self._tasks:
                    self._progress.remove_task(self._tasks.pop(event.stage))

    def _task(self, stage: str, what: str) -> TaskID:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=None, what=what, unit="")
        return self._tasks[stage]

    def _move(self, event: StageEvent) -> None:
        """Another piece of work begins its own count, so that its pace and time left are its own."""
        task, total = self._task(event.stage, event.text), event.total or None
        if self._what.get(event.stage) != event.text:
            self._what[event.stage] = event.text
            self._progress.reset(task, total=total, completed=0)
        self._progress.update(task, completed=event.done, total=total, what=event.text, unit=event.unit)


class Pace(ProgressColumn):
    """Done, total and pace: `960/1280 samples, 31.2 samples/s`."""

    def render(self, task: Task) -> Text:
        """What the column shows now."""
        unit = task.fields.get("unit", "")
        if task.total is None or not unit:
            return Text("")
        pace = f", {_short(task.speed)} {unit}/s" if task.speed else ""
        return Text(f"{_short(task.completed)}/{_short(task.total)} {unit}{pace}")


def in_a_line(event: StageEvent) -> Text:
    """An event as one line for people; what failed is told once, at the end."""
    took = f" in {event.seconds:.1f} s" if event.kind == "done" else ""
    why = "" if event.kind == "failed" else reason(event)
    line = Text(f"{event.stage:<9} ")
    line.append(event.kind + took, style=ENDED.get(event.kind, ""))
    return line.append(f" - {why}" if why else "")


def reason(event: StageEvent) -> str:
    """Why, without the word that the event's kind says already."""
    word, colon, rest = event.text.partition(": ")
    return rest if colon and word in ("ran", "reused", "stopped") else event.text


@contextmanager
def watching(asked: Asked) -> Iterator[Watch]:
    """Someone who listens while the block runs, as fits where the output goes."""
    console = Console(stderr=asked.as_json, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        yield Watch() if asked.as_json else Lines(console)
        return
    with bars(console) as progress:
        yield Bars(progress)


def bars(console: Console, clock: Callable[[], float] | None = None) -> Progress:
    """An empty display of bars; `clock` gives seconds."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<9}", markup=False),
        TextColumn("{task.fields[what]}", markup=False),
        BarColumn(bar_width=24),
        Pace(),
        TimeRemainingColumn(compact=True),
    )
    return Progress(*columns, console=console, transient=True, get_time=clock)


def _short(amount: float) -> str:
    return f"{amount:.0f}" if amount >= 100 or amount == int(amount) else f"{amount:.1f}"
