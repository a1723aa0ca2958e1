"""The course of a training that lost devices: rounds over time, what was lost, and how the training went on."""

from typing import Annotated

from pydantic import Field

from fleetune.contracts.record import not_negative, record


@record
class Progressed:
    """So many rounds were done then."""

    at_s: float
    rounds: int


@record
class LostDevice:
    """A device that was lost; an empty name: the training broke off without a device at fault."""

    at_s: float
    device: str
    reason: str


@record
class Recovered:
    """The time from a loss to the next round that was committed."""

    from_s: float
    until_s: float
    from_round: int
    """Rounds that were done at the version that the training went on from."""
    again: int
    """Rounds that were run again, beside the broken one."""
    moved_bytes: int
    """Bytes that devices sent each other before."""
    back: Annotated[tuple[str, ...], Field(exclude_if=lambda value: not value)] = ()
    """Devices that had come back and were waited for."""
    broken: Annotated[bool, Field(exclude_if=lambda value: value)] = True
    """False if no round was broken off, as devices came back at its border."""

    def __post_init__(self) -> None:
        not_negative("recovery", again=self.again, moved_bytes=self.moved_bytes, seconds=self.until_s - self.from_s)


@record
class Course:
    """Times are seconds since the training's first event."""

    progress: tuple[Progressed, ...]
    """In the order of time; thinned out, but for the rounds before and after recoveries."""
    losses: tuple[LostDevice, ...]
    recoveries: tuple[Recovered, ...]
