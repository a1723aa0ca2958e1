"""The forecast that an evaluation sets beside the measurement."""

from dataclasses import replace
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.metrics import Forecast
from fleetune.evaluation import measured_forecast


def test_a_reused_training_keeps_its_forecast(tmp_path: Path) -> None:
    """A training reused on another fleet was once compared with the new fleet's forecast: an error of nobody's."""
    plan, metrics = tmp_path / "plan", tmp_path / "metrics"
    planned = Forecast(round_s=2.0, rows=(), busy_s=(), memory_bytes=(), link_bytes=())
    json_io.write(planned, plan / "forecast.json")
    assert measured_forecast(plan, metrics) == (planned, {}), "metrics of an earlier version hold none"
    json_io.write(planned, metrics / "forecast.json")
    assert measured_forecast(plan, metrics) == (planned, {})
    trained = replace(planned, round_s=4.0)
    json_io.write(trained, metrics / "forecast.json")
    found, note = measured_forecast(plan, metrics)
    assert found == trained and "by the run that trained" in note["times"]
