"""The error that a training ends with which is not done."""

from fleetune.errors import FleetuneError, by_exit_code
from fleetune.recovery import protocol as p


def end_error(end: p.End, cause: p.Event | None, newest_loss: FleetuneError | None) -> FleetuneError:
    """Return the error; what was lost comes before what follows from it.

    cause: the event that led to the end. newest_loss: what a training ends with that cannot go on without what was lost
    last.
    """
    if newest_loss is not None and isinstance(cause, p.Ended | p.Gap):
        return newest_loss
    if newest_loss is not None and isinstance(cause, p.NoPlan):
        return type(newest_loss)(f"{newest_loss}; the devices that are left cannot go on: {end.reason}")
    return by_exit_code(end.exit_code, end.reason)
