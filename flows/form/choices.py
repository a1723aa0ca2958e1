"""Types of flow parameters: names of files as dropdowns, numbers with bounds, changes as KEY=VALUE.

The names are read when the flow is deployed and again when it runs, from `configs/` in the working directory.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

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
