"""`python -m flows.service.registration`: tells the server the work pool and the deployments, and ends dead runs.

It runs at every start of the service, in the folder of the last `fleetune up`: schedules of run files and the
automations follow what is written today; schedules that people made in the UI stay as they are.

Dead runs are flow runs that say they run and do not: their process was killed, or the machine lost its power. A live
run holds a lock, which the kernel releases whatever ends its process: the lock of its flow run, and from its first
moment that of its run in the store.
"""

import datetime
import os
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, VariableCreate, VariableUpdate, WorkPoolCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import (
    TERMINAL_STATES,
    ConcurrencyLimitStrategy,
    ConcurrencyOptions,
    FlowRun,
    State,
    StateType,
)
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.states import Cancelled, Crashed
from prefect.utilities.callables import parameter_schema

from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.launching.docker.cleanup import remove_orphans_here
from fleetune.launching.process import child_command
from fleetune.store import Store
from fleetune.store.lock import is_held
from flows import configs
from flows.compare import compare
from flows.evaluate import evaluate
from flows.finetune import finetune, profile_fleet
from flows.form import names_in
from flows.next_step import again, and_next, command
from flows.service.automations import update_automations
from flows.service.ended_runs import CANCEL_S
from flows.service.environment import IN_FOLDER, RUNS_ONLY, WORKER_LIVES
from flows.service.flow_process import ORPHAN_S
from flows.service.keeper import POOL
from flows.service.schedules import read_schedules, update_schedules
from flows.service_files import ServiceFiles
from flows.store_root import ROOT_VARIABLE

LIVE = (StateType.RUNNING, StateType.PENDING, StateType.CANCELLING)
PAGE = 200
ASK_S, SUBMIT_S = 0.2, 120.0
"""Seconds between two looks at a process that ends; longest time in which a live worker starts one."""
WORKERS_S = {StateType.PENDING: SUBMIT_S, StateType.CANCELLING: CANCEL_S}
"""States that a live worker changes, and how long that may take."""
GONE = "its process is gone (the machine, the worker or the service ended); Retry goes on"


def end_dead_runs(client: SyncPrefectClient, store: Store, worker_lives: bool) -> list[str]:
    """Mark flow runs, and their stages, as crashed that say they run and whose process is gone, or as cancelled where
    somebody has asked for that; returns their names.

    `worker_lives`: a worker may be starting the process of a pending run right now, or reporting the end of one that it
    has cancelled. Without one, the processes that it has left write a checkpoint and end within ORPHAN_S; they are
    waited for.
    """
    if not worker_lives:
        _wait_for_orphans(client, store)
    dead = []
    for run in _read(client, LIVE):
        if _lives(run, store, worker_lives) or _has_changed(client, run):
            continue
        words = again(client.read_flow(run.flow_id).name, run.parameters)
        state = _gone(run.state.type if run.state else None, and_next(GONE, command(store.root, words)))
        client.set_flow_run_state(run.id, state, force=True)
        dead.append(run.name)
    _end_stages_of_ended_runs(client)
    return dead


def _has_changed(client: SyncPrefectClient, run: FlowRun) -> bool:
    """True for a run whose state is another one than when it was read: a process reports its end, or that it begins,
    before it releases its lock, or after it has taken it. Call it after a look at the lock."""
    now = client.read_flow_run(run.id).state
    return now is None or run.state is None or now.id != run.state.id


def _wait_for_orphans(client: SyncPrefectClient, store: Store) -> None:
    files, deadline_s = ServiceFiles(store.local), time.monotonic() + ORPHAN_S
    for run in _read(client, LIVE):
        while run.deployment_id and is_held(files.flow_run_lock(str(run.id))) and time.monotonic() < deadline_s:
            time.sleep(ASK_S)


def _end_stages_of_ended_runs(client: SyncPrefectClient) -> None:
    """Mark stages that say they run, of runs that have ended, as crashed, or as cancelled with their run."""
    for kind in TERMINAL_STATES:
        _end_stages(client, kind)


