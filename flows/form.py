"""What people fill in when they start a run from Prefect's UI: flat parameters, and the run that they ask for.

Names of files are dropdowns, numbers have bounds, changes are KEY=VALUE. The names are read when the flow is deployed
and again when it runs, from `configs/` in the working directory. (No postponed annotations here: flows that are served
could not read their parameters.)
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fleetune.contracts.record import record
from fleetune.contracts.run_config import RunConfig
from fleetune.errors import Refused
from fleetune.store import RunRecord, Store
from flows import configs
from flows.context import StageSelection
from flows.promoted_start import in_this_store
from stages.catalog import STAGES

AS_GIVEN = "as in the run file"
FIRST_CHANGE, EVERY_STAGE, LAST_STAGE = "the first stage that changed", "all stages", "the last stage"
CONFIGS = Path("configs")
SECTIONS = ("fleet", "model", "data", "strategy")


def names_in(folder: str) -> list[str]:
    """Names of the YAML files of one folder of `configs/`."""
    return sorted(file.stem for file in (CONFIGS / folder).glob("*.yaml"))


def find_run_file(base: str) -> Path | None:
    """The run file that `base` names; None when it does not look like one."""
    for file in (CONFIGS / "runs" / f"{base}.yaml", Path(base)):
        if file.suffix in (".yaml", ".yml") and file.is_file():
            return file
    return None


def config_changes(values: Mapping[str, Any]) -> list[str]:
    """The changes that a form's values make to a config, as KEY=VALUE in the order in which they are applied."""
    named = {section: values.get(section, AS_GIVEN) for section in SECTIONS}
    numbers = {f"training.{name}": values.get(name, 0) for name in ("rounds", "learning_rate")}
    return [
        *(f"{section}={name}" for section, name in named.items() if name != AS_GIVEN),
        *(f"{key}={value}" for key, value in numbers.items() if value),
        *values.get("changes", ()),
    ]


def _one_of(neutral: str, names: list[str]) -> Any:
    return Field(json_schema_extra={"enum": [neutral, *names]})


STAGE_NAMES = [spec.name for spec in STAGES]

Strategy = Annotated[str, _one_of(AS_GIVEN, names_in("strategies"))]
StrategyName = Annotated[str, Field(json_schema_extra={"enum": list(names_in("strategies"))})]
Fleet = Annotated[str, _one_of(AS_GIVEN, names_in("fleets"))]
Model = Annotated[str, _one_of(AS_GIVEN, names_in("models"))]
Data = Annotated[str, _one_of(AS_GIVEN, names_in("data"))]
StartFrom = Annotated[str, _one_of(FIRST_CHANGE, STAGE_NAMES)]
Only = Annotated[str, _one_of(EVERY_STAGE, STAGE_NAMES)]
Until = Annotated[str, _one_of(LAST_STAGE, STAGE_NAMES)]
Rounds = Annotated[int, Field(ge=0)]
TargetLoss = Annotated[float, Field(ge=0)]
LearningRate = Annotated[float, Field(ge=0)]
Change = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+=.*$")]


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
    return configs.with_changes(in_this_store(store, past.config), request.sets(), past.id), past.id


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
