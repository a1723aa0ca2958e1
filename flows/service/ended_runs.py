"""Flow runs whose process has ended, or that Prefect itself ended, and what the server of a service says of them.

The process of a flow run holds a lock as long as it lives. One that was killed, or that ended while the server was
away, could not report its end, and the server would show it as running for ever. Of runs that Prefect ended, the server
says what to do next, and Skipped where another one ran: an automation learns of runs that a schedule planned minutes
before only a quarter of an hour later, whereas the keeper looks every few seconds. The keeper calls the server without
Prefect's client, whose import takes seconds.
"""

import http.client
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fleetune.store.lock import remove_free
from flows.next_step import NEXT, again, and_next, command
from flows.prefect_server import HOST
from flows.service_files import ServiceFiles, basic_authorization

TIMEOUT_S = 10.0
ERRORS = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError)
"""What a server that is away, busy or of another version leads to."""


class ServerApi:
    """Prefect's API of the server on a port of this machine."""

    def __init__(self, port: int, auth_string: str) -> None:
        """`auth_string`: the server's, or empty."""
        self._port = port
        authorization = {"Authorization": basic_authorization(auth_string)} if auth_string else {}
        self._headers = {"Content-Type": "application/json", **authorization}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer's document; None where there is no such thing. Raises one of ERRORS."""
        connection = http.client.HTTPConnection(HOST, self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, f"/api{path}", None if body is None else json.dumps(body), self._headers)
            answer = connection.getresponse()
            if answer.status == http.client.NOT_FOUND:
                return None
            if answer.status not in (http.client.OK, http.client.CREATED):
                raise http.client.HTTPException(f"{path}: {answer.status}")
            return json.loads(answer.read())
        finally:
            connection.close()


SETTLE_S = 5.0
"""Seconds that an ended process's own last report, and its worker's, may take to arrive."""
CANCEL_S = 60.0
"""Seconds after which a run that is cancelled is no longer left to its worker, which waits for the end of the process,
loads the flow, and then reports: on a busy machine long after SETTLE_S."""
LIVE = ("RUNNING", "PENDING", "CANCELLING")
RUNNING_TASKS = {"type": {"any_": ["RUNNING", "PENDING"]}}


class EndedRuns:
    """Finds flow runs whose process has ended since the last call and which the server still shows as running."""

    def __init__(self, files: ServiceFiles, api: ServerApi, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: returns seconds."""
        self._folder, self._api, self._clock = files.flow_run_lock("any").parent, api, clock
        self._held: set[str] = set()
        self._ended_s: dict[str, float] = {}

    def still_shown(self) -> list[str]:
        """Ids of ended flow runs that the server shows as running, or that have such tasks; each is returned once.

        A run is asked for again when the server does not answer, and while its worker may still report its end. Files
        of locks that nobody holds are removed, so that the next look is at those of live runs alone.
        """
        held = {path.stem for path in self._folder.glob("*.lock") if not remove_free(path)}
        self._ended_s.update(dict.fromkeys(self._held - held, self._clock()))
        self._held = held
        settled = [run for run, ended_s in self._ended_s.items() if self._clock() - ended_s >= SETTLE_S]
        shown = []
        for run in settled:
            try:
                state = self._shown_state(run)
                if state == "CANCELLING" and self._clock() - self._ended_s[run] < CANCEL_S:
                    continue
                if state:
                    shown.append(run)
            except ERRORS:
                continue
            del self._ended_s[run]
        return [run for run in shown if run not in held]

    def _shown_state(self, run: str) -> str:
        """The kind of state by which an ended run is shown as running; empty where it and its tasks have ended."""
        found = self._api.call("GET", f"/flow_runs/{run}")
        if found is None or found["state_type"] in LIVE:
            return str(found["state_type"]) if found else ""
        asked = {"flow_runs": {"id": {"any_": [run]}}, "task_runs": {"state": RUNNING_TASKS}}
        return "RUNNING" if self._api.call("POST", "/task_runs/count", asked) else ""


LOOK_S = 2.0
NEWEST = 20
FLOWS = ("finetune", "compare", "profile-fleet", "evaluate")
ODD = (AttributeError, LookupError, TypeError, ValueError)
"""What a run of another release leads to."""
LIMIT_REACHED = "Deployment concurrency limit reached."
"""What Prefect says of a run that it did not start beside another."""
SKIPPED = "another run was in progress, and one runs at a time"
SHOWN = {
    "flows": {"name": {"any_": list(FLOWS)}},
    "flow_runs": {"state": {"name": {"any_": ["Cancelled"]}}},
    "sort": "EXPECTED_START_TIME_DESC",
    "limit": NEWEST,
}


class EndMessages:
    """Completes the states of the newest cancelled flow runs."""

    def __init__(self, api: ServerApi, root: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`root`: of the store. `clock`: returns seconds."""
        self._api, self._root, self._clock = api, root, clock
        self._looked_s = clock() - LOOK_S

    def complete(self) -> None:
        """Give the runs that were cancelled since the last call their state's name and its next command.

        A server that does not answer is asked again by the next call; calls within LOOK_S do nothing.
        """
        if self._clock() - self._looked_s < LOOK_S:
            return
        self._looked_s = self._clock()
        with suppress(*ERRORS):
            for run in self._api.call("POST", "/flow_runs/filter", SHOWN) or ():
                if NEXT not in (run["state"]["message"] or ""):
                    with suppress(*ODD):  # the next one may be an ordinary one
                        self._complete(run)

    def _complete(self, run: Any) -> None:
        said = run["state"]["message"]
        if said == LIMIT_REACHED:
            name, message, words = "Skipped", SKIPPED, ["runs", "--state", "running"]
        else:
            flow = self._api.call("GET", f"/flows/{run['flow_id']}")
            name, message, words = "Cancelled", said or "cancelled", again(flow["name"], run["parameters"])
        state = {"type": "CANCELLED", "name": name, "message": and_next(message, command(self._root, words))}
        now = self._api.call("GET", f"/flow_runs/{run['id']}")
        if now is None or now["state"] != run["state"]:
            return  # somebody has just started it again
        told = self._set(run, state)["state"]["id"]
        if started := self._replaced(run, told):
            self._set(run, started)

    def _replaced(self, run: Any, told: str) -> Any:
        """The state that somebody has given a cancelled run between this keeper's look and its message, as Retry does;
        None where nobody has, or the message is no longer what the run shows. `told`: id of the message's state."""
        states = self._api.call("GET", f"/flow_run_states/?flow_run_id={run['id']}")
        *_, before, last = sorted(states, key=lambda each: str(each["timestamp"]))
        if last["id"] != told or before["id"] == run["state"]["id"]:
            return None
        return {key: before[key] for key in ("type", "name", "message", "state_details")}

    def _set(self, run: Any, state: Any) -> Any:
        return self._api.call("POST", f"/flow_runs/{run['id']}/set_state", {"state": state, "force": True})
