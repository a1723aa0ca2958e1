"""A launcher whose commands freeze at once, and limits by which this is soon found.

`python -m tests.support.launching.freezing` is such a command: it stops itself, as the kernel would be told to.
"""

import os
import signal

from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.launching.life_watch import LifeWatch
from fleetune.monitoring import SilenceRule

WORDS = "showed no sign of life and was ended"


def watch_of(floor_s: float, ceiling_s: float) -> LifeWatch:
    """Limits of silence, and looks that are frequent for these."""
    limit = SilenceRule(activities=("",), gaps=3.0, floor_s=floor_s, ceiling_s=ceiling_s, mute_s=ceiling_s)
    return LifeWatch(limit=limit, look_s=floor_s / 10)


HASTY = watch_of(0.5, 0.5)
"""For what certainly freezes: shorter than what lives needs on a busy machine."""


class Freezing:
    """Starts a process that stops itself, whatever is asked for."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def start(self, command: Command) -> Job:
        """Start it with the log and the watch of the command."""
        frozen = Command(module=__spec__.name, log=command.log, watched=command.watched)
        self.jobs.append(ProcessLauncher(watch=HASTY).start(frozen))
        return self.jobs[-1]


if __name__ == "__main__":
    os.kill(os.getpid(), signal.SIGSTOP)
