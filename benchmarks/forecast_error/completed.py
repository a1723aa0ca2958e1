"""Runs of the list that have ended: what was forecast and what was measured, or why it failed."""

import statistics
from dataclasses import dataclass

from fleetune.contracts.metrics import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRun:
    """One profile, plan and training, of which each belongs to this run alone."""

    fleet: str
    strategy: str
    forecast_s: float
    interval: Interval | None
    """The forecast's."""
    rounds_s: tuple[float, ...]
    """Duration of every round."""
    load: float
    """Load average of the machine over the minute before the training started."""
    ready_s: float
    """Seconds from the start of the training to the first message of its last worker; workers start concurrently."""
    workers: int
    forecast_period_s: float
    """From one commit to the next; 0 if unknown."""
    period_s: float
    """Median from one commit to the next."""
    later_forecast_s: float | None = None
    """Forecast of the same plan by a profile that was measured after its training; None: there was none."""
    pace: float | None = None
    """Time of the same work on this machine during the training, relative to its profile; None: not measured."""
    forecast_at_pace_s: float | None = None
    """Forecast of the same plan by devices that compute at that pace."""

    @property
    def median_s(self) -> float:
        """The measured median round."""
        return statistics.median(self.rounds_s)

    @property
    def error(self) -> float:
        """Forecast error relative to the measured median round."""
        return self.forecast_s / self.median_s - 1

    @property
    def drift(self) -> float | None:
        """How much slower the devices are in the later profile than in the first one, by the forecasts of the plan."""
        return None if self.later_forecast_s is None else self.later_forecast_s / self.forecast_s - 1

    @property
    def error_without_drift(self) -> float | None:
        """Error of the mean of both forecasts: what a steady change of the machine's speed does not explain."""
        if self.later_forecast_s is None:
            return None
        return (self.forecast_s + self.later_forecast_s) / 2 / self.median_s - 1

    @property
    def error_at_pace(self) -> float | None:
        """Error of the forecast with the machine as fast as it was in the training."""
        return None if self.forecast_at_pace_s is None else self.forecast_at_pace_s / self.median_s - 1

    @property
    def period_error(self) -> float | None:
        """The same from commit to commit; None where that is not forecast."""
        return self.forecast_period_s / self.period_s - 1 if self.forecast_period_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """A run that ended with an error."""

    fleet: str
    strategy: str
    why: str
