"""The Prefect flow `profile-fleet`: measures the devices of a fleet and a model on them, and trains nothing.

(No postponed annotations: flows that are served could not read their parameters.)
"""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.form.choices import AS_GIVEN, Fleet, Model
from flows.form.request import RunRequest
from flows.requested_run import run_request
from flows.store_root import store_root


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
