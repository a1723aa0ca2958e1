"""Figures of the rounds of each strategy, in one table: forecast, measured, error, samples per second, bytes."""

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.report import Figure, median_and_spread
from benchmarks.strategies.runs import Trained

TARGET = 0.1
SHEET = "rounds of the run files; spread of measured rounds in brackets"


def round_figures(run: Trained) -> Iterator[Figure]:
    """Yield the figures of one strategy."""
    measured_s = median(run.rounds_s)

    def cell(name: str, column: str, unit: str, value: float, **more: Any) -> Figure:
        described: dict[str, Any] = {"better": "lower", "value": value, **more}
        return Figure(name=f"{run.strategy}_{name}", unit=unit, cell=(SHEET, run.strategy, column), **described)

    yield cell("forecast_round", "forecast s", "s", run.forecast.round_s)
    yield cell("round", "measured s", "s", measured_s, spread=median_and_spread(run.rounds_s)["spread"])
    yield cell("forecast_error", "error", "of measured", abs(run.error), target=TARGET)
    yield cell("bias", "with sign", "of measured", run.error)
    yield cell("commit", "commit to commit s", "s", run.between_commits_s)
    if run.forecast.period_s:
        error = run.forecast.period_s / run.between_commits_s - 1
        yield cell("forecast_commit", "its forecast s", "s", run.forecast.period_s)
        yield cell("commit_bias", "its error", "of measured", error)
    yield cell("samples_per_s", "samples/s", "1/s", run.samples_per_s, better="higher")
    yield cell("sent", "MB sent", "MB", run.sent_bytes / 1e6)
    yield cell("forecast_sent", "MB forecast", "MB", sum(link.bytes for link in run.forecast.link_bytes) / 1e6)
