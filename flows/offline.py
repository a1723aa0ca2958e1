"""A stage's task for a place without a network: what it would look up by name is named by its folder."""

import dataclasses
from pathlib import Path

from fleetune.contracts import wire
from fleetune.contracts.config.model import ModelRequest
from fleetune.contracts.task import StageTask
from stages.catalog import StageEntry


def offline(row: StageEntry, task: StageTask, model: ModelRequest) -> tuple[StageTask, tuple[Path, ...]]:
    """The task, and the folders outside the store that it reads."""
    if "model" not in row.config:
        return task, ()
    from fleetune.models.source import folders, settled  # imports transformers: only for stages that do as well

    config = {**task.config, "model": wire.dump(settled(model))}
    return dataclasses.replace(task, config=config), folders(model)
