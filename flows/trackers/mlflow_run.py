"""A run on an MLflow tracking server, by its own client."""

import importlib
import os
import re
from collections.abc import Sequence
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.tracking import MlflowRequest
from fleetune.store import RunRecord
from fleetune.store.stage_key import flatten_config
from flows.trackers.credentials import secret
from flows.trackers.points import Point, Unsent

CREDENTIALS = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
"""Variables that the client reads."""
MOST_PARAMETERS, MOST_METRICS, LONGEST_PARAMETER = 100, 1000, 500
"""Limits of one request, and of the text of a parameter."""
STATES = {"done": "FINISHED", "failed": "FAILED", "refused": "FAILED", "interrupted": "KILLED"}


class MlflowRun:
    """Logs points to one run, called like Fleetune's."""

    name = "mlflow"

    def __init__(self, request: MlflowRequest, run: RunRecord) -> None:
        self._request, self._record = request, run
        self._client: Any = None
        self._entities: Any = None
        self._id = ""
        self._told_settings = False
        self._unsent = Unsent()

    def update(self, points: Sequence[Point]) -> None:
        """See Tracker."""
        if not points:
            return
        self._open()
        fresh: Sequence[Point] = self._unsent.of(points)
        while fresh:
            sent, fresh = _first(fresh)
            metrics = [
                self._entities.Metric(name, value, round(point.at_s * 1000), point.step)
                for point in sent
                for name, value in point.values.items()
            ]
            self._client.log_batch(self._id, metrics=metrics)
            for point in sent:
                self._unsent.sent(point)
        self._unsent.all_sent(points)

    def close(self, state: str) -> None:
        """See Tracker."""
        if self._id:
            self._client.set_terminated(self._id, status=STATES[state])

    def _open(self) -> None:
        """Make the experiment if there is none, and the run with its settings; go on where an error came between."""
        if self._client is None:
            for variable in CREDENTIALS:
                if (found := secret(variable)) is not None:
                    os.environ[variable] = found
            self._entities = importlib.import_module("mlflow.entities")
            self._client = importlib.import_module("mlflow").MlflowClient(tracking_uri=self._request.uri)
        if not self._id:
            name = self._request.experiment
            experiment = self._client.get_experiment_by_name(name)
            number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
            self._id = str(self._client.create_run(number, run_name=self._record.id).info.run_id)
        if not self._told_settings:
            settings = flatten_config(json_io.dump(self._record.config), "run")
            parameters = [
                self._entities.Param(re.sub(r"[^\w./ -]", "_", key), text[:LONGEST_PARAMETER])
                for key, text in settings.items()
            ]
            for first in range(0, len(parameters), MOST_PARAMETERS):
                self._client.log_batch(self._id, params=parameters[first : first + MOST_PARAMETERS])
            self._told_settings = True


def _first(points: Sequence[Point]) -> tuple[Sequence[Point], Sequence[Point]]:
    """Return the first points, with as many values as one request may have, and the others."""
    count = 0
    for index, point in enumerate(points):
        count += len(point.values)
        if count > MOST_METRICS and index:
            return points[:index], points[index:]
    return points, ()
