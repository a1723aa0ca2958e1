"""How a stage is started: `python -m stages.NAME --task task.json`."""

from typing import Any

from fleetune.contracts.record import record


@record
class StageTask:
    """The whole of what a stage may read; folders are absolute paths on the machine that runs it."""

    stage: str
    run: str
    seed: int
    config: dict[str, Any]
    """The slice of the run's config that this stage reads."""
    inputs: dict[str, str]
    """kind of artifact -> read-only folder"""
    output: str
    """Folder; the stage writes `output/KIND/...` for each artifact it makes."""
    work: str
    """Folder that outlives an interrupted attempt of the same key (checkpoints to resume from, logs)."""
    cache: str = ""
    """Folder that outlives runs and keys, for what a stage can use again under other inputs; not made yet, perhaps.
    Empty: none."""
    anew: bool = False
    """Nothing in the cache counts: what the stage finds now takes its place."""
