"""Stages that run beside another one: they begin when it has begun and end soon after it has ended."""

import threading
from collections.abc import Iterable

from fleetune.launching import Job
from stages.catalog import StageSpec

FOLLOW_S, GRACE_S = 20.0, 5.0


class LeaderState:
    """What the followers of a stage need to know of it."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()
        self.live, self.ok = False, False


class Leaders:
    """The stages of a run that others run beside; questions about any other stage are answered harmlessly."""

    def __init__(self, specs: Iterable[StageSpec]) -> None:
        self._leaders = {spec.follows: LeaderState() for spec in specs if spec.follows}

    def begun(self, name: str, live: bool) -> None:
        """The stage's process runs (`live`), or its stored outputs are reused."""
        if leader := self._leaders.get(name):
            leader.live = live
            leader.begun.set()

    def ended(self, name: str, ok: bool) -> None:
        """The stage is over and, if `ok`, its outputs are recorded."""
        if leader := self._leaders.get(name):
            leader.ok = ok
            leader.ended.set()
            leader.begun.set()

    def wait_begun(self, name: str) -> bool:
        """Wait until there is something to follow; whether its process runs now."""
        leader = self._leaders[name]
        leader.begun.wait()
        return leader.live

    def wait_ended(self, name: str) -> bool:
        """Wait until the stage is over; whether it ended well."""
        leader = self._leaders[name]
        leader.ended.wait()
        return leader.ok

    def leads(self, name: str) -> bool:
        """Whether any stage runs beside this one."""
        return name in self._leaders

    def end_with(self, name: str, job: Job) -> None:
        """Have a follower's process end when its leader has: at once after a failure, else soon."""
        threading.Thread(target=self._end_with, args=(name, job), name=f"end-with-{name}", daemon=True).start()

    def _end_with(self, name: str, job: Job) -> None:
        if self.wait_ended(name):
            job.wait(FOLLOW_S)
        job.stop(GRACE_S)
