"""The exact event simulation of one round of a pipeline, on whole nanoseconds.

A device runs its tasks one at a time in order. A forward starts when the inputs of all its samples have arrived, a
backward when the gradients of all its samples have (on the last stage only the order binds). A transfer occupies the
sender's egress port and the receiver's ingress port, and arrives one latency after it has released both. At each
instant

1. everything that ends then is handled;
2. the waiting transfers are visited once, in order of (time they became ready, micro-batch, lower of the two stages
   joined, sender's place, receiver's place); each whose two ports are free starts, a blocked one occupies no port and
   may be overtaken;
3. free devices start their next task if it is ready;

and what these end at the same instant is handled next in the same way. When all members of a stage have ended, a stage
of several members runs a ring all-reduce, which occupies no port. The round ends when everything has ended.
"""

import numpy as np

from fleetune.clock import event_loop
from fleetune.clock import pipeline_arrays as columns
from fleetune.clock.event_loop import TASKS, TRANSFERS, SimInput, SimState, new_input, new_state, run_event_loop
from fleetune.clock.pipeline import AllReduceSpan, Order, Pipeline, PipelineTrace, TaskSpan, TransferSpan
from fleetune.clock.pipeline_arrays import PipelineArrays, all_reduce_ns, fill_input, new_arrays
from fleetune.errors import Refused

_LETTERS = "FB"


def simulate(pipeline: Pipeline) -> PipelineTrace:
    """Simulate one round; the spans are in order of their start."""
    arrays = _arrays_of(pipeline)
    members = [(p, place) for p, stage in enumerate(pipeline.stages) for place in range(len(stage.members))]
    inputs = new_input(len(members), pipeline.micro_batches, len(pipeline.stages))
    fill_input(arrays, inputs)
    for g, (p, place) in enumerate(members):
        _give_order(inputs, g, pipeline.stages[p].members[place].order)
    state = new_state(len(members), pipeline.micro_batches, len(pipeline.stages))
    now = int(run_event_loop(inputs, state))
    reached, length = state.member[:, event_loop.POSITION].tolist(), inputs.member[:, event_loop.LENGTH].tolist()
    deadlocked = tuple((*members[g], reached[g]) for g in range(len(members)) if reached[g] < length[g])
    reduces = () if deadlocked else tuple(_all_reduces(pipeline, arrays, state))
    ends = [now, *(reduce.end_ns for reduce in reduces)]
    return PipelineTrace(
        max(ends), _tasks(members, inputs, state), _transfers(members, inputs, state), reduces, deadlocked
    )


def _arrays_of(pipeline: Pipeline) -> PipelineArrays:
    members = [member for stage in pipeline.stages for member in stage.members]
    arrays = new_arrays(
        len(members),
        len(pipeline.stages),
        np.stack([np.array(pipeline.bandwidth_bytes_per_s), np.array(pipeline.latency_s)], axis=-1).astype(np.float64),
    )
    arrays.size[:] = len(pipeline.stages), pipeline.micro_batches
    arrays.stage[1:, columns.FIRST] = np.cumsum([len(stage.members) for stage in pipeline.stages])
    for g, member in enumerate(members):
        arrays.member[g] = member.device, member.samples, member.forward_ns, member.backward_ns
    for p, stage in enumerate(pipeline.stages):
        row = stage.warmup, stage.trainable_bytes, stage.output_bytes, stage.gradient_bytes
        arrays.stage[p, columns.WARMUP :] = row
    return arrays


def _give_order(inputs: SimInput, g: int, order: Order | None) -> None:
    """Replace the 1F1B order of member g. Refused: too many tasks, or unknown micro-batches."""
    if order is None:
        return
    micro_batches = int(inputs.used[2])
    if len(order) > 2 * micro_batches or any(not 0 <= m < micro_batches for _, m in order):
        raise Refused(
            f"order: {len(order)} tasks are given for {micro_batches} micro-batches; give each micro-batch's forward "
            "and backward once"
        )
    inputs.order[g, : len(order)] = [2 * m + _LETTERS.index(letter) for letter, m in order]
    inputs.member[g, event_loop.LENGTH] = len(order)


def _tasks(members: list[tuple[int, int]], inputs: SimInput, state: SimState) -> tuple[TaskSpan, ...]:
    rows = []
    for g, at, start_ns in state.started[0, : state.sizes[TASKS]].tolist():
        code = int(inputs.order[g, at])
        end_ns = start_ns + int(inputs.member[g, event_loop.FORWARD_NS + code % 2])
        p, place = members[g]
        rows.append(TaskSpan(p, place, _LETTERS[code % 2], code // 2, start_ns, end_ns))
    return tuple(rows)


def _transfers(members: list[tuple[int, int]], inputs: SimInput, state: SimState) -> tuple[TransferSpan, ...]:
    rows = []
    routes = inputs.route.tolist()
    for r, m, start_ns in state.started[1, : state.sizes[TRANSFERS]].tolist():
        sender, receiver, letter, _, holds_ns, latency_ns, size = routes[r]
        end_ns = start_ns + holds_ns
        ends = members[sender], members[receiver]
        rows.append(TransferSpan(*ends, _LETTERS[letter], m, size, start_ns, end_ns, end_ns + latency_ns))
    return tuple(rows)


def _all_reduces(pipeline: Pipeline, arrays: PipelineArrays, state: SimState) -> list[AllReduceSpan]:
    """Return the all-reduce of each stage of several members, from the end of its slowest member."""
    return [
        AllReduceSpan(p, int(state.ended[p]), int(state.ended[p]) + int(all_reduce_ns(arrays, p)))
        for p, stage in enumerate(pipeline.stages)
        if len(stage.members) > 1
    ]
