"""Run files with a `schedule` as schedules of the deployment `finetune`. Schedules made in the UI are left alone."""

import datetime
import hashlib
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule

from fleetune.contracts import json_io
from fleetune.contracts.record import record
from fleetune.contracts.schedule import Schedule
from fleetune.errors import Refused
from flows import configs, yaml_file
from flows.service.cron_times import follow_cron
from stages.catalog import PLAN

OWN = "run-file-"
"""Slugs of schedules that come from run files begin like this; those of the UI have none."""


@record
class FileSchedule:
    """The schedule of one run file."""

    file: str
    """Its name without the suffix, which is the run's `base`."""
    schedule: Schedule
    until: str = ""
    """The last stage; empty for all. Runs on simulated devices end with their plan."""

    @property
    def slug(self) -> str:
        """Name of the schedule on the server: another one when the file asks for other times."""
        return f"{OWN}{self.file}-{hashlib.sha256(json_io.text(self.schedule).encode()).hexdigest()[:8]}"


@record
class ScheduledFiles:
    """What the run files of a folder ask for."""

    found: tuple[FileSchedule, ...]
    refused: dict[str, str]
    """Files that cannot be read -> why; their schedules stay as they are, so that their runs say what is wrong."""


def read_schedules(folder: Path) -> ScheduledFiles:
    """The schedules of all run files in `folder`."""
    found, refused = [], {}
    for file in sorted(folder.glob("*.yaml")):
        try:
            if "schedule" not in yaml_file.read(file):
                continue  # most files; checking one takes seconds
            config = configs.load(file)
        except Refused as error:
            refused[file.stem] = str(error)
            continue
        if config.schedule is not None:
            until = PLAN.name if config.fleet.simulated else ""
            found.append(FileSchedule(file=file.stem, schedule=config.schedule, until=until))
    return ScheduledFiles(found=tuple(found), refused=refused)


def update_schedules(client: SyncPrefectClient, deployment: UUID, files: ScheduledFiles) -> list[str]:
    """Create the schedules that are missing and delete those of run files that no longer ask for them.

    One that the server has already is not touched, so that it stays off when it was switched off. Returns a line for
    each change and each file that cannot be read.
    """
    told = [f"{name} cannot be scheduled: {why}" for name, why in files.refused.items()]
    wanted = {one.slug: one for one in files.found}
    there = {found.slug: found for found in client.read_deployment_schedules(deployment) if found.slug}
    for slug, found in there.items():
        file = slug.removeprefix(OWN).rpartition("-")[0]
        if slug.startswith(OWN) and slug not in wanted and file not in files.refused:
            client.delete_deployment_schedule(deployment, found.id)
            told.append(f"removed the schedule of {file}")
    for slug, one in wanted.items():
        if slug not in there:
            client.create_deployment_schedules(deployment, [_of_prefect(one)])
            told.append(f"{one.file} is scheduled {describe(one.schedule)}")
    return told


def describe(schedule: Schedule) -> str:
    """`at 0 2 * * * (UTC)`, `every 3600 s`; with a note when it is made switched off."""
    off = "" if schedule.active else ", switched off: the deployment's page has its switch"
    if schedule.cron is not None:
        return f"at {schedule.cron} ({schedule.timezone or 'UTC'}){off}"
    return f"every {schedule.every_s:g} s{off}"


def _of_prefect(one: FileSchedule) -> DeploymentScheduleCreate:
    times: SCHEDULE_TYPES
    if one.schedule.cron is not None:
        follow_cron()  # as the service does: whoever asks for its times in this process gets the same
        times = CronSchedule(cron=one.schedule.cron, timezone=one.schedule.timezone or "UTC")
    else:
        times = IntervalSchedule(interval=datetime.timedelta(seconds=one.schedule.every_s or 0.0))
    parameters = {"base": one.file, **({"until": one.until} if one.until else {})}
    return DeploymentScheduleCreate(schedule=times, active=one.schedule.active, parameters=parameters, slug=one.slug)
