"""The newest process of a device, as the coordinator knows it."""

from concurrent.futures import Future
from dataclasses import dataclass

from fleetune.launching import Job, describe_exit


@dataclass(slots=True)
class StartedWorker:
    """A device's worker. It is `here` from its start, or its return, to its loss."""

    here: bool = True
    job: Job | None = None
    """The newest that was started with the others, or has said hello."""
    starting: Future[Job] | None = None
    """One that is started again and has not said hello yet; starting it may take seconds."""
    address: str = ""
    """Where it listens, once it has said hello."""
    returned: bool = False
    used: bool = True
    """False for one that has come back, or is spare, and has had no part in a plan since."""
    limited: bool = False
    """True once it is held to its device's CPU share."""

    def adopt(self, job: Job) -> None:
        """Take a process for the newest."""
        self.job, self.here, self.limited = job, True, False

    def take_failure(self) -> str:
        """Return why a process that was started again does not come, once; '' while it may."""
        if self.starting is None or not self.starting.done():
            return ""
        if (error := self.starting.exception()) is not None:
            why = f"could not be started again: {error}"
        elif (code := self.starting.result().poll()) is not None:
            why = f"was started again and {describe_exit(code)}"
        else:
            return ""
        self.starting = None
        return why

    def take_all(self) -> list[Job]:
        """Return all its processes; what has not begun to start is not started any more."""
        starting, self.starting = self.starting, None
        begun = starting is not None and not starting.cancel() and starting.exception() is None
        both = [self.job, starting.result() if starting is not None and begun else None]
        return [job for job in both if job is not None]
