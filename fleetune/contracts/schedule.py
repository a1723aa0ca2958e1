"""The times at which `fleetune up` starts a run."""

from fleetune.contracts.record import positive, record
from fleetune.errors import Refused


@record
class Schedule:
    """The `schedule` section of a run: `fleetune up` starts the run at these times."""

    cron: str | None = None
    """Minute, hour, day of the month, month and day of the week, such as `0 2 * * *`."""
    every_s: float | None = None
    """Seconds from one start to the next."""
    timezone: str | None = None
    """Time zone of `cron`, such as Europe/Berlin; UTC by default."""
    active: bool = True
    """False: the schedule is made switched off, and is switched on in Prefect's UI."""

    def __post_init__(self) -> None:
        if self.cron is None and self.every_s is None:
            raise Refused('schedule: give cron ("0 2 * * *": every night at two) or every_s (seconds)')
        if self.cron is not None and self.every_s is not None:
            raise Refused(f"schedule: cron {self.cron!r} and every_s {self.every_s} contradict each other; give one")
        if self.every_s is not None:
            positive("schedule", every_s=self.every_s)
        if self.timezone is not None and self.cron is None:
            raise Refused(f"schedule: timezone {self.timezone!r} belongs to cron; leave it out beside every_s")
