"""Work on data that lie on devices, done by a process of each device at its own site.

Three occasions: the digests, before stages are reused (`reported_digests`); the survey, from which all get the same
class ids (`survey_devices`); the arrays, in a folder of the device's own, before training (`prepare_on_devices`).
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.fleet_request import FleetRequest
from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import BUILT_IN, DataRequest, ModelRequest
from fleetune.contracts.task import Progress, ignore_progress, message_of
from fleetune.data.local_data import (
    DIGEST,
    ERROR,
    PREPARED,
    PROGRESS,
    SURVEYED,
    LocalSurvey,
    LocalTask,
    check_agreement,
    public_labels,
)
from fleetune.data.prepared_data import PIXELS, LocalSource, PreparedData
from fleetune.errors import Refused, TryAgain, by_exit_code
from fleetune.launching import MODEL_MODULES, Command, Job, Sites, describe_exit, open_sites
from fleetune.launching.job import exit_code_after_output
from fleetune.launching.placement import FleetPlacement
from fleetune.launching.running_jobs import RunningJobs
from fleetune.models.source import local_folders, with_local_source

MODULE = "fleetune.data.local_data"
TASK, LOG = "task.json", "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """Where and with what devices read their own data."""

    sites: Sites
    """Already open."""
    sources: Mapping[str, str]
    """Device -> its source."""
    model: ModelRequest
    work: Path
    """Folder here for tasks and logs, which hold no samples."""
    progress: Progress = ignore_progress


def reported_digests(fleet: FleetRequest, request: DataRequest, task: str) -> dict[str, str]:
    """Return device -> content digest of its own data, which it computes itself."""
    spec = InputSpec(task=task)
    with TemporaryDirectory(prefix="fleetune-") as folder, owners_sites(fleet, request) as sites:
        tasks = {d: LocalTask(answer=DIGEST, request=_own(request, s), spec=spec) for d, s in request.local.items()}
        found = _run(sites, {d: _command(t, Path(folder) / d) for d, t in tasks.items()}, ignore_progress)
    return {device: str(found[device]["digest"]) for device in request.local}


def owners_sites(fleet: FleetRequest, request: DataRequest) -> Sites:
    """Return the sites, to be entered, of the devices that have data of their own."""
    placement = FleetPlacement.from_request(fleet)
    owners = tuple(each for each in placement.devices if each.device in request.local)
    return open_sites(replace(placement, devices=owners, links=None), lambda text: None)


def survey_devices(work: DeviceWork, request: DataRequest) -> dict[str, LocalSurvey]:
    """Return what each device reports of its data. Refused: labels are numbers in one source and words in another.

    request: columns and limits, which hold for all sources.
    """
    from fleetune.models.model_inputs import input_spec  # takes seconds, which digests do not need

    spec = input_spec(work.model)
    known = public_labels(request, spec)
    tasks = {
        d: LocalTask(answer=SURVEYED, request=_own(request, s), spec=spec, known_labels=known)
        for d, s in work.sources.items()
    }
    found = _run(work.sites, {d: _command(t, work.work / "local" / d) for d, t in tasks.items()}, work.progress)
    surveys = {d: json_io.load(LocalSurvey, found[d], f"answer of {d}") for d in work.sources}
    check_agreement({"data.source": known, **{f"data.local.{d}": each.labels for d, each in surveys.items()}})
    return surveys


def prepare_on_devices(
    work: DeviceWork, common: Path, seed: int, note: Callable[[str], None] = lambda sentence: None
) -> dict[str, tuple[Path, int]]:
    """Have each device prepare its data in a folder of its own; return device -> that folder and its sample count.

    common: the prepared data of `data.source`, which hold what the devices have agreed on. note: receives a sentence
    on samples that are cut. TryAgain: a source was changed since the survey.
    """
    data = PreparedData(common)
    from fleetune.models.model_inputs import input_spec  # as above

    agreed, spec = data.info.local, input_spec(with_local_source(work.model))
    if agreed is None:
        raise Refused(f"{common}: prepared without data.local; prepare the data again")
    shapes = [array.shape[-2:] for split in data.info.splits for array in split.arrays if array.name == PIXELS]
    digests = {each.device: each.digest for each in agreed.sources}
    own = tuple(folder for folder in (spec.tokenizer, spec.image_processor) if folder)  # also those of a package
    reads = tuple(dict.fromkeys((*local_folders(work.model), *own)))
    commands, folders = {}, {}
    for device, source in work.sources.items():
        folders[device] = work.work / "devices" / device
        task = LocalTask(
            answer=PREPARED,
            request=_own(agreed.request, source),
            spec=spec,
            seed=seed,
            digest=digests[device],
            label_ids=agreed.label_ids,
            labels=data.labels,
            image_shape=(shapes[0][0], shapes[0][1]) if shapes else (0, 0),
            folder=str(folders[device] / "data"),
        )
        commands[device] = replace(
            _command(task, work.work / "local" / device, reads), device_writes=(folders[device],)
        )
    found = _run(work.sites, commands, work.progress)
    reports = {d: json_io.load(LocalSource, found[d], f"answer of {d}") for d in work.sources}
    for device, report in reports.items():
        for sentence in report.cut:
            note(f"data.local.{device}: {sentence}")
    return {device: (folders[device] / "data", report.samples) for device, report in reports.items()}


def _own(request: DataRequest, source: str) -> DataRequest:
    return replace(request, source=source, files=(), validation=None, local={})


def _command(task: LocalTask, folder: Path, reads: tuple[Path, ...] = ()) -> Command:
    """Return the command of a task, whose file is written into a folder."""
    json_io.write(task, folder / TASK)
    (folder / LOG).unlink(missing_ok=True)  # of an earlier attempt, whose last line would explain this one
    source = Path(task.request.source)
    return Command(
        module=MODULE,
        arguments=("--task", str(folder / TASK)),
        preloads=MODEL_MODULES if task.answer == PREPARED else (),  # a stage has a server of these
        log=folder / LOG,
        reads=(folder, *reads),
        device_reads=(source,) if task.request.source not in BUILT_IN and source.is_absolute() else (),
    )


def _run(sites: Sites, commands: Mapping[str, Command], progress: Progress) -> dict[str, dict[str, Any]]:
    """Run one command per device, all at once; return their answers. The first failure stops the others."""
    jobs = RunningJobs()
    with ThreadPoolExecutor(max_workers=len(commands)) as pool:
        futures = {
            pool.submit(_answer, device, sites.launcher(device).start, command, jobs, progress): device
            for device, command in commands.items()
        }
        try:
            return {futures[future]: future.result() for future in as_completed(futures)}
        except BaseException:
            jobs.stop()
            raise


def _answer(
    device: str, start: Callable[[Command], Job], command: Command, jobs: RunningJobs, progress: Progress
) -> dict[str, Any]:
    """Run a command to its end and return its answer; raise the error that the device reports, naming the device."""
    job = start(command)
    jobs.add(job)
    last: dict[str, Any] = {}
    for line in job.lines():
        last = message_of(line) or last
        if last.get("event") == PROGRESS:
            progress(f"{last['what']} on {device}", last["done"], last["total"], last["unit"])
    code = exit_code_after_output(job, f"data.local.{device}")
    job.stop()
    event = last.pop("event", "")
    if code == 0 and event in (DIGEST, SURVEYED, PREPARED):
        return last
    if event == ERROR:
        raise by_exit_code(code or TryAgain.exit_code, f"data.local.{device}: {last['message']}")
    last_line = job.tail(1).strip()  # the log goes with the stage
    said = f"; its last line was: {last_line}" if last_line else ""
    raise TryAgain(f"data.local.{device}: reading its data {describe_exit(code)}{said}")
