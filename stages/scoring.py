"""Starts processes that score checkpoints beside a training."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.record import record
from fleetune.contracts.task import message_of
from fleetune.errors import by_exit_code
from fleetune.launching import ProcessLauncher
from fleetune.launching.job import MODEL_MODULES, Command, Job, Launcher, describe_exit
from stages.entry_point import StageContext

SCORES = "scores.json"
SCORER = "stages.score"  # not in stage keys
"""What scores is what evaluates, reports included, so that every change of a report would train again."""


@record
class ScoreValues:
    """Content of scores.json."""

    values: dict[str, float]


class CheckpointScoring:
    """A process that scores one checkpoint."""

    def __init__(self, job: Job, result: Path) -> None:
        self._job, self._result = job, result

    def result(self) -> dict[str, float] | None:
        """Return the scores, or None while it computes; its error as it was said, where it failed."""
        code = self._job.poll()
        if code is None:
            return None
        if code == 0:
            return json_io.read(ScoreValues, self._result).values
        said = map(message_of, self._job.lines())
        messages = [each["message"] for each in said if each.get("event") == "error"]
        raise by_exit_code(code, messages[-1] if messages else f"scoring a checkpoint {describe_exit(code)}; run again")

    def stop(self) -> None:
        """End it."""
        self._job.stop()


def scorer(context: StageContext, launcher: Launcher | None = None) -> Callable[[Path], CheckpointScoring]:
    """Return what starts such a process, which reads the inputs of the stage and the checkpoint of a folder.

    launcher: None: of processes.
    """
    start = (launcher or ProcessLauncher()).start

    def begin(checkpoint: Path) -> CheckpointScoring:
        folder = context.work / "scoring"
        result = folder / SCORES
        result.unlink(missing_ok=True)
        inputs = {**context.task.inputs, "checkpoint": str(checkpoint)}
        json_io.write(replace(context.task, inputs=inputs, output=str(folder)), folder / "task.json")
        arguments = ("--task", str(folder / "task.json"))
        command = Command(module=SCORER, arguments=arguments, preloads=MODEL_MODULES, log=folder / "score.log")
        return CheckpointScoring(start(command), result)

    return begin
