"""The stages of a run as Prefect tasks, each with an artifact that shows its record.

Prefect schedules and displays; the store decides what is reused. A reused stage ends in a state named Cached, one that
was cancelled with its run in a state Cancelled; the result of a task is a mapping of digests.
"""

from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.states import Cancelled, Completed, Failed

from fleetune.errors import FleetuneError, Infeasible, Refused, TryAgain
from flows.runner import Runner
from stages.catalog import waves


def perform(runner: Runner) -> State[Any]:
    """Run every stage as a task of the current flow run; the state holds the run's id or its first error."""
    try:
        for wave in waves(runner.specs):
            futures = [_stage_task(spec.name).submit(runner) for spec in wave]
            states = [_ended(future) for future in futures]
            failed = next((state for state in states if not state.is_completed()), None)
            if failed is not None:
                return failed_state(runner.error) if runner.error else Failed(message=failed.message)
    except BaseException:
        runner.stop()  # before Prefect waits for its threads
        raise
    return Completed(message=f"run {runner.record.id}", data=runner.record.id)


def failed_state(error: FleetuneError) -> State[Any]:
    """A failed state whose name says whether a retry can help: Refused, Infeasible or TryAgain."""
    kinds = {Refused: "Refused", Infeasible: "Infeasible"}
    return Failed(name=kinds.get(type(error), "TryAgain"), message=str(error))


def _ended(future: PrefectFuture[Any]) -> State[Any]:
    future.wait()
    return future.state


def _stage_task(name: str) -> Any:
    """The Prefect task of one stage."""

    @task(name=name, task_run_name=name, persist_result=False, log_prints=False, cache_policy=NO_CACHE)
    def stage(runner: Runner) -> State[Any]:
        try:
            outcome = runner.run_stage(name)
        except FleetuneError as error:
            if runner.stopped and isinstance(error, TryAgain):
                return Cancelled(message=str(error))
            _publish(runner, name)
            return failed_state(error)
        if outcome.how == "stopped" and runner.stopped:
            return Cancelled(message="stopped with its run; a retry goes on from what is finished")
        _publish(runner, name)
        ended = "Cached" if outcome.how == "reused" else None
        return Completed(name=ended, message=outcome.why, data=outcome.outputs)

    return stage


def _publish(runner: Runner, name: str) -> None:
    """Publish a table of the stage's record on the page of the flow run."""
    said = runner.record.stage(name)
    rows = [
        ("run", runner.record.id),
        ("why", said.why),
        ("key", said.key),
        *((f"in: {kind}", digest) for kind, digest in said.inputs.items()),
        *((f"out: {kind}", _at(runner, kind, digest)) for kind, digest in said.outputs.items()),
        ("error", said.error),
    ]
    lines = [f"| {what} | {_cell(text)} |" for what, text in rows if text]
    create_markdown_artifact(
        markdown="\n".join([f"| {name} | {said.state} |", "|---|---|", *lines]),
        key=f"{runner.record.config.name}-{name}".lower().replace(".", "-").replace("_", "-"),
        description=f"Stage {name} of run {runner.record.id}",
    )


def _at(runner: Runner, kind: str, digest: str) -> str:
    return str(Path(runner.context.store.root) / "artifacts" / kind / digest)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
