"""The Prefect flows `finetune`, as people start it from the UI, by a schedule or by another flow, and `profile-fleet`.

`profile-fleet` measures the devices of a fleet and a model on them, and trains nothing. (No postponed annotations:
flows that are served could not read their parameters.)
"""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.form import (
    AS_GIVEN,
    EVERY_STAGE,
    FIRST_CHANGE,
    LAST_STAGE,
    Change,
    Data,
    Fleet,
    LearningRate,
    Model,
    Only,
    Rounds,
    RunRequest,
    StartFrom,
    Strategy,
    Until,
)
from flows.requested_run import run_request
from flows.store_root import store_root


@flow(name="finetune", persist_result=False, log_prints=False)
def finetune(
    base: str = "demo",
    strategy: Strategy = AS_GIVEN,
    fleet: Fleet = AS_GIVEN,
    model: Model = AS_GIVEN,
    data: Data = AS_GIVEN,
    rounds: Rounds = 0,
    learning_rate: LearningRate = 0.0,
    changes: list[Change] = [],  # noqa: B006  (a form's default; never changed)
    start_from: StartFrom = FIRST_CHANGE,
    only: Only = EVERY_STAGE,
    until: Until = LAST_STAGE,
    force: bool = False,
    dry_run: bool = False,
) -> State[Any]:
    """Fine-tune a model across the devices of a fleet.

    Args:
        base: A run file (demo), or a past run's id or latest.
        strategy: How devices share the work.
        fleet: The devices.
        model: The model that is fine-tuned.
        data: What it is trained and tested on.
        rounds: Optimizer steps; 0 as in the run file.
        learning_rate: Peak learning rate; 0 as in the run file.
        changes: KEY=VALUE: training.batch_samples=16.
        start_from: Runs this stage again, on what is stored.
        only: Runs this stage on what is stored, and stops.
        until: Stops after this stage.
        force: Runs stages even where nothing changed.
        dry_run: Says what would run, and why.
    """
    request = RunRequest(**{**locals(), "changes": tuple(changes)})
    return run_request(request, store_root())


@flow(name="profile-fleet", persist_result=False, log_prints=False)
def profile_fleet(
    base: str = "demo", fleet: Fleet = AS_GIVEN, model: Model = AS_GIVEN, force: bool = False
) -> State[Any]:
    """Measure the devices of a fleet and a model on them.

    Args:
        base: A run file (demo), or a past run's id or latest.
        fleet: The devices.
        model: The model that is measured on them.
        force: Measures even what has not changed.
    """
    request = RunRequest(base=base, fleet=fleet, model=model, until="profile", force=force)
    return run_request(request, store_root())
