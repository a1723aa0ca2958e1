"""Flow runs that say they run and do not: their process was killed, or the machine lost its power.

A live run holds a lock, which the kernel releases whatever ends its process: the lock of its flow run, and from its
first moment that of its run in the store.
"""

import datetime
import time
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType
from prefect.states import Crashed

from fleetune.store import Store
from fleetune.store.lock import is_held
from flows.next_step import again, and_next, command
from flows.service.flow_process import ORPHAN_S
from flows.service_files import ServiceFiles

LIVE = (StateType.RUNNING, StateType.PENDING, StateType.CANCELLING)
PAGE = 200
ASK_S, SUBMIT_S = 0.2, 120.0
"""Seconds between two looks at a process that ends; longest time in which a live worker starts one."""
GONE = "its process is gone (the machine, the worker or the service ended); Retry goes on"


def end_dead_runs(client: SyncPrefectClient, store: Store, worker_lives: bool) -> list[str]:
    """Mark flow runs, and their stages, as crashed that say they run and whose process is gone; returns their names.

    `worker_lives`: a worker may be starting the process of a pending run right now. Without one, the processes that it
    has left write a checkpoint and end within ORPHAN_S; they are waited for.
    """
    if not worker_lives:
        _wait_for_orphans(client, store)
    dead = []
    for run in _read(client, LIVE):
        if _lives(run, store, worker_lives) or _has_changed(client, run):
            continue
        words = again(client.read_flow(run.flow_id).name, run.parameters)
        client.set_flow_run_state(run.id, _gone(and_next(GONE, command(store.root, words))), force=True)
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
    """Mark stages as crashed that say they run, of runs that have ended."""
    ended = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(TERMINAL_STATES))))
    running = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=list(LIVE))))
    for stage in client.read_task_runs(flow_run_filter=ended, task_run_filter=running, limit=PAGE):
        client.set_task_run_state(stage.id, _gone(), force=True)


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
    since = run.state.timestamp if run.state else run.created
    age_s = (datetime.datetime.now(datetime.UTC) - since).total_seconds() if since else SUBMIT_S
    pending = run.state is not None and run.state.type == StateType.PENDING
    return worker_lives and pending and age_s < SUBMIT_S


def _gone(message: str = GONE) -> State[Any]:
    return Crashed(message=message)
