"""An average over lanes in parts: a few megabytes at a time, so that no device ever holds another's whole state.

The steps of `DeviceProgram.average` run once for each part. A seat pulls one part behind what it pushes: two parts are
on their way while the averaging device sums the next one, and no more than that is held anywhere.
"""

from collections.abc import Iterator
from typing import NamedTuple

from fleetune.program.steps import PULL, Step

PART_BYTES = 1 << 21
"""Most bytes of parameters in a part; the optimizer's moments of these parameters travel with them."""
PARTS_ON_THE_WAY = 2
"""Most parts that a seat has pushed and not pulled."""


class PartStep(NamedTuple):
    """A step of an average, for one part."""

    part: int
    step: Step


def average_steps(steps: tuple[Step, ...], parts: int) -> Iterator[PartStep]:
    """Yield a device's steps of one average of so many parts, in order."""
    for number in range(parts + 1):
        for step in steps:
            part = number - (step.kind == PULL)
            if 0 <= part < parts:
                yield PartStep(part, step)
