"""The Prefect flow `evaluate`: evaluates the checkpoint of a past run again.

(No postponed annotations: flows that are served could not read their parameters.)
"""

import dataclasses
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from fleetune.errors import FleetuneError, Refused
from fleetune.store import Store
from flows import preflight
from flows.context import RunContext
from flows.form import AS_GIVEN, Change, Data
from flows.next_step import again, command
from flows.preflight import predict_run
from flows.reevaluation import EvaluationRequest, reevaluation
from flows.requested_run import name_flow_run, remember
from flows.run_log import RunLog
from flows.stage_tasks import failed_state, perform
from flows.store_root import store_root


@flow(name="evaluate", persist_result=False, log_prints=False)
def evaluate(
    run: str = "latest",
    data: Data = AS_GIVEN,
    changes: list[Change] = [],  # noqa: B006  (a form's default; never changed)
    force: bool = False,
) -> State[Any]:
    """Evaluate the checkpoint of a past run again, on the same or on other data.

    Args:
        run: A past run that was trained: its id, or latest.
        data: Other data with the same classes.
        changes: KEY=VALUE: data.source=reviews.csv.
        force: Evaluates even if nothing changed.
    """
    asked = EvaluationRequest(run=run, data=data, changes=tuple(changes), force=force)
    return run_evaluation(asked, store_root())


def run_evaluation(request: EvaluationRequest, root: str) -> State[Any]:
    """Evaluate what `request` asks for, with the store at `root`, as the body of the current flow run."""
    log = RunLog(get_run_logger())
    try:
        store = Store(root)
        found = reevaluation(request, store)
        remember(run=found.past.id)  # `latest` would be another run in a copy or a retry
        name_flow_run(found.title)
        runner = found.runner(RunContext(store=store, listen=log.hear))
        preflight.validate(predict_run(runner))
        with runner, log.beating():
            return perform(runner, _again(request, root))
    except FleetuneError as error:
        return failed_state(error, _next_command(request, error, root))


def _next_command(request: EvaluationRequest, error: FleetuneError, root: str) -> str:
    """The command after an error: runs that could be evaluated, or the same evaluation again."""
    if isinstance(error, Refused):
        return command(root, ["runs", "--state", "done"])
    return _again(request, root)


def _again(request: EvaluationRequest, root: str) -> str:
    return command(root, again("evaluate", dataclasses.asdict(request)))
