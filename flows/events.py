"""Events that a run emits to its listener."""

from collections.abc import Callable

from fleetune.contracts.record import one_of, record

KINDS = ("started", "progress", "note", "reused", "done", "failed", "stopped")


@record
class StageEvent:
    """One event of one stage."""

    stage: str
    """Its name; `run` for the run as a whole."""
    kind: str
    """started, progress, note, reused, done, failed or stopped."""
    text: str = ""
    """progress: what is being done; failed: the error; otherwise why (`ran: data changed`) or a remark."""
    done: float = 0.0
    total: float = 0.0
    unit: str = ""
    """progress only: done of total, in this unit."""
    detail: str = ""
    """progress only: what else there is to tell (`round 12 of 40, loss 2.13`)."""
    seconds: float = 0.0
    """done and failed: how long the stage took."""

    def __post_init__(self) -> None:
        one_of(f"event of {self.stage}", "kind", self.kind, KINDS)


EventListener = Callable[[StageEvent], None]


def ignore_event(event: StageEvent) -> None:
    """The default listener."""
