"""A comparison that somebody asked for in Prefect's UI: refused at once, named, logged, published as one artifact."""

from typing import Any
from uuid import UUID

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Completed

from fleetune.errors import FleetuneError
from fleetune.store import Store
from flows.comparison import archive
from flows.comparison.comparer import Comparer, CompareRequest
from flows.comparison.pages import markdown, verdict
from flows.comparison.record import Comparison
from flows.context import RunContext
from flows.requested_run import name_flow_run, remember
from flows.run_log import RunLog
from flows.service.record import ServiceFiles, store_path
from flows.stage_tasks import failed_state


def run_comparison(request: CompareRequest, root: str) -> State[Any]:
    """Compare what `request` asks for, with the store at `root`, as the body of the current flow run."""
    log = RunLog(get_run_logger())
    try:
        store = Store(root)
        comparer = Comparer(RunContext(store=store, listen=log.hear), request)
        name_flow_run(comparer.title)
        artifact = _Artifact(store)

        def publish(comparison: Comparison) -> None:
            remember(base=comparison.measured_by)  # a copy reads this run's config, and not today's run file
            artifact.publish(comparison)

        found = comparer.compare(publish)
    except FleetuneError as error:
        return failed_state(error)
    return Completed(message=verdict(found), data=found.id)


class _Artifact:
    """The one artifact of a comparison: created with its first part, and replaced as it goes on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._id: UUID | None = None

    def publish(self, comparison: Comparison) -> None:
        """Show the comparison as far as it has come on the page of the flow run."""
        text = markdown(comparison, self._links(comparison))
        if self._id is None:
            key = f"{comparison.name}-compare".lower().replace(".", "-").replace("_", "-")
            made: Any = create_markdown_artifact(markdown=text, key=key, description=verdict(comparison))
            self._id = made
            return
        with get_client(sync_client=True) as client:
            client.update_artifact(self._id, ArtifactUpdate(data=text, description=verdict(comparison)))

    def _links(self, comparison: Comparison) -> tuple[str, ...]:
        """Links to the pages of the comparison and of its runs, where the store's pages are served."""
        files = ServiceFiles(self._store.local)
        service = files.running()
        if service is None:
            return ()
        base = f"{service.address}{store_path(files.auth_string(service))}"
        runs = [f"[{row.name}]({base}/runs/{row.run})" for row in comparison.strategies if row.run]
        page = f"[This comparison]({base}/comparisons/{comparison.id}/{archive.PAGE}) in the store."
        return (page, f"Runs: {', '.join(runs)}" if runs else "")
