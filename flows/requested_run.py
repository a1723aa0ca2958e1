"""The body of flow `finetune`: refuses an impossible request at once, names and logs the run, and makes the run its own
base, so that a copy of the flow run repeats the same config."""

import datetime
import re
from contextlib import suppress
from typing import Any

from coolname import data as coolname_data
from httpx import HTTPError  # of Prefect's client
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed

from fleetune.errors import FleetuneError
from fleetune.store import RunRecord, Store
from flows import configs, preflight
from flows.context import RunContext
from flows.form.request import RunRequest, config_of, selection_of
from flows.inspection.prediction import description
from flows.inspection.publication import publish_prediction
from flows.preflight import predict_run
from flows.promotion import command, same_as_last
from flows.run_log import RunLog
from flows.runner import Runner
from flows.service.automations import name_skipped
from flows.service.schedules import late_s
from flows.stage_tasks import failed_state, perform
from stages.catalog import STAGES

FOLLOWERS = frozenset(spec.name for spec in STAGES if spec.follows)
"""Stages whose progress is that of the stage they follow."""
NAME_OF_FORM = re.compile(r"[A-Z][a-z]+-[A-Z][A-Za-z' -]*")
"""Names that the form of the UI makes up, such as `Practical-Tang`."""


def run_request(request: RunRequest, root: str) -> State[Any]:
    """Run what `request` asks for, with the store at `root`, as the body of the current flow run.

    Runs that were not started beside it are named Skipped at its end: the automation that does so learns of runs which
    a schedule planned minutes before only a quarter of an hour later.
    """
    try:
        return _run(request, root)
    finally:
        with suppress(HTTPError), get_client(sync_client=True) as client:
            name_skipped(client)


def _run(request: RunRequest, root: str) -> State[Any]:
    log = RunLog(get_run_logger(), quiet=FOLLOWERS)
    if (skipped := _skipped(request.base)) is not None:
        return skipped
    try:
        store = Store(root)
        config, past = config_of(request, store)
        name_flow_run(configs.title(config) + (" · dry run" if request.dry_run else ""))
        runner = Runner(RunContext(store=store, listen=log.hear), config, selection_of(request, past))
        planned = predict_run(runner)
        preflight.validate(planned)
    except FleetuneError as error:
        return failed_state(error)
    if request.dry_run:
        publish_prediction(planned, store, runner.rerun_of, flow_run.id, get_run_logger())
        return Completed(name="DryRun", message=description(planned))
    if (nothing_new := _nothing_new(store, request, planned)) is not None:
        return nothing_new
    try:
        with runner:
            remember(base=runner.record.id)  # a copy reads this run's config, and not today's run file
            return perform(runner)
    except FleetuneError as error:
        return failed_state(error)


def _skipped(base: str) -> State[Any] | None:
    """The state of a scheduled run whose time is long past; None for any other run."""
    with get_client(sync_client=True) as client:
        late = late_s(client.read_flow_run(flow_run.id), datetime.datetime.now(datetime.UTC))
    if not late:
        return None
    again = f"next: start a run with base {base}, or wait for its next time"
    return Cancelled(name="Skipped", message=f"its time was {late / 60:.0f} min ago: the machine was off; {again}")


def _nothing_new(store: Store, request: RunRequest, planned: RunRecord) -> State[Any] | None:
    """The state of a run that could only repeat the last one about whose model was decided; None for any other."""
    whole = RunRequest(base=request.base, force=request.force)
    last = same_as_last(store, planned) if selection_of(request, "") == selection_of(whole, "") else ""
    if not last or request.force:
        return None
    message = f"data, start and settings are those of {last}; next: add data, or {command(store, f'show {last}')}"
    return Completed(name="NothingNew", message=message)


def name_flow_run(title: str) -> None:
    """Give the current flow run a title, unless somebody has typed a name."""
    if is_made_up(flow_run.name or ""):
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, name=title)


def is_made_up(name: str) -> bool:
    """True for a name of the kind that Prefect gives to a run without one: `quick-otter`, `Practical-Tang`."""
    words = name.split("-")
    lists: Any = coolname_data.config.values()
    known = {word for part in lists for word in part.get("words", ()) if isinstance(word, str)}
    return bool(NAME_OF_FORM.fullmatch(name)) or (len(words) == 2 and known.issuperset(words))


def remember(**parameters: str) -> None:
    """Change parameters of the current flow run, so that a copy or a retry of it means what this one meant."""
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, parameters={**flow_run.parameters, **parameters})
