"""A pipeline that trains nothing."""

import dataclasses
from pathlib import Path
from typing import Any

from fleetune.store import RunRecord
from flows.cli.work import Work
from flows.context import RunContext, StageSelection
from flows.tracking import StageEvent
from tests.support.cli.runs import add_run

EVENTS = (
    StageEvent(stage="profile", kind="reused", text="reused: same key as small-0"),
    StageEvent(stage="train", kind="started", text="ran: training.rounds changed"),
    StageEvent(stage="train", kind="note", text="a remark"),
    StageEvent(stage="train", kind="progress", text="training", done=3, total=9, unit="samples"),
    StageEvent(stage="train", kind="done", text="ran: training.rounds changed", seconds=1.25),
)


class Pipeline(Work):
    """Stand-in for the pipeline: emits events of two stages, then stores a run or raises an error."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[tuple[Any, StageSelection, bool]] = []
        self.error: BaseException | None = None
        self.begun = True

    def run_with(self, context: RunContext, config: Any, selection: StageSelection, dry_run: bool = False) -> RunRecord:
        """As flows.api.run_with."""
        self.asked.append((config, selection, dry_run))
        if self.error and not self.begun:
            raise self.error
        context.listen(StageEvent(stage="run", kind="started", text=f"small-{len(self.asked)}"))
        for event in EVENTS:
            context.listen(event)
        made = add_run(self.root, len(self.asked))
        if self.error:
            key = made.stages[0].key
            context.store.work(key).joinpath("stage.log").touch()
            stages = (dataclasses.replace(made.stages[0], state="failed"), *made.stages[1:])
            context.store.runs.save(dataclasses.replace(made, state="failed", stages=stages))
            raise self.error
        return made
