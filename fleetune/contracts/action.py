"""What a device does next, in a spelling that prints and parses back: `main/2F0`.

Lane `main`, segment 2, Forward of micro-batch 0. Letters: F forward, B backward, R all-reduce of the round's gradients
inside a group, U update: gradients to the collector and new parameters back (both of micro-batch 0; updates follow by
themselves and stand in no order). The idea is that of torch.distributed.pipelining's schedules.
"""

import re

from fleetune.contracts.record import record
from fleetune.errors import Refused

FORWARD, BACKWARD, REDUCE, UPDATE = "F", "B", "R", "U"
SPELLING = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)/(\d+)([FBRU])(\d+)")


@record
class Action:
    """One step of one device."""

    lane: str
    segment: int
    letter: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.lane}/{self.segment}{self.letter}{self.micro_batch}"


def parse_action(spelling: str) -> Action:
    """`main/2F0` as an Action; anything else is refused with an example."""
    found = SPELLING.fullmatch(spelling)
    if not found:
        raise Refused(
            f"action {spelling!r}: write LANE/SEGMENT LETTER MICRO-BATCH such as main/2F0, letters F, B, R, U"
        )
    lane, segment, letter, micro_batch = found.groups()
    return Action(lane=lane, segment=int(segment), letter=letter, micro_batch=int(micro_batch))
