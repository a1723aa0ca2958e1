"""The body of flow `finetune`: refuses an impossible request at once, names and logs the run, and makes the run its own
base, so that a copy of the flow run repeats the same config."""

import re
from typing import Any

from coolname import data as coolname_data
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Completed

from fleetune.errors import FleetuneError
from fleetune.store import RunRecord, Store
from flows import configs, preflight
from flows.context import RunContext
from flows.form.request import RunRequest, config_of, selection_of
from flows.preflight import predict_run
from flows.run_log import RunLog
from flows.runner import Runner
from flows.stage_tasks import failed_state, perform

NAME_OF_FORM = re.compile(r"[A-Z][a-z]+-[A-Z][A-Za-z' -]*")
"""Names that the form of the UI makes up, such as `Practical-Tang`."""


def run_request(request: RunRequest, root: str) -> State[Any]:
    """Run what `request` asks for, with the store at `root`, as the body of the current flow run."""
    log = RunLog(get_run_logger())
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
        return _publish_prediction(planned)
    try:
        with runner:
            _remember(runner.record.id)
            return perform(runner)
    except FleetuneError as error:
        return failed_state(error)


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


def _remember(run: str) -> None:
    """Make the run its own base, so that a copy of the flow run reads its config and not today's run file."""
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, parameters={**flow_run.parameters, "base": run})


def _publish_prediction(planned: RunRecord) -> State[Any]:
    rows = [f"| {stage.stage} | {stage.how} | {stage.why} |" for stage in planned.stages]
    create_markdown_artifact(
        markdown="\n".join(["| stage | would be | why |", "|---|---|---|", *rows]),
        key=f"{planned.config.name}-dry-run".lower().replace(".", "-").replace("_", "-"),
        description=f"Dry run of {planned.config.name}",
    )
    running = [stage.stage for stage in planned.stages if stage.how == "ran"]
    return Completed(name="DryRun", message=f"would run {', '.join(running)}" if running else "would reuse every stage")
