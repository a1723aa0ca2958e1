"""Artifacts of a flow run: the overview and the history of its run, or the prediction of a dry run.

They are published beside the run: a server that is slow, gone or full neither fails nor delays its stages.
"""

import functools
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate

from fleetune.errors import FleetuneError
from fleetune.store import RunRecord, Store
from fleetune.store.runs import end_state
from flows.run_pages.difference import prediction
from flows.run_pages.overview import history, overview
from flows.run_pages.page import Page, links_of
from flows.runner import Runner
from stages.catalog import TRAIN

PAUSE_S = 2.0
"""Shortest time between two updates of the overview."""
TRAINING_S = 20.0
"""Time between two updates of the overview while the model is trained."""
END_S, INTERRUPTED_S = 75.0, 3.0
"""Longest wait for the last update, which a locked SQLite file may hold up for 60 s, and when the run is cancelled."""

Logger = logging.Logger | logging.LoggerAdapter[Any]


class Artifacts:
    """The artifacts of Prefect's server."""

    def create(self, page: Page, name: str, flow_run: UUID) -> UUID:
        """Create an artifact of a flow run; returns its id."""
        return create(page, name, flow_run)

    def update(self, artifact: UUID, page: Page) -> None:
        """Show another page in an artifact."""
        with get_client(sync_client=True) as client:
            client.update_artifact(artifact, ArtifactUpdate(data=page.markdown, description=page.description))


ARTIFACTS = Artifacts()


class Publication:
    """The overview and the history of one run; a context manager around the run's stages."""

    def __init__(self, runner: Runner, flow_run: str, logger: Logger, artifacts: Artifacts = ARTIFACTS) -> None:
        """`flow_run`: id of the flow run whose artifacts they are. `artifacts`: where they are published."""
        self._runner = runner
        self._flow_run = UUID(flow_run)
        self._logger = logger
        self._artifacts = artifacts
        self._due, self._over = threading.Event(), threading.Event()
        self._state = ""
        self._base = functools.cache(lambda: base_of(runner.context.store, runner.record, runner.rerun_of))
        self._overview: UUID | None = None
        self._worker = threading.Thread(target=self._work, name="publication", daemon=True)

    def __enter__(self) -> Self:
        self._worker.start()
        return self

    def update(self) -> None:
        """Publish the overview soon; returns at once."""
        self._due.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish how the run ended, and the history of its config."""
        interrupted = error is not None and not isinstance(error, Exception)
        self._state = end_state(self._runner.error or error, interrupted)
        self._over.set()
        self._due.set()
        self._worker.join(INTERRUPTED_S if interrupted else END_S)

    def _work(self) -> None:
        while not self._over.is_set():
            due = self._due.wait(TRAINING_S) or self._is_training()
            self._due.clear()
            if due and not self._over.is_set():
                self._try(self._publish_overview)
                self._over.wait(PAUSE_S)
        self._try(self._publish_overview)
        self._try(self._publish_history)

    def _is_training(self) -> bool:
        return any(stage.stage == TRAIN.name and stage.state == "running" for stage in self._runner.record.stages)

    def _try(self, publish: Callable[[], None]) -> None:
        """Publish; whatever goes wrong is a warning, and never an error of the run."""
        try:
            publish()
        except Exception as error:
            self._logger.warning("the page of this run could not be published (%s)", error)

    def _record(self) -> RunRecord:
        """The run's record; once its stages have ended, as its end will record it."""
        run = self._runner.record
        if not self._state:
            return run
        error, ended = self._runner.error, self._runner.context.store.clock().isoformat()
        code = error.exit_code if error else 0
        return replace(run, state=self._state, error=str(error or ""), exit_code=code, ended=ended)

    def _publish_overview(self) -> None:
        run, store = self._record(), self._runner.context.store
        page = overview(store, run, self._base(), links_of(store))
        if self._overview is None:
            self._overview = self._artifacts.create(page, f"{run.config.name}-overview", self._flow_run)
            return
        self._artifacts.update(self._overview, page)

    def _publish_history(self) -> None:
        run, store = self._record(), self._runner.context.store
        self._artifacts.create(history(store, run, links_of(store)), f"{run.config.name}-history", self._flow_run)


def publish_prediction(planned: RunRecord, store: Store, rerun_of: str, flow_run: str, logger: Logger) -> None:
    """Publish the page of a dry run; a failure is a warning."""
    try:
        page = prediction(planned, base_of(store, planned, rerun_of), links_of(store))
        create(page, f"{planned.config.name}-dry-run", UUID(flow_run))
    except Exception as error:
        logger.warning("the page of this dry run could not be published (%s)", error)


def create(page: Page, name: str, flow_run: UUID) -> UUID:
    """Create an artifact of a flow run; returns its id."""
    content = ArtifactCreate(
        key=key_of(name),
        type="markdown",
        data=page.markdown,
        description=page.description,
        flow_run_id=flow_run,
    )
    with get_client(sync_client=True) as client:
        return client.create_artifact(content).id


def key_of(name: str) -> str:
    """The name as a key of artifacts, which may have small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")


def base_of(store: Store, run: RunRecord, rerun_of: str) -> RunRecord | None:
    """The run that `run` is compared with: the one it was started from, else the one before it; None for the first."""
    if rerun_of:
        try:
            return store.runs.load(rerun_of)
        except FleetuneError:
            return None
    named = store.runs.named(run.config.name)
    before = [one for one in named if not one.aside and one.id != run.id and one.order <= run.order]
    return before[0] if before else None
