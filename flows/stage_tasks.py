"""The stages of a run as Prefect tasks, and the pages that show the run.

Prefect schedules and displays; the store decides what is reused. A reused stage ends in a state named Cached, one that
was cancelled with its run in a state Cancelled; the result of a task is a mapping of digests.
"""

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from fleetune.errors import FleetuneError, Infeasible, Refused, TryAgain
from flows.flow_run_watch import FlowRunWatch
from flows.inspection.publication import Publication
from flows.promotion import command
from flows.runner import Runner
from flows.tracking import reason
from stages.catalog import waves


def perform(runner: Runner) -> State[Any]:
    """Run every stage as a task of the current flow run; the state holds the run's id or its first error."""
    with FlowRunWatch(runner) as watch, Publication(runner, flow_run.id, get_run_logger()) as publication:
        return _perform(runner, watch, publication)


def _perform(runner: Runner, watch: FlowRunWatch, publication: Publication) -> State[Any]:
    try:
        for wave in waves(runner.specs):
            futures = [_stage_task(spec.name, publication).submit(runner) for spec in wave]
            states = [_ended(future) for future in futures]
            if (ended := watch.ended()) is not None:
                return ended
            failed = next((state for state in states if not state.is_completed()), None)
            if failed is not None:
                return failed_state(runner.error) if runner.error else Failed(message=failed.message)
    except BaseException:
        runner.stop()  # before Prefect waits for its threads
        raise
    try:
        return _completed(runner)
    except FleetuneError as error:
        return failed_state(error)


def _completed(runner: Runner) -> State[Any]:
    """The state of a run whose stages are done; of one that may promote its model, Promoted or NotBetter."""
    run = runner.record
    decided = runner.decide_promotion()
    if decided is None:
        return Completed(message=f"run {run.id}", data=run.id)
    if decided.promoted:
        name, words = "Promoted", "models"
    else:
        name, words = "NotBetter", f"show {run.id}"
    message = f"{decided.why}; next: {command(runner.context.store, words)}"
    return Completed(name=name, message=message, data=run.id)


def failed_state(error: FleetuneError) -> State[Any]:
    """A failed state whose name says whether a retry can help: Refused, Infeasible or TryAgain."""
    kinds = {Refused: "Refused", Infeasible: "Infeasible"}
    return Failed(name=kinds.get(type(error), "TryAgain"), message=str(error))


def _ended(future: PrefectFuture[Any]) -> State[Any]:
    future.wait()
    return future.state


def _stage_task(name: str, publication: Publication) -> Any:
    """The Prefect task of one stage."""

    @task(name=name, task_run_name=name, persist_result=False, log_prints=False, cache_policy=NO_CACHE)
    def stage(runner: Runner) -> State[Any]:
        try:
            outcome = runner.run_stage(name)
        except FleetuneError as error:
            if runner.stopped and isinstance(error, TryAgain):
                return Cancelled(message=str(error))
            publication.update()
            return failed_state(error)
        if outcome.how == "stopped":
            with_run = "stopped with its run; a retry goes on from what is finished"
            return Cancelled(message=with_run if runner.stopped else reason(outcome.why))
        publication.update()
        ended = "Cached" if outcome.how == "reused" else None
        return Completed(name=ended, message=reason(outcome.why), data=outcome.outputs)

    return stage
