"""Types of flow parameters: names of files as dropdowns, numbers with bounds, changes as KEY=VALUE.

The names are read when the flow is deployed and again when it runs, from `configs/` in the working directory.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from stages.catalog import STAGES

AS_GIVEN = "as in the run file"
FIRST_CHANGE, EVERY_STAGE, LAST_STAGE = "the first stage that changed", "all stages", "the last stage"
CONFIGS = Path("configs")


def names_in(folder: str) -> list[str]:
    """Names of the YAML files of one folder of `configs/`."""
    return sorted(file.stem for file in (CONFIGS / folder).glob("*.yaml"))


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
