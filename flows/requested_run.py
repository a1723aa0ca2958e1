"""The body of flow `finetune`: refuses an impossible request at once, names and logs the run, and makes the run its own
base, so that a copy of the flow run repeats the same config."""

import dataclasses
import datetime
import re
from collections.abc import Callable
from typing import Any

from coolname import data as coolname_data
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import TerminationSignal
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from fleetune.contracts.record import record
from fleetune.errors import FleetuneError, Refused
from fleetune.store import RunRecord, Store
from flows import configs, preflight
from flows.context import RunContext
from flows.flow_run_watch import is_down, stopped_by_down
from flows.form import RunRequest, config_of, selection_of
from flows.next_step import again, and_next, command
from flows.preflight import predict_run
from flows.promotion import same_as_last
from flows.run_log import RunLog
from flows.runner import Runner
from flows.stage_tasks import failed_state, perform
from stages.catalog import STAGES

FOLLOWERS = frozenset(spec.name for spec in STAGES if spec.follows)
"""Stages whose progress is that of the stage they follow."""
NAME_OF_FORM = re.compile(r"[A-Z][a-z]+-[A-Z][A-Za-z' -]*")
"""Names that the form of the UI makes up, such as `Practical-Tang`."""
SCHEDULED = "auto-scheduled"
"""Prefect's tag of runs that a schedule made."""
LATE_S = 600.0
"""A scheduled run that starts later than this after its time is dropped: the machine or the service was off."""
FIELDS = {"from": "start_from"}
"""Options of the command line -> fields of the form, where they differ."""
CORRECTED = ("--set", "KEY=VALUE")
"""Stands in the command after a refusal: without a change it would be refused again."""
CONFIGURE = "configure"
"""The first task of a run. The UI draws the tasks of a run only if it has one when its page is opened."""


@record
class _Configured:
    """A run that can begin."""

    runner: Runner
    planned: RunRecord
    """What it will run, and why."""


def run_request(request: RunRequest, root: str) -> State[Any]:
    """Run what `request` asks for, with the store at `root`, as the body of the current flow run."""
    try:
        return _run(request, root)
    except TerminationSignal:
        if not is_down(root):
            raise
        return stopped_by_down(_command(request, root))


def _run(request: RunRequest, root: str) -> State[Any]:
    log = RunLog(get_run_logger(), quiet=FOLLOWERS)
    if (skipped := _skipped(request, root)) is not None:
        return skipped
    proven: list[_Configured] = []

    @task(name=CONFIGURE, task_run_name=CONFIGURE, persist_result=False, log_prints=False, cache_policy=NO_CACHE)
    def configure() -> State[Any]:
        try:
            proven.append(_configure(request, Store(root), log))
        except FleetuneError as error:
            return failed_state(in_words_of_form(error), after_refusal(request, error, root))
        return Completed(message="the config can be run")

    state: State[Any] = configure(return_state=True)
    if not proven:
        return Failed(name=state.name, message=state.message)
    runner, planned = proven[0].runner, proven[0].planned
    store = runner.context.store
    if request.dry_run:
        from flows.run_pages.difference import description  # brings the clock's compiler, which no refusal needs
        from flows.run_pages.publication import publish_prediction

        publish_prediction(planned, store, runner.rerun_of, flow_run.id, get_run_logger())
        return Completed(name="DryRun", message=and_next(description(planned), _command(request, root)))
    if (same := nothing_new(store, request, planned)) is not None:
        return same
    try:
        with runner, log.beating():
            remember(base=runner.record.id)  # a copy reads this run's config, and not today's run file
            return perform(runner)
    except FleetuneError as error:
        return failed_state(error, command(root, ["show", runner.record.id]))


def _command(request: RunRequest, root: str) -> str:
    """The command that does what a request asks for."""
    return command(root, again("finetune", dataclasses.asdict(request)))


def after_refusal(request: RunRequest, error: FleetuneError, root: str) -> str:
    """The command after an error before the run began: a dry run of the same, with what has to be corrected."""
    if not isinstance(error, Refused):
        return _command(request, root)
    if str(error).startswith("base: "):
        return command(root, ["runs"])
    return command(root, [*again("finetune", dataclasses.asdict(request)), *CORRECTED, "--dry-run"])


def in_words_of_form(error: FleetuneError) -> FleetuneError:
    """The error with fields of the form where it names options of the command line."""
    told = re.sub(r"--(from|only|until|force)\b", lambda found: FIELDS.get(found[1], found[1]), str(error))
    return type(error)(told)


def _configure(request: RunRequest, store: Store, log: RunLog) -> _Configured:
    """Check the whole config before any device is touched; raises the error of a request that cannot be run."""
    config, past = config_of(request, store)
    name_flow_run(configs.title(config) + (" · dry run" if request.dry_run else ""))
    runner = Runner(RunContext(store=store, listen=log.hear), config, selection_of(request, past))
    planned = predict_run(runner)
    preflight.validate(planned, request.dry_run)
    return _Configured(runner=runner, planned=planned)


def _skipped(request: RunRequest, root: str) -> State[Any] | None:
    """The state of a scheduled run whose time is long past; None for any other run."""
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(flow_run.id)
        late = late_s(run, datetime.datetime.now(datetime.UTC))
        if (tags := own_tags(run)) != run.tags:
            client.update_flow_run(flow_run.id, tags=tags)
    if not late:
        return None
    message = f"its time was {late / 60:.0f} min ago: the machine was off; wait for its next time, or start it now"
    return Cancelled(name="Skipped", message=and_next(message, _command(request, root)))


def own_tags(run: FlowRun) -> list[str]:
    """The tags of a run without the one that says that a schedule made it, which a copy by hand has from its model."""
    return [tag for tag in run.tags if tag != SCHEDULED or run.auto_scheduled]


def late_s(run: FlowRun, now: datetime.datetime) -> float:
    """Seconds by which a run that a schedule made begins too late; 0 for one in time and for one that is retried."""
    if not run.auto_scheduled or run.expected_start_time is None or run.run_count > 1:
        return 0.0
    late = (now - run.expected_start_time).total_seconds()
    return late if late > LATE_S else 0.0


def nothing_new(
    store: Store, request: RunRequest, planned: RunRecord, find_same: Callable[[Store, RunRecord], str] = same_as_last
) -> State[Any] | None:
    """The state of a run that could only repeat the last one about whose model was decided; None for any other.

    `find_same`: the id of that one, or empty.
    """
    whole = RunRequest(base=request.base, force=request.force)
    last = find_same(store, planned) if selection_of(request, "") == selection_of(whole, "") else ""
    if not last or request.force:
        return None
    message = and_next(
        f"data, start and settings are those of {last}; new data would be trained on",
        command(store.root, ["show", last]),
    )
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
