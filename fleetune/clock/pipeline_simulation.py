"""The exact event simulation of one round of a pipeline, on whole nanoseconds.

A stage is a paper's pipeline stage (a segment in a plan): its members share every micro-batch by samples, and a cut
lies between neighbouring stages. A device runs its tasks one at a time in order. A forward starts when the inputs of
all its samples have arrived, a backward when the gradients of all its samples have (on the last stage only the order
binds). A transfer occupies the sender's egress port and the receiver's ingress port, and arrives one latency after it
has released both. At each instant

1. everything that ends then is handled;
2. the waiting transfers are visited once, in order of (time they became ready, micro-batch, lower of the two stages
   joined, sender's place, receiver's place); each whose two ports are free starts, a blocked one occupies no port and
   may be overtaken;
3. free devices start their next task if it is ready;

and what these end at the same instant is handled next in the same way. When all members of a stage have ended, a stage
of several members runs a ring all-reduce, which occupies no port. The round ends when everything has ended.

`event_simulation` has the same rules for any plan, and says when each task and transfer starts; here only the time of
the round is found, which planners want by the million.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fleetune.clock.event_loop import (
    LENGTH,
    POSITION,
    RECEIVER,
    SENDER,
    SimInput,
    SimState,
    new_input,
    new_state,
    run_event_loop,
)
from fleetune.clock.pipeline_arrays import FIRST, PipelineArrays, all_reduce_ns, fill_input
from fleetune.errors import Refused
from fleetune.jit import compiled

Order = tuple[tuple[str, int], ...]
"""Explicit order of a member: ("F" or "B", micro-batch) of each task."""
DEADLOCK = -1


class Played(NamedTuple):
    """What a simulated round has shown."""

    round_ns: int
    """DEADLOCK if it never ends."""
    ends_ns: list[int]
    """[stage] end of the last task, all-reduce included."""
    sent: list[tuple[int, int, int]]
    """Sender, receiver, and the ns at which the last transfer between them has left, each way of each cut."""


def simulate(layout: PipelineArrays, orders: Mapping[int, Order]) -> Played:
    """Simulate one round.

    orders: of the members that do not run one-forward-one-backward with the stage's warm-up. Refused: too many tasks,
    or unknown micro-batches.
    """
    stages, micro_batches = layout.size.tolist()
    members = int(layout.stage[stages, FIRST])
    inputs, state = new_input(members, micro_batches, stages), new_state(members, micro_batches, stages)
    fill_input(layout, inputs)
    for g, order in orders.items():
        if len(order) > 2 * micro_batches or any(not 0 <= m < micro_batches for _, m in order):
            raise Refused(
                f"order: {len(order)} tasks are given for {micro_batches} micro-batches; give each micro-batch's "
                "forward and backward once"
            )
        inputs.order[g, : len(order)] = [2 * m + "FB".index(letter) for letter, m in order]
        inputs.member[g, LENGTH] = len(order)
    round_ns = int(play(layout, inputs, state))
    routes = zip(inputs.route[: inputs.used[1]].tolist(), state.sent.tolist(), strict=False)
    return Played(
        round_ns, state.ended.tolist(), [(route[SENDER], route[RECEIVER], end_ns) for route, end_ns in routes]
    )


@compiled
def play(layout: PipelineArrays, inputs: SimInput, state: SimState) -> int:
    """Return the nanoseconds of a round whose routes and orders are filled in, or DEADLOCK."""
    ends = run_event_loop(inputs, state)
    for g in range(inputs.used[0]):
        if state.member[g, POSITION] < inputs.member[g, LENGTH]:
            return DEADLOCK
    for p in range(layout.size[0]):
        state.ended[p] += all_reduce_ns(layout, p)
        ends = max(ends, state.ended[p])
    return int(ends)
