"""`python -m flows.service.registration`: tells the server the work pool and the deployments, and ends dead runs.

It runs at every start of the service: schedules of run files and the automations follow what is written today;
schedules that people made in the UI stay as they are.
"""

import os
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.utilities.callables import parameter_schema

from fleetune.contracts.record import record
from fleetune.launching.docker.cleanup import remove_orphans_here
from fleetune.launching.process import child_command
from fleetune.store import Store
from flows import configs
from flows.compare import compare
from flows.evaluate import evaluate
from flows.finetune import finetune
from flows.form.choices import names_in
from flows.profile_fleet import profile_fleet
from flows.service.automations import update_automations
from flows.service.dead_runs import end_dead_runs
from flows.service.keeper import POOL
from flows.service.schedules import read_schedules, update_schedules
from flows.store_root import ROOT_VARIABLE


@record
class Deployment:
    """A flow that the UI starts."""

    flow: Any
    name: str
    description: str


RUN_FILES = "Run files for the field base: {names}, or a path of your own."
"""What the deployments' pages say; in the form it would not fit a line."""

DEPLOYMENTS = (
    Deployment(flow=finetune, name="finetune", description="Fine-tune a model across the devices of a fleet."),
    Deployment(flow=compare, name="compare", description="Compare strategies: which method for my devices?"),
    Deployment(flow=profile_fleet, name="profile-fleet", description="Measure the devices and the model on them."),
    Deployment(flow=evaluate, name="evaluate", description="Evaluate a past run's checkpoint again."),
)


def main() -> None:
    """Register everything; prints a line for each thing that was done."""
    store, worker_lives = Store(os.environ[ROOT_VARIABLE]), "--worker-lives" in sys.argv
    with get_client(sync_client=True) as client:
        for name in end_dead_runs(client, store, worker_lives):
            sys.stdout.write(f"run {name} has no process any more: it is marked as crashed\n")
        if left := remove_orphans_here():
            sys.stdout.write(f"killed runs had left {left} containers and networks: they are removed\n")
        create_pool(client)
        for deployment in DEPLOYMENTS:
            identity = register(client, deployment)
            if deployment.flow is finetune:
                for line in update_schedules(client, identity, read_schedules(configs.RUNS)):
                    sys.stdout.write(f"{line}\n")
        update_automations(client)
    sys.stdout.flush()


def create_pool(client: SyncPrefectClient) -> None:
    """Create the work pool unless it exists."""
    from prefect.workers.process import ProcessWorker

    pool = WorkPoolCreate(
        name=POOL,
        type="process",
        description="Runs of Fleetune as processes of this machine.",
        base_job_template=ProcessWorker.get_default_base_job_template(),
    )
    try:
        client.create_work_pool(pool)
    except ObjectAlreadyExists:
        return


def register(client: SyncPrefectClient, deployment: Deployment) -> UUID:
    """Create or update a deployment; returns its id. An existing one keeps its schedules, which a creation drops."""
    flow = deployment.flow
    schema = parameter_schema(flow)
    files = [RUN_FILES.format(names=", ".join(names_in("runs")))] if "base" in schema.properties else []
    settings: dict[str, Any] = {
        "description": " ".join([deployment.description, *files]),
        "entrypoint": f"{flow.fn.__module__}.{flow.fn.__name__}",
        "work_pool_name": POOL,
        "parameter_openapi_schema": schema.model_dump_for_openapi(),
        "enforce_parameter_schema": True,
        "concurrency_limit": 1,
        "concurrency_options": ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW),
        "job_variables": {
            "command": " ".join([*child_command(0), "flows.service.flow_process"]),
            "working_dir": str(Path.cwd()),
        },
        "tags": ["fleetune"],
    }
    try:
        found = client.read_deployment_by_name(f"{flow.name}/{deployment.name}")
    except ObjectNotFound:
        return client.create_deployment(flow_id=client.create_flow(flow), name=deployment.name, **settings)
    client.update_deployment(found.id, DeploymentUpdate(**settings))
    return found.id


if __name__ == "__main__":
    main()
