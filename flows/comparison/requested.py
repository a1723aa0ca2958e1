"""A comparison that somebody asked for in Prefect's UI: refused at once, named, logged, published as one artifact."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed
from prefect.transactions import Transaction

from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.store import Store
from flows.comparison.comparer import Comparer, CompareRequest, Result, StepEnd, Steps
from flows.comparison.pages import markdown, verdict
from flows.comparison.record import FAILED, INFEASIBLE, REFUSED, Comparison
from flows.context import RunContext
from flows.flow_run_watch import is_down, stopped_by_down
from flows.next_step import again, and_next, command
from flows.requested_run import CONFIGURE, CORRECTED, name_flow_run, remember
from flows.run_log import RunLog
from flows.run_pages.page import Page, links_of
from flows.run_pages.publication import Logger, create
from flows.stage_tasks import failed_state, stage_failed
from flows.tracking import StageEvent

NAMES = {INFEASIBLE: "Infeasible", REFUSED: "Refused", FAILED: "TryAgain"}
"""Row's state -> name of the state of its task."""


def run_comparison(request: CompareRequest, root: str) -> State[Any]:
    """Compare what `request` asks for, with the store at `root`, as the body of the current flow run."""
    logger = get_run_logger()
    log, tasks = RunLog(logger), _Tasks()

    def hear(event: StageEvent) -> None:
        if event.stage == "run":  # each run writes its stages into the log of its own flow run
            log.hear(event)

    same = command(root, again("compare", dataclasses.asdict(request)))
    try:
        store = Store(root)

        def configure() -> Comparer:
            comparer = Comparer(RunContext(store=store, listen=hear), request)
            name_flow_run(comparer.title)
            return comparer

        comparer = tasks.run(CONFIGURE, configure, lambda _: StepEnd(state="", why="every config can be run"))
        artifact = _Artifact(store, logger)

        def publish(comparison: Comparison) -> None:
            remember(base=comparison.measured_by)  # a copy reads this run's config, and not today's run file
            artifact.publish(comparison)

        found = comparer.compare(publish, tasks)
    except Refused as error:
        return failed_state(error, command(root, words_after_refusal(request, error)))
    except FleetuneError as error:
        return failed_state(error, same)
    except TerminationSignal:
        if not is_down(root):
            raise
        return stopped_by_down(same)
    next_command = command(root, next_words(request, found, comparer.simulated))
    return Completed(message=and_next(verdict(found), next_command), data=found.id)


def next_words(request: CompareRequest, found: Comparison, simulated: bool) -> list[str]:
    """The words of the command after a comparison: a run with the fastest strategy, or what that run has come to.

    After a training it shows the trained run, and where nothing can be trained, the plan.
    """
    if found.by_measurement:
        return ["show", found.by_measurement[0].run]
    trainable = [row for row in found.by_forecast if not row.untrainable]
    if simulated or not trainable:
        return ["show", found.by_forecast[0].run, "plan"]
    return again("finetune", dataclasses.asdict(request.run_of(trainable[0].name)))


def words_after_refusal(request: CompareRequest, error: Refused) -> list[str]:
    """The words of the command after a refusal: the runs that a base can name, or the same comparison, once corrected,
    without training: it starts with its plans."""
    if str(error).startswith("base: "):
        return ["runs"]
    return [*again("compare", dataclasses.asdict(dataclasses.replace(request, train=False))), *CORRECTED]


class _Tasks(Steps):
    """Shows each step as a task of the flow run, whose state gives its reason."""

    def run(self, name: str, work: Callable[[], Result], end: Callable[[Result], StepEnd]) -> Result:
        """The result of `work`, which a task does. Raises the error of the step."""
        results: list[Result] = []
        errors: list[FleetuneError | TerminationSignal] = []

        @task(name=name, task_run_name=name, persist_result=False, log_prints=False, cache_policy=NO_CACHE)
        def step() -> State[Any]:
            try:
                with _no_transaction():
                    results.append(work())
            except FleetuneError as error:
                errors.append(error)
                return stage_failed(error)
            except TerminationSignal as error:
                errors.append(error)
                return Cancelled(message="stopped; the same comparison goes on from what is finished")
            ended = end(results[0])
            if ended.state in NAMES:
                return Failed(name=NAMES[ended.state], message=ended.why)
            return Completed(message=ended.why)

        state: State[Any] = step(return_state=True)
        if errors or not results:
            raise errors[0] if errors else TryAgain(f"{name}: {state.message}")
        return results[0]


@contextmanager
def _no_transaction() -> Iterator[None]:
    """Hides the transaction of the current task from runs that it starts: Prefect would say of all their stages, which
    are stored, that they were rolled back with a task that fails or is cancelled."""
    token = Transaction.__var__.set(None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        Transaction.__var__.reset(token)


class _Artifact:
    """The one artifact of a comparison: created with its first part, and replaced as it goes on."""

    def __init__(self, store: Store, logger: Logger) -> None:
        self._store, self._logger = store, logger
        self._id: UUID | None = None

    def publish(self, comparison: Comparison) -> None:
        """Show the comparison as far as it has come; a failure is a warning, and never an error of the comparison."""
        try:
            self._publish(markdown(comparison, links_of(self._store)), f"{comparison.name}-compare")
        except Exception as error:
            self._logger.warning("the page of this comparison could not be published (%s)", error)

    def _publish(self, page: Page, name: str) -> None:
        if self._id is None:
            self._id = create(page, name, UUID(flow_run.id))
            return
        with get_client(sync_client=True) as client:
            client.update_artifact(self._id, ArtifactUpdate(data=page.markdown, description=page.description))
