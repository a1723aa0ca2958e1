"""The devices of a training: one record each, with one status.

SPARE    left out by the first plan; is started with the first loss
AWAY     lost, and not started again
DUE      is started again after a pause, and has not said hello
LOADING  has said hello, and loads its part of the first plan while the others train on
LOADED   waits until lanes are averaged: only then a lane that begins again has a state
WAITING  joins at the border of a round, or at the next loss
MEMBER   lives, and was told of the attempt

A device that is lost again and again is started later each time, and then no more.
"""

from dataclasses import replace

from fleetune.contracts.record import record

SPARE, AWAY, DUE, LOADING, LOADED, WAITING, MEMBER = "spare", "away", "due", "loading", "loaded", "waiting", "member"
HERE = (LOADING, LOADED, WAITING, MEMBER)
"""Of devices whose processes live."""
FIRST_S, MAX_S = 2.0, 60.0
"""Seconds from a device's loss to the start of its next worker: the first, and the most."""
CALM_ROUNDS = 20
"""A device that was there for so many committed rounds is trusted as at the beginning."""
MAX_IN_A_ROW = 6
"""A device that was lost so often in a row, none of them after CALM_ROUNDS, is not started again."""


@record
class Device:
    """What the conductor knows of a device."""

    name: str
    status: str
    suspected: bool = False
    """True once it was not heard within its limit, until it is heard again."""
    losses: int = 0
    """In a row."""
    since_round: int | None = None
    """Rounds that were committed when it came back; None for one that was never away."""

    @property
    def pause_s(self) -> float:
        """Seconds until its next worker is started."""
        return min(MAX_S, FIRST_S * 2 ** (self.losses - 1)) if self.losses else 0.0

    def lost(self, rounds: int, returns: bool) -> "Device":
        """Return its record after its loss, which so many committed rounds came before. returns: it may come back."""
        calm = self.since_round is not None and rounds - self.since_round >= CALM_ROUNDS
        losses = 1 if calm else self.losses + 1
        status = DUE if returns and losses <= MAX_IN_A_ROW else AWAY
        return Device(name=self.name, status=status, losses=losses)

    def came(self, rounds: int, status: str) -> "Device":
        """Return its record once it may take part, after so many committed rounds."""
        return replace(self, status=status, since_round=rounds)
