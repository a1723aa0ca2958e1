"""`python -m flows.chaos.training --task FILE`: stage train, while faults befall its devices and this process.

They lie in the work folder, beside the marks of those that have happened.
"""

import os
import signal
from dataclasses import replace

from fleetune.contracts import json_io
from fleetune.launching import Launcher
from fleetune.launching.placement import ChangedSites
from fleetune.training.faults import FaultyLauncher, leave_mark
from fleetune.training.task import TrainingTask
from flows.chaos.schedule import Schedule
from stages.entry_point import StageContext, main
from stages.train import train

SCHEDULE, MARKS = "schedule.json", "marks"
LOGGED = "commit logged"
"""The point of a coordinator's end."""


def train_with_faults(context: StageContext) -> None:
    """Train, while the faults of the schedule happen that have not happened yet.

    All links lead through the relays that can break them, in the training without faults and after the last one, too:
    they slow a round by some percent, which would pass for a loss.
    """
    schedule, marks = json_io.read(Schedule, context.work / SCHEDULE), context.work / MARKS
    marks.mkdir(exist_ok=True)

    def logged(round: int) -> None:
        for end in schedule.coordinator:
            if round >= end.round and leave_mark(marks, end.number, LOGGED, round):
                os.kill(os.getpid(), signal.SIGKILL)

    def faulty(launcher: Launcher) -> Launcher:
        return FaultyLauncher(launcher, schedule.devices, marks, relayed=True)

    def with_faults(task: TrainingTask) -> TrainingTask:
        return replace(task, sites=ChangedSites(task.sites, faulty), logged=logged)

    train(context, with_faults)


if __name__ == "__main__":
    main(train_with_faults)
