"""A form's values as a run: its config and the stages that were selected."""

import dataclasses
from pathlib import Path

from fleetune.contracts.record import record
from fleetune.contracts.run_config import RunConfig
from fleetune.errors import Refused
from fleetune.store import RunRecord, Store
from flows import configs
from flows.context import StageSelection
from flows.form.choices import (
    AS_GIVEN,
    EVERY_STAGE,
    FIRST_CHANGE,
    LAST_STAGE,
    config_changes,
    find_run_file,
    names_in,
)


@record
class RunRequest:
    """The values of the form of `finetune`; neutral values change nothing."""

    base: str
    """Name of a file in configs/runs, path of a run file, or the name of a past run."""
    strategy: str = AS_GIVEN
    fleet: str = AS_GIVEN
    model: str = AS_GIVEN
    data: str = AS_GIVEN
    rounds: int = 0
    learning_rate: float = 0.0
    changes: tuple[str, ...] = ()
    """KEY=VALUE each, applied after everything else."""
    start_from: str = FIRST_CHANGE
    only: str = EVERY_STAGE
    until: str = LAST_STAGE
    force: bool = False
    dry_run: bool = False

    def sets(self) -> list[str]:
        """The changes of the config as KEY=VALUE, in the order in which they are applied."""
        return config_changes(dataclasses.asdict(self))


def config_of(request: RunRequest, store: Store) -> tuple[RunConfig, str]:
    """The config that a request asks for, and the id of the past run it is based on (empty for a run file).

    A past run's config is read from its record, whatever has become of the run file. Refused with the parameter, the
    value and the allowed values.
    """
    file = _run_file(request.base)
    if file is not None:
        return configs.load(file, request.sets()), ""
    past = _past_run(request.base, store)
    return configs.with_changes(past.config, request.sets(), past.id), past.id


def selection_of(request: RunRequest, past: str) -> StageSelection:
    """The stages that a request selects; `past` is the run it is based on."""
    return StageSelection(
        from_stage=None if request.start_from == FIRST_CHANGE else request.start_from,
        only=None if request.only == EVERY_STAGE else request.only,
        until=None if request.until == LAST_STAGE else request.until,
        rerun=past or None,
        force=request.force,
    )


def _run_file(base: str) -> Path | None:
    """The run file that `base` names; None when it does not look like one."""
    if not base.strip():
        raise Refused(f"base: it is empty; give one of {', '.join(names_in('runs'))}, a run file, or a past run's id")
    return find_run_file(base)


def _past_run(base: str, store: Store) -> RunRecord:
    try:
        return store.runs.load(base)
    except Refused as error:
        raise Refused(
            f"base: {base!r} is neither a run file ({', '.join(names_in('runs'))}) nor a past run ({error})"
        ) from None
