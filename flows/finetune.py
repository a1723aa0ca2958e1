"""The Prefect flow `finetune`: one task per stage, and a Prefect artifact with the record of each stage.

Prefect schedules and displays; the store decides what is reused. A reused stage ends in a state named Cached; the
result of a task is a mapping of digests. Annotations are not postponed,
because Prefect could not read the parameters of a served flow then.
"""

from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.states import Completed, Failed

from fleetune.contracts.run_config import RunConfig
from fleetune.errors import FleetuneError
from fleetune.store import Store
from flows import preflight
from flows.context import RunContext, StageSelection
from flows.preflight import predict_run
from flows.runner import Runner
from stages.catalog import waves


@flow(name="finetune", flow_run_name="{config.name}", persist_result=False, log_prints=False)
def finetune(
    config: RunConfig,
    root: str = "runs",
    from_stage: str | None = None,
    only: str | None = None,
    until: str | None = None,
) -> Any:
    """Fine-tune by `config`, with artifacts and run records in the store at `root`.

    `from_stage`: earlier stages must be stored. `only`: run this stage on its stored inputs and stop. `until`: the
    last stage.
    """
    runner = Runner(
        RunContext(store=Store(root)), config, StageSelection(from_stage=from_stage, only=only, until=until)
    )
    preflight.validate(predict_run(runner))
    with runner:
        return perform(runner)


def perform(runner: Runner) -> State[Any]:
    """Run every stage as a task of the current flow run; the state holds the run's id or its first error."""
    try:
        for wave in waves(runner.specs):
            futures = [_stage_task(spec.name).submit(runner) for spec in wave]
            states = [_final_state(future) for future in futures]
            failed = next((state for state in states if not state.is_completed()), None)
            if failed is not None:
                return Failed(message=failed.message)
    except BaseException:
        runner.stop()  # before Prefect waits for its threads
        raise
    return Completed(message=f"run {runner.record.id}", data=runner.record.id)


def _final_state(future: PrefectFuture[Any]) -> State[Any]:
    future.wait()
    return future.state


def _stage_task(name: str) -> Any:
    """The Prefect task of one stage."""

    @task(name=name, task_run_name=name, persist_result=False, log_prints=False, cache_policy=NO_CACHE)
    def stage(runner: Runner) -> State[Any]:
        try:
            outcome = runner.run_stage(name)
        except FleetuneError as error:
            _publish_record(runner, name)
            return Failed(message=str(error))
        _publish_record(runner, name)
        ended = "Cached" if outcome.how == "reused" else None
        return Completed(name=ended, message=outcome.why, data=outcome.outputs)

    return stage


def _publish_record(runner: Runner, name: str) -> None:
    """Publish a table of the stage's record on the page of the flow run."""
    said = runner.record.stage(name)
    rows = [
        ("run", runner.record.id),
        ("why", said.why),
        ("key", said.key),
        *((f"in: {kind}", digest) for kind, digest in said.inputs.items()),
        *((f"out: {kind}", _artifact_path(runner, kind, digest)) for kind, digest in said.outputs.items()),
        ("error", said.error),
    ]
    lines = [f"| {what} | {_cell(text)} |" for what, text in rows if text]
    create_markdown_artifact(
        markdown="\n".join([f"| {name} | {said.state} |", "|---|---|", *lines]),
        key=f"{runner.record.config.name}-{name}".lower().replace(".", "-").replace("_", "-"),
        description=f"Stage {name} of run {runner.record.id}",
    )


def _artifact_path(runner: Runner, kind: str, digest: str) -> str:
    return str(Path(runner.context.store.root) / "artifacts" / kind / digest)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
