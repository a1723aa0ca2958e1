"""How long the coordinator waits for answers that all devices of a phase owe."""

from collections.abc import Callable
from typing import Any

from fleetune.recovery import protocol as p
from fleetune.recovery import state as phases
from fleetune.recovery.state import OWED, State
from fleetune.training.checkpoints import SAVING_AT_STOP_S, SAVING_S
from fleetune.training.liveness import LOADING_S

MIN_PATIENCE_S, PATIENCE_ROUNDS = 120.0, 50.0
"""Longest wait for a device's part of a round: so many seconds, or forecast rounds."""
PATIENCE_AVERAGES = 5.0
"""Forecast averages over lanes that are waited for beside that, where one comes before the answer."""


class Patience:
    """Measures how long a phase lasts."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._waits_for: tuple[Any, ...] = ()
        self._since_s = 0.0

    def overdue(self, state: State, round_s: float, average_s: float = 0.0) -> p.Overdue | None:
        """Return what the conductor is told once answers take too long.

        round_s: the forecast duration of a round. average_s: that of the average which follows the newest commit.
        """
        waits_for = (state.phase, state.attempt, state.history.rounds)
        if waits_for != self._waits_for:
            self._waits_for, self._since_s = waits_for, self._now_s()
        patience_s = _patience_s(state, round_s, average_s)
        if state.phase not in OWED or self._now_s() - self._since_s <= patience_s:
            return None
        self._waits_for = ()
        return p.Overdue(attempt=state.attempt, phase=state.phase, round=state.history.rounds, patience_s=patience_s)


def _patience_s(state: State, round_s: float, average_s: float) -> float:
    if state.phase == phases.FINISHING:
        return SAVING_AT_STOP_S if state.stop else SAVING_S + PATIENCE_AVERAGES * average_s
    patience_s = max(MIN_PATIENCE_S, PATIENCE_ROUNDS * round_s) + PATIENCE_AVERAGES * average_s
    if state.phase == phases.COLLECTING or state.saving is not None:
        patience_s += SAVING_S  # a device that writes a checkpoint ends that before anything else
    return max(LOADING_S, patience_s) if state.phase == phases.MOVING else patience_s
