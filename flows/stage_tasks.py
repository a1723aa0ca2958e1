"""The stages of a run as Prefect tasks, and the pages that show the run.

Prefect schedules and displays; the store decides what is reused. A reused stage ends in a state named Cached, one that
was cancelled with its run in a state Cancelled; the result of a task is a mapping of digests.
"""

from typing import TYPE_CHECKING, Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from fleetune.errors import FleetuneError, Infeasible, Refused, TryAgain
from flows.flow_run_watch import FlowRunWatch, is_down, stopped_by_down
from flows.next_step import and_next, command
from flows.runner import Runner
from flows.tracking import reason
from stages.catalog import waves

if TYPE_CHECKING:
    from flows.run_pages.publication import Publication


def perform(runner: Runner, go_on: str = "") -> State[Any]:
    """Run every stage as a task of the current flow run; the state holds the run's id or its first error.

    Its message ends with the next command. `go_on`: the one after TryAgain and Cancelled; see `go_on_command`.
    """
    from flows.run_pages.publication import Publication  # brings the clock's compiler, which no refusal needs
    from flows.trackers.tracking import Tracking

    next_command = go_on or go_on_command(runner)
    try:
        with (
            FlowRunWatch(runner) as watch,
            Publication(runner, flow_run.id, get_run_logger()) as publication,
            Tracking(runner),
        ):
            return _perform(runner, watch, publication, next_command)
    except TerminationSignal:
        if not is_down(runner.context.store.root):
            raise
        return stopped_by_down(next_command)


def go_on_command(runner: Runner) -> str:
    """The command that goes on with a run: `rerun`, or `evaluate` for one that was given another run's artifacts."""
    rerun = ["rerun", runner.record.id, *runner.selection.end_words]
    return command(runner.context.store.root, ["evaluate", runner.rerun_of] if runner.given else rerun)


def _perform(runner: Runner, watch: FlowRunWatch, publication: "Publication", go_on: str) -> State[Any]:
    try:
        for wave in waves(runner.specs):
            futures = [_stage_task(spec.name, publication).submit(runner) for spec in wave]
            states = [_ended(future) for future in futures]
            if (ended := watch.ended()) is not None:
                return with_next(ended, go_on)
            bad = next((state for state in states if not state.is_completed()), None)
            if bad is not None:
                return failed(runner, runner.error or TryAgain(bad.message or "a stage has failed"), go_on)
    except BaseException:
        runner.stop()  # before Prefect waits for its threads
        raise
    try:
        return completed(runner)
    except FleetuneError as error:
        return failed(runner, error, go_on)


def completed(runner: Runner) -> State[Any]:
    """The state of a run whose stages are done; of one that may promote its model, Promoted or NotBetter."""
    run, root = runner.record, runner.context.store.root
    decided = runner.decide_promotion()
    if decided is None:
        return Completed(message=and_next(f"run {run.id}", command(root, ["show", run.id])), data=run.id)
    if decided.promoted:
        name, words = "Promoted", ["models"]
    else:
        name, words = "NotBetter", ["show", run.id]
    return Completed(name=name, message=and_next(decided.why, command(root, words)), data=run.id)


def with_next(state: State[Any], next_command: str) -> State[Any]:
    """The state with the next command at the end of its message."""
    return state.model_copy(update={"message": and_next(state.message or str(state.name), next_command)})


def failed(runner: Runner, error: FleetuneError, go_on: str) -> State[Any]:
    """The state of a run that has begun: TryAgain names the command that goes on, others the one that shows more."""
    shown = command(runner.context.store.root, ["show", runner.record.id])
    return failed_state(error, go_on if isinstance(error, TryAgain) else shown)


def failed_state(error: FleetuneError, next_command: str) -> State[Any]:
    """A failed state whose name says whether a retry can help, Refused, Infeasible or TryAgain, and what to do next."""
    return Failed(name=_name(error), message=and_next(str(error), next_command))


def stage_failed(error: FleetuneError) -> State[Any]:
    """The state of one task that failed; what to do next stands in that of its flow run."""
    return Failed(name=_name(error), message=str(error))


def _name(error: FleetuneError) -> str:
    kinds = {Refused: "Refused", Infeasible: "Infeasible"}
    return kinds.get(type(error), "TryAgain")


def _ended(future: PrefectFuture[Any]) -> State[Any]:
    future.wait()
    return future.state


def _stage_task(name: str, publication: "Publication") -> Any:
    """The Prefect task of one stage."""

    @task(name=name, task_run_name=name, persist_result=False, log_prints=False, cache_policy=NO_CACHE)
    def stage(runner: Runner) -> State[Any]:
        try:
            outcome = runner.run_stage(name)
        except FleetuneError as error:
            if runner.stopped and isinstance(error, TryAgain):
                return Cancelled(message=str(error))
            publication.update()
            return stage_failed(error)
        if outcome.how == "stopped":
            with_run = "stopped with its run; a retry goes on from what is finished"
            return Cancelled(message=with_run if runner.stopped else reason(outcome.why))
        publication.update()
        ended = "Cached" if outcome.how == "reused" else None
        return Completed(name=ended, message=reason(outcome.why), data=outcome.outputs)

    return stage
