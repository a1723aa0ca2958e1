"""Flow runs of a service whose process has ended, and what its server says of them.

The process of a flow run holds a lock as long as it lives. One that was killed, or that ended while the server was
away, could not report its end, and the server would show it as running for ever.
"""

import time
from collections.abc import Callable

from fleetune.store.lock import is_held
from flows.service.server_api import ERRORS, ServerApi
from flows.service_files import ServiceFiles

SETTLE_S = 5.0
"""Seconds that an ended process's own last report, and its worker's, may take to arrive."""
LIVE = ("RUNNING", "PENDING", "CANCELLING")
RUNNING_TASKS = {"type": {"any_": ["RUNNING", "PENDING"]}}


class EndedRuns:
    """Finds flow runs whose process has ended since the last call and which the server still shows as running."""

    def __init__(
        self, files: ServiceFiles, port: int, auth_string: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`auth_string`: the server's, or empty. `clock`: returns seconds."""
        self._folder, self._api, self._clock = files.flow_run_lock("any").parent, ServerApi(port, auth_string), clock
        self._held: set[str] = set()
        self._ended_s: dict[str, float] = {}

    def still_shown(self) -> list[str]:
        """Ids of ended flow runs that the server shows as running, or that have such tasks; each is returned once.

        A run is asked for again when the server does not answer.
        """
        held = {path.stem for path in self._folder.glob("*.lock") if is_held(path)}
        self._ended_s.update(dict.fromkeys(self._held - held, self._clock()))
        self._held = held
        settled = [run for run, ended_s in self._ended_s.items() if self._clock() - ended_s >= SETTLE_S]
        shown = []
        for run in settled:
            try:
                if self._is_shown(run):
                    shown.append(run)
            except ERRORS:
                continue
            del self._ended_s[run]
        return [run for run in shown if run not in held]

    def _is_shown(self, run: str) -> bool:
        found = self._api.call("GET", f"/flow_runs/{run}")
        if found is None or found["state_type"] in LIVE:
            return found is not None
        asked = {"flow_runs": {"id": {"any_": [run]}}, "task_runs": {"state": RUNNING_TASKS}}
        return bool(self._api.call("POST", "/task_runs/count", asked))
