"""Synchronises a stage with the stage that it follows: it starts after its leader and ends soon after it."""

import threading
from collections.abc import Iterable

from fleetune.launching import Job
from stages.catalog import StageSpec

FOLLOW_S, GRACE_S = 20.0, 5.0


class FollowedStage:
    """State of a stage that others follow."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()
        self.live, self.ok = False, False


class FollowedStages:
    """States of all stages of a run that others follow; methods ignore any other stage."""

    def __init__(self, specs: Iterable[StageSpec]) -> None:
        self._leaders = {spec.follows: FollowedStage() for spec in specs if spec.follows}

    def begun(self, name: str, live: bool) -> None:
        """Report that the stage's process runs (`live`) or that its stored outputs are reused."""
        if leader := self._leaders.get(name):
            leader.live = live
            leader.begun.set()

    def ended(self, name: str, ok: bool) -> None:
        """Report that the stage has ended; if `ok`, its outputs are recorded."""
        if leader := self._leaders.get(name):
            leader.ok = ok
            leader.ended.set()
            leader.begun.set()

    def wait_begun(self, name: str) -> bool:
        """Wait until the stage has begun; True when its process runs."""
        leader = self._leaders[name]
        leader.begun.wait()
        return leader.live

    def wait_ended(self, name: str) -> bool:
        """Wait until the stage has ended; True when it succeeded."""
        leader = self._leaders[name]
        leader.ended.wait()
        return leader.ok

    def leads(self, name: str) -> bool:
        """True when another stage follows this one."""
        return name in self._leaders

    def end_with(self, name: str, job: Job) -> None:
        """Stop a follower's process after its leader has ended: at once after a failure, else after FOLLOW_S."""
        threading.Thread(target=self._end_with, args=(name, job), name=f"end-with-{name}", daemon=True).start()

    def _end_with(self, name: str, job: Job) -> None:
        if self.wait_ended(name):
            job.wait(FOLLOW_S)
        job.stop(GRACE_S)
