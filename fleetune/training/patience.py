"""How long the coordinator waits for answers that all devices of a phase owe."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fleetune.errors import TryAgain
from fleetune.recovery import state as phases
from fleetune.recovery.state import State
from fleetune.training.checkpoints import SAVING_AT_STOP_S, SAVING_S
from fleetune.training.liveness import LOADING_S

MIN_PATIENCE_S, PATIENCE_ROUNDS = 120.0, 50.0
"""Longest wait for a device's part of a round: so many seconds, or forecast rounds."""
PATIENCE_AVERAGES = 5.0
"""Forecast averages over lanes that are waited for beside that, where one comes before the answer."""
WAITS_FOR = {phases.COLLECTING: "aborted", phases.MOVING: "moved", phases.RUNNING: "ready", phases.FINISHING: "saved"}


class Late(NamedTuple):
    """An answer that does not come."""

    device: str
    kind: str
    patience_s: float


class Patience:
    """Measures how long a phase lasts."""

    def __init__(self, now_s: Callable[[], float], rounds: int) -> None:
        """rounds: of the whole training."""
        self._now_s, self._rounds = now_s, rounds
        self._waits_for: tuple[Any, ...] = ()
        self._since_s = 0.0

    def late(self, state: State, round_s: float, average_s: float = 0.0) -> Late | None:
        """Return the first answer that is overdue; TryAgain if it is a checkpoint's, at the end that was asked for.

        round_s: the forecast duration of a round. average_s: that of the average which follows the newest commit.
        """
        kind, waits_for = WAITS_FOR.get(state.phase), (state.phase, state.attempt, state.history.rounds)
        if waits_for != self._waits_for:
            self._waits_for, self._since_s = waits_for, self._now_s()
        if kind is None or self._now_s() - self._since_s <= (
            patience_s := _patience_s(kind, state, round_s, average_s)
        ):
            return None
        asked = state.members if kind == "aborted" else state.plan.savers if kind == "saved" else state.plan.devices
        answered = state.saved if kind == "saved" else state.answered
        device = next(device for device in sorted(asked) if device not in answered)
        if kind == "saved" and state.stop:
            raise TryAgain(
                f"ended after round {state.history.rounds} of {self._rounds}, but a checkpoint was not possible within "
                f"{SAVING_AT_STOP_S:.0f} s: {device} has not written its part; run it again to go on"
            )
        self._waits_for = ()
        return Late(device, kind, patience_s)


def _patience_s(kind: str, state: State, round_s: float, average_s: float) -> float:
    if kind == "saved":
        return SAVING_AT_STOP_S if state.stop else SAVING_S + PATIENCE_AVERAGES * average_s
    patience_s = max(MIN_PATIENCE_S, PATIENCE_ROUNDS * round_s) + PATIENCE_AVERAGES * average_s
    if kind == "aborted" or state.saving is not None:
        patience_s += SAVING_S  # a device that writes a checkpoint ends that before anything else
    return max(LOADING_S, patience_s) if kind == "moved" else patience_s