def _end_stages(client: SyncPrefectClient, kind: StateType) -> None:
    ended = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[kind])))
    running = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=list(LIVE))))
    for stage in client.read_task_runs(flow_run_filter=ended, task_run_filter=running, limit=PAGE):
        client.set_task_run_state(stage.id, _gone(kind, GONE), force=True)


def _read(client: SyncPrefectClient, types: tuple[StateType, ...]) -> list[FlowRun]:
    states = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types))))
    found: list[FlowRun] = []
    while page := client.read_flow_runs(flow_run_filter=states, limit=PAGE, offset=len(found)):
        found += page
    return found


def _lives(run: FlowRun, store: Store, worker_lives: bool) -> bool:
    base = str(run.parameters.get("base", ""))
    if is_held(ServiceFiles(store.local).flow_run_lock(str(run.id))) or store.runs.is_alive(base):
        return True
    if run.state is None or not worker_lives:
        return False
    age_s = (datetime.datetime.now(datetime.UTC) - run.state.timestamp).total_seconds()
    return age_s < WORKERS_S.get(run.state.type, 0.0)


def _gone(kind: StateType | None, message: str) -> State[Any]:
    """The state of what had a state of this kind when its process was found to be gone."""
    cancelled = kind in (StateType.CANCELLING, StateType.CANCELLED)
    return Cancelled(message=message) if cancelled else Crashed(message=message)


@record
class Deployment:
    """A flow that the UI starts."""

    flow: Any
    name: str
    description: str


OWNER = "fleetune_store"
"""A variable of the server that says whose database it is."""
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
    store, worker_lives = Store(os.environ[ROOT_VARIABLE]), WORKER_LIVES in sys.argv
    if IN_FOLDER in sys.argv:
        os.chdir(sys.argv[sys.argv.index(IN_FOLDER) + 1])
    with get_client(sync_client=True) as client:
        try:
            claim_database(client, ServiceFiles(store.local))
        except Refused as error:
            sys.stderr.write(f"{error}\n")
            raise SystemExit(error.exit_code) from None
        for name in end_dead_runs(client, store, worker_lives):
            sys.stdout.write(f"run {name} has no process any more: it is marked as crashed\n")
        if left := remove_orphans_here():
            sys.stdout.write(f"killed runs had left {left} containers and networks: they are removed\n")
        if RUNS_ONLY not in sys.argv:
            register_all(client)
    sys.stdout.flush()


def register_all(client: SyncPrefectClient) -> None:
    """Register the work pool, the deployments, the schedules of this folder's configs and the automations."""
    create_pool(client)
    for deployment in DEPLOYMENTS:
        identity = register(client, deployment)
        if deployment.flow is finetune:
            for line in update_schedules(client, identity, read_schedules(configs.RUNS)):
                sys.stdout.write(f"{line}\n")
    update_automations(client)


def claim_database(client: SyncPrefectClient, files: ServiceFiles) -> None:
    """Make a database that people have chosen this store's; Refused when it is another store's.

    Locks tell only the store's own service which runs live: another one would end them as crashed.
    """
    service = files.running()
    if service is None or not service.database:  # the file in the store is nobody else's
        return
    own = {"store": files.mark("store"), "root": service.root, "host": socket.gethostname()}
    found = client.read_variable_by_name(OWNER)
    if found is None:
        client.create_variable(VariableCreate(name=OWNER, value=own))
        return
    owner = found.value if isinstance(found.value, dict) else own
    if not _is_same_store(owner, own):
        its = f"it is that of the store {owner.get('root')} on {owner.get('host')}"
        raise Refused(f"database: {its}; give each store a database of its own")
    client.update_variable(VariableUpdate(name=OWNER, value=own))


def _is_same_store(owner: Mapping[str, object], own: Mapping[str, str]) -> bool:
    """True for the same store, moved or made anew at the same place, and for an owner that is gone."""
    root, is_here = str(owner.get("root")), owner.get("host") == own["host"]
    is_gone = "://" not in root and not Path(root).exists()
    return owner.get("store") == own["store"] or (is_here and (root == own["root"] or is_gone))


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
            "command": shlex.join([*child_command(0), "flows.service.flow_process"]),
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
