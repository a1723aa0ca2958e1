"""A comparison that somebody asked for in Prefect's UI: refused at once, named, logged, published as one artifact."""

import dataclasses
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Completed

from fleetune.errors import FleetuneError
from fleetune.store import Store
from flows.comparison.comparer import Comparer, CompareRequest
from flows.comparison.pages import markdown, verdict
from flows.comparison.record import Comparison
from flows.context import RunContext
from flows.inspection.links import links_of
from flows.inspection.page import Page
from flows.inspection.publication import Logger, create
from flows.next_step import again, command
from flows.requested_run import name_flow_run, remember
from flows.run_log import RunLog
from flows.stage_tasks import failed_state
from flows.stops import is_down, stopped_by_down


def run_comparison(request: CompareRequest, root: str) -> State[Any]:
    """Compare what `request` asks for, with the store at `root`, as the body of the current flow run."""
    logger = get_run_logger()
    log = RunLog(logger)
    try:
        store = Store(root)
        comparer = Comparer(RunContext(store=store, listen=log.hear), request)
        name_flow_run(comparer.title)
        artifact = _Artifact(store, logger)

        def publish(comparison: Comparison) -> None:
            remember(base=comparison.measured_by)  # a copy reads this run's config, and not today's run file
            artifact.publish(comparison)

        with log.beating():
            found = comparer.compare(publish)
    except FleetuneError as error:
        return failed_state(error, command(root, again("compare", dataclasses.asdict(request))))
    except TerminationSignal:
        if not is_down(root):
            raise
        return stopped_by_down(command(root, again("compare", dataclasses.asdict(request))))
    return Completed(message=verdict(found), data=found.id)


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
