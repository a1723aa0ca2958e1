"""Tracking of a run: its events, its record (`run.json`), and the progress of stages that other stages follow."""

import dataclasses
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from fleetune.contracts.record import one_of, record
from fleetune.errors import FleetuneError, Refused
from fleetune.launching import Job
from fleetune.store import RunRecord, Store
from stages.catalog import StageSpec

KINDS = ("started", "progress", "note", "reused", "done", "failed", "stopped")
FOLLOW_S, GRACE_S = 20.0, 5.0
"""Seconds that a follower may run on after the stage that it follows, and seconds to end once it is told to."""


@record
class StageEvent:
    """One event of one stage."""

    stage: str
    """Its name; `run` for the run as a whole."""
    kind: str
    """started, progress, note, reused, done, failed or stopped."""
    text: str = ""
    """progress: what is being done; failed: the error; otherwise why (`ran: data changed`) or a remark."""
    done: float = 0.0
    total: float = 0.0
    unit: str = ""
    """progress only: done of total, in this unit."""
    detail: str = ""
    """progress only: further facts (`round 12 of 40, loss 2.13`)."""
    seconds: float = 0.0
    """done and failed: how long the stage took."""

    def __post_init__(self) -> None:
        one_of(f"event of {self.stage}", "kind", self.kind, KINDS)


EventListener = Callable[[StageEvent], None]


def both(first: EventListener, second: EventListener) -> EventListener:
    """A listener that passes each event to two others."""

    def listen(event: StageEvent) -> None:
        first(event)
        second(event)

    return listen


def reason(why: str) -> str:
    """Why a stage ran, was reused or stopped, without the word before it that its state repeats."""
    word, colon, rest = why.partition(": ")
    return rest if colon and word in ("ran", "reused", "stopped") else why


def ignore_event(event: StageEvent) -> None:
    """The default listener."""


class RunTracker:
    """Record and events of one run; its methods may be called from several threads."""

    def __init__(self, store: Store, listen: EventListener, run: RunRecord) -> None:
        """Track `run`, which is not written before the first change or `save`."""
        self.record = run
        self.error: FleetuneError | None = None
        """The first error of a stage."""
        self.stop_error: FleetuneError | None = None
        """How far the first stage came that was told to end."""
        self._store, self._listen = store, listen
        self._change = threading.Lock()

    def save(self) -> None:
        """Write the record to the store."""
        self._store.runs.save(self.record)

    def update(self, **fields: Any) -> None:
        """Change fields of the run's record and write it."""
        with self._change:
            self.record = dataclasses.replace(self.record, **fields)
            self.save()

    def update_stage(self, name: str, **fields: Any) -> None:
        """Change fields of a stage's record and write the run's record."""
        with self._change:
            stages = tuple(
                dataclasses.replace(stage, **fields) if stage.stage == name else stage for stage in self.record.stages
            )
            self.record = dataclasses.replace(self.record, stages=stages)
            self.save()

    def end_stage(self, name: str, **fields: Any) -> None:
        """`update_stage`, with the time of now as the stage's end."""
        self.update_stage(name, ended=self.now(), **fields)

    def append_reason(self, name: str, text: str) -> None:
        """Append `text` to the reason why a stage runs."""
        self.update_stage(name, why=f"{self.record.stage(name).why}; {text}")

    def fail_stage(self, spec: StageSpec, error: BaseException, seconds: float) -> None:
        """Record the error that a stage ended with after `seconds`, and emit it."""
        said = str(error) if isinstance(error, FleetuneError) else f"{type(error).__name__}: {error}"
        if isinstance(error, FleetuneError) and self.error is None:
            self.error = error
        with suppress(OSError):  # a full disk takes no record
            self.end_stage(spec.name, state="failed", error=said)
        if isinstance(error, Refused) and "plan" in spec.inputs:  # a plan that cannot be trained still has a report
            report = self._store.folder("plan", self.record.outputs["plan"]) / "report.html"
            if report.is_file():
                self.emit(spec.name, "note", f"the report of its plan is {report}")
        self.emit(spec.name, "failed", said, seconds)

    def stop_stage(self, spec: StageSpec, error: FleetuneError, seconds: float) -> None:
        """Record that a stage ended after `seconds` because its run was told to end; `error` says how far it came."""
        self.stop_error = self.stop_error or error
        with suppress(OSError):  # a full disk takes no record
            self.end_stage(spec.name, state="stopped", error=str(error))
        self.emit(spec.name, "stopped", str(error), seconds)

    def emit(self, stage: str, kind: str, text: str, seconds: float = 0.0) -> None:
        """Send an event to the listener."""
        self._listen(StageEvent(stage=stage, kind=kind, text=text, seconds=seconds))

    def now(self) -> str:
        """Time of the store's clock, in ISO 8601."""
        return self._store.clock().isoformat()


class FollowedStage:
    """Progress of one stage that others follow."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()
        self.live, self.ok = False, False


class FollowedStages:
    """Progress of all stages of a run that others follow, as `monitor` follows `train`.

    A follower starts after the stage that it follows and ends soon after it. `begin` and `end` ignore any other stage.
    """

    def __init__(self, specs: Iterable[StageSpec]) -> None:
        self._stages = {spec.follows: FollowedStage() for spec in specs if spec.follows}

    def __contains__(self, name: str) -> bool:
        """True when another stage follows this one."""
        return name in self._stages

    def begin(self, name: str, live: bool) -> None:
        """Report that the stage's process runs (`live`) or that its stored outputs are reused."""
        if stage := self._stages.get(name):
            stage.live = live
            stage.begun.set()

    def end(self, name: str, ok: bool) -> None:
        """Report that the stage has ended; if `ok`, its outputs are recorded."""
        if stage := self._stages.get(name):
            stage.ok = ok
            stage.ended.set()
            stage.begun.set()

    def wait_begun(self, name: str) -> bool:
        """Wait until the stage has begun; True when its process runs."""
        stage = self._stages[name]
        stage.begun.wait()
        return stage.live

    def wait_ended(self, name: str) -> bool:
        """Wait until the stage has ended; True when it succeeded."""
        stage = self._stages[name]
        stage.ended.wait()
        return stage.ok

    def stop_after(self, name: str, job: Job) -> None:
        """Stop a follower's process after the stage `name` has ended: at once after a failure, else after FOLLOW_S."""
        threading.Thread(target=self._stop_after, args=(name, job), name=f"stop-after-{name}", daemon=True).start()

    def _stop_after(self, name: str, job: Job) -> None:
        if self.wait_ended(name):
            job.wait(FOLLOW_S)
        job.stop(GRACE_S)
