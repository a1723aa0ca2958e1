"""Changes of a flow run's state by somebody else, while this process runs it: Pause, Resume, an end by hand or `down`.

Prefect's engine notices a Pause between two tasks only, and a Resume starts another process beside one that still runs.
So the run ends itself as soon as it is no longer the one that Prefect shows as running: after a Pause its stages are
stopped as by Cancel, and Resume goes on from what is finished. A run of the command line has no worker that could end
it or start it again: it ends itself after Cancel, and its Pause is undone.

A flow run that `fleetune down` ended, or Ctrl-C in a terminal, gets a state that says so: Prefect calls it Crashed,
aborted by a termination signal, which reads as if something had gone wrong.
"""

import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import httpx
from prefect._internal.control_listener import get_intent
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort, Pause, PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Running

from fleetune.store import Store
from flows.next_step import and_next
from flows.runner import Runner
from flows.service_files import ServiceFiles

EVERY_S = 2.0
NOT_HERE = "a run of the command line cannot be paused; stop it there with Ctrl-C, and start it again to go on"


class FlowRunWatch:
    """A context that looks at the current flow run's state every EVERY_S seconds and stops `runner` once it changed."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._id = UUID(str(flow_run.id))
        self._has_worker = bool(deployment.id)
        self._changed: State[Any] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_until_ended, name="flow-run-watch", daemon=True)

    def ended(self) -> State[Any] | None:
        """The state in which the flow ends because of a change; None while there was none.

        A flow run of a worker keeps the state that somebody else has set: Prefect's signal for that is raised.
        """
        state = self._changed
        if state is None:
            return None
        if not self._has_worker:
            return Cancelled(message=f"somebody else has set the run to {state.name}")
        if state.is_paused():
            get_run_logger().info("paused: its processes have ended; Resume goes on from what is finished")
            raise Pause(state=state)
        raise Abort(f"somebody else has set the run to {state.name}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def _look_until_ended(self) -> None:
        with get_client(sync_client=True) as client:
            while not self._ended.wait(EVERY_S):
                with suppress(httpx.HTTPError, PrefectException):  # a server that is away says nothing about the run
                    self._look(client)
                if self._changed is not None and not self._ended.is_set():
                    self._runner.stop()
                    return

    def _look(self, client: SyncPrefectClient) -> None:
        state = client.read_flow_run(self._id).state
        if state is None or state.is_running() or (state.is_cancelling() and self._has_worker):
            return  # a worker ends a run that is cancelling
        if state.is_paused() and not self._has_worker:
            client.set_flow_run_state(self._id, Running(message=NOT_HERE), force=True)
        else:
            self._changed = state


def is_down(root: str) -> bool:
    """True when a termination signal comes from `fleetune down`, and from nobody's Cancel in the UI."""
    return get_intent() is None and ServiceFiles(Store(root).local).going_down.exists()


def stopped_by_down(next_command: str) -> State[Any]:
    """The state of a flow run that `down` has ended."""
    return Cancelled(
        message=and_next("stopped by fleetune down; Retry in the UI goes on, after fleetune up", next_command)
    )


def stopped_by_hand(next_command: str, in_part: bool) -> State[Any]:
    """The state of a command's flow run after Ctrl-C; `in_part`: of a run within another one."""
    return Cancelled(
        message=and_next("stopped with the run that it is a part of" if in_part else "stopped by Ctrl-C", next_command)
    )
