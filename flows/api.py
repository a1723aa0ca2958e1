"""Python entry point of the pipeline: `run` takes a config and returns the record of its run.

The config is checked first, and a dry run starts nothing. Then Prefect connects to the user's server (PREFECT_API_URL),
to the one that `fleetune up` has started for the store, or to an embedded one that ends with this process. Deployments
use the flow `flows/finetune.py:finetune`.
"""

import errno
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetune import filesystem
from fleetune.contracts.run_config import RunConfig
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.store import RunRecord, Store
from flows import configs, prefect_server, preflight
from flows.context import RunContext, StageSelection
from flows.preflight import predict_run
from flows.run_log import CommandLog
from flows.runner import Runner
from flows.service_files import HOME, PRIVATE
from flows.tracking import EventListener, StageEvent, both, ignore_event

RunWith = Callable[[RunContext, RunConfig, StageSelection], RunRecord]
"""How a config is run in a context: by `run_with`, or by what takes its place."""


def run(
    config: RunConfig,
    *,
    root: Path,
    selection: StageSelection | None = None,
    dry_run: bool = False,
    listen: EventListener = ignore_event,
) -> RunRecord:
    """Run the pipeline by `config` with its store at `root`; return the record that the store keeps.

    `dry_run` writes nothing and returns a record with state `planned`. Raises the FleetuneError of the stage that
    failed; the stored record names the stage and the reason.
    """
    return run_with(RunContext(store=Store(root), listen=listen), config, selection or StageSelection(), dry_run)


def run_with(context: RunContext, config: RunConfig, selection: StageSelection, dry_run: bool = False) -> RunRecord:
    """Run the pipeline as `run` does, in a context that the caller made."""
    return run_made(context, lambda told: Runner(told, config, selection), dry_run)


def run_made(context: RunContext, make: Callable[[RunContext], Runner], dry_run: bool = False) -> RunRecord:
    """Run what `make` makes of the context, as `run` does."""
    log = CommandLog()
    runner = make(replace(context, listen=both(context.listen, log.hear)))
    planned = predict_run(runner)  # refuses stages that must be stored and are not, before anything starts
    preflight.validate(planned, dry_run)
    if dry_run:
        return planned
    home = context.store.local / HOME
    prefect_server.check_configured_server(home)
    used = filesystem.folders(context.store.local)
    try:
        check_writable(context.store.local)
        context.listen(StageEvent(stage="run", kind="note", text="connecting to Prefect"))
        prefect_server.ensure(home)
        with runner:
            context.listen(StageEvent(stage="run", kind="started", text=runner.record.id))
            _through_prefect(runner, log)
    except FleetuneError:
        raise
    except Exception as error:
        if known := runner.error or filesystem.disk_error(error, used) or filesystem.find_full_disk(used):
            raise known from error
        raise
    if runner.error is not None:
        raise runner.error
    return runner.record


def check_writable(folder: Path) -> None:
    """Create the folder, for its owner alone, as it will hold copies of data; one that is there keeps its rights.

    Writes a test file. Refused when that is not permitted, OSError when the disk is full.
    """
    try:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(filesystem.FULL_BYTES))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            error.filename = str(folder)
            raise
        raise Refused(f"--root {folder}: cannot be written to ({error.strerror}); choose another folder") from None


def _through_prefect(runner: Runner, log: CommandLog) -> None:
    """Run every stage as a task of a Prefect flow; TryAgain when Prefect ends the flow by itself.

    An interruption is raised again: as KeyboardInterrupt, or as it came to the flow run that this one is a part of.
    """
    from prefect import flow
    from prefect.context import FlowRunContext
    from prefect.exceptions import TerminationSignal
    from prefect.logging import get_run_logger
    from prefect.runtime import flow_run

    from flows.flow_run_watch import stopped_by_hand
    from flows.interrupts import defer_interrupts_of_flows
    from flows.service_files import hold
    from flows.stage_tasks import go_on_command, perform

    @flow(name="finetune", flow_run_name=configs.title(runner.config), persist_result=False, validate_parameters=False)
    def finetune(base: str) -> Any:
        lock = hold(runner.context.store.local, flow_run.id)
        log.connect(get_run_logger(), frozenset(spec.name for spec in runner.specs if spec.follows))
        try:
            with log.beating():
                return perform(runner)
        except (KeyboardInterrupt, TerminationSignal) as error:
            interrupts.append(error)
            return stopped_by_hand(go_on_command(runner), in_part)
        finally:
            log.flush()
            lock.release()

    defer_interrupts_of_flows()
    interrupts: list[BaseException] = []
    in_part = FlowRunContext.get() is not None
    state: Any = finetune(runner.record.id, return_state=True)
    if interrupts:
        raise interrupts[0] if in_part else KeyboardInterrupt
    if not state.is_completed() and runner.error is None:
        if full := filesystem.find_full_disk(filesystem.folders(runner.context.store.local)):
            raise full
        raise TryAgain(f"Prefect ended the run though no stage failed ({state.message}); run it again to go on")
