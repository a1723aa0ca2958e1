"""What the server says of flow runs that Prefect itself ended: Skipped where another one ran, and what to do next.

An automation learns of runs that a schedule planned minutes before only a quarter of an hour later; the keeper looks
every few seconds.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flows.next_step import NEXT, again, and_next, command
from flows.service.server_api import ERRORS, ServerApi

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
        self._api.call("POST", f"/flow_runs/{run['id']}/set_state", {"state": state, "force": True})
