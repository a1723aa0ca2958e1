"""What the service says of a cancelled run whose process has ended, and which its worker has not reported yet."""

import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import State, StateType

from fleetune.store import Store
from fleetune.store.lock import is_held
from flows.service.ended_runs import CANCEL_S, SETTLE_S, EndedRuns
from flows.service.registration import end_dead_runs
from flows.service_files import ServiceFiles, hold

RUN = "0f31c1a6-6a3c-4c3b-9d0e-3b6d0c0a5a11"


@pytest.mark.parametrize(("state", "after_s"), [("RUNNING", SETTLE_S), ("CANCELLING", CANCEL_S)])
def test_a_cancelled_run_is_left_to_its_worker(tmp_path: Path, state: str, after_s: float) -> None:
    """A run whose process has ended is looked after at once, one that is being cancelled only when its worker is late.

    Bug: on a busy machine the worker reported a cancellation more than 5 s after the end of the process, and the run
    read Crashed.
    """
    now_s = [0.0]
    api: Any = SimpleNamespace(call=lambda *_: {"state_type": state})
    runs = EndedRuns(ServiceFiles(tmp_path), api, lambda: now_s[0])
    lock = hold(tmp_path, RUN)
    assert runs.still_shown() == []
    lock.release()
    for now_s[0] in (1.0, after_s):
        assert runs.still_shown() == []
    now_s[0] = after_s + 1.0
    assert runs.still_shown() == [RUN] and runs.still_shown() == []


def test_the_service_watches_live_runs_alone(tmp_path: Path) -> None:
    """Files of locks that ended runs have left are looked at once and are gone; the lock of a live run stays held."""
    files = ServiceFiles(tmp_path)
    api: Any = SimpleNamespace(call=lambda *_: None)
    lock, live = hold(tmp_path, RUN), files.flow_run_lock(RUN)
    for number in range(50):
        files.flow_run_lock(f"old-{number}").touch()
    assert EndedRuns(files, api).still_shown() == []
    assert list(live.parent.iterdir()) == [live] and is_held(live)
    lock.release()


class Server:
    """A client of a server that has one flow run without a process."""

    def __init__(self, kind: StateType, age_s: float) -> None:
        since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age_s)
        state: State[Any] = State(type=kind, timestamp=since)
        self.run = SimpleNamespace(
            id=uuid4(), flow_id=uuid4(), name="demo", parameters={}, state=state, deployment_id=None
        )

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: [] if name == "read_task_runs" else SimpleNamespace(name="finetune")

    def read_flow_runs(self, offset: int, **_: Any) -> list[Any]:
        """The run, which is on the first page."""
        return [] if offset else [self.run]

    def read_flow_run(self, _: Any) -> Any:
        """The run."""
        return self.run

    def set_flow_run_state(self, _: Any, state: State[Any], force: bool) -> None:
        """Keep the state."""
        self.run.state = state


@pytest.mark.parametrize(
    ("kind", "age_s", "worker_lives", "ends_as"),
    [
        (StateType.RUNNING, 1.0, True, StateType.CRASHED),
        (StateType.PENDING, 1.0, True, StateType.PENDING),
        (StateType.PENDING, 1.0, False, StateType.CRASHED),
        (StateType.CANCELLING, 1.0, True, StateType.CANCELLING),
        (StateType.CANCELLING, CANCEL_S + 1.0, True, StateType.CANCELLED),
        (StateType.CANCELLING, 1.0, False, StateType.CANCELLED),
    ],
)
def test_a_run_without_a_process_ends(
    tmp_path: Path, kind: StateType, age_s: float, worker_lives: bool, ends_as: StateType
) -> None:
    """A run that says it runs and does not has crashed, one that somebody cancelled is cancelled whatever ended it, and
    what a live worker is about to report is left to it."""
    server: Any = Server(kind, age_s)
    ended = end_dead_runs(server, Store(str(tmp_path)), worker_lives)
    assert server.run.state.type == ends_as and ended == ([] if ends_as == kind else ["demo"])
