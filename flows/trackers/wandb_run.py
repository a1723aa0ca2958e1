"""A run in Weights & Biases, by its own client."""

import importlib
import netrc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.tracking import WandbRequest
from fleetune.errors import Refused
from fleetune.store import RunRecord
from flows.trackers.credentials import secret
from flows.trackers.points import Point, Unsent

KEY = "WANDB_API_KEY"
STEP = "round"


class WandbRun:
    """Logs points to one run, whose id and name are Fleetune's; the client sends them in a process of its own."""

    name = "wandb"

    def __init__(self, request: WandbRequest, run: RunRecord, folder: Path) -> None:
        """folder: receives the client's files, in a folder `wandb`."""
        self._request, self._record, self._folder = request, run, folder
        self._run: Any = None
        self._unsent = Unsent()

    def update(self, points: Sequence[Point]) -> None:
        """See Tracker."""
        if not points:
            return
        if self._run is None:
            self._run = self._opened()
        for point in self._unsent.of(points):
            self._run.log({**point.values, STEP: point.step})
            self._unsent.sent(point)
        self._unsent.all_sent(points)

    def close(self, state: str) -> None:
        """See Tracker."""
        if self._run is not None:
            self._run.finish(exit_code=0 if state == "done" else 1)

    def _opened(self) -> Any:
        wandb = importlib.import_module("wandb")
        offline = self._request.mode == "offline"
        key = None if offline else self._key()
        self._folder.mkdir(parents=True, exist_ok=True)
        run = wandb.init(
            project=self._request.project,
            entity=self._request.entity,
            mode=self._request.mode,
            id=self._record.id,
            name=self._record.id,
            resume=None if offline else "allow",
            dir=str(self._folder),
            config=json_io.dump(self._record.config),
            settings=wandb.Settings(api_key=key, silent=True, console="off", disable_git=True, save_code=False),
        )
        run.define_metric("*", step_metric=STEP)  # scores from before the training arrive after it
        return run

    def _key(self) -> str | None:
        """Return the API key; None if the client finds it in .netrc. Refused, since the client would ask a terminal."""
        found = secret(KEY)
        if found is None and not _in_netrc():
            raise Refused(f"there is no API key; set {KEY}, or make a Secret block wandb-api-key in Prefect")
        return found


def _in_netrc() -> bool:
    """Return whether `wandb login` has left a key in the user's .netrc."""
    try:
        return any("wandb" in host for host in netrc.netrc().hosts)
    except (OSError, netrc.NetrcParseError):
        return False
