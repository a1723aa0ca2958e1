"""The exact event simulation: one round of a pipeline, on whole nanoseconds.

A device runs its tasks one at a time in order. A forward starts when the inputs of all its samples have arrived, a
backward when the gradients of all its samples have (on the last stage only the order binds). A transfer holds the
sender's egress and the receiver's ingress, and has arrived a latency after it let go of both. At each instant

1. everything that ends then is handled;
2. the waiting transfers are looked through once, in order of (time they became ready, micro-batch, lower of the two
   stages joined, sender's place, receiver's place); each whose two ports are free starts, a blocked one holds nothing
   and may be overtaken;
3. free devices start their next task if it is ready;

and what these end at the same instant is handled next in the same way. When all members of a stage have ended, a
stage of several runs a ring all-reduce, which holds no port. The round ends when everything has.
"""

from typing import NamedTuple

import numpy as np

from fleetune.clock import engine
from fleetune.clock import layout as columns
from fleetune.clock.engine import TASKS, TRANSFERS, Desk, Tracks, new_desk, new_tracks, play
from fleetune.clock.layout import Layout, lay, new_layout, reduce_ns
from fleetune.clock.pipeline import Order, Pipeline
from fleetune.errors import Refused

_LETTERS = "FB"


class Task(NamedTuple):
    """A forward (F) or backward (B) of a member."""

    stage: int
    place: int
    letter: str
    micro_batch: int
    start_ns: int
    end_ns: int


class Transfer(NamedTuple):
    """Bytes between members of neighbouring stages; `letter` and `micro_batch` are those of the task that sent them."""

    sender: tuple[int, int]
    """Stage and place."""
    receiver: tuple[int, int]
    letter: str
    micro_batch: int
    bytes: int
    start_ns: int
    end_ns: int
    """When the ports are free again."""
    arrival_ns: int


class Reduce(NamedTuple):
    """The all-reduce of a stage's gradients."""

    stage: int
    start_ns: int
    end_ns: int


class Simulation(NamedTuple):
    """One round. `stuck` is empty, or names (stage, place, position in its order) of every action that waits for ever:
    then the other fields tell how far the round came."""

    round_ns: int
    tasks: tuple[Task, ...]
    transfers: tuple[Transfer, ...]
    reduces: tuple[Reduce, ...]
    stuck: tuple[tuple[int, int, int], ...] = ()


def simulate(pipeline: Pipeline) -> Simulation:
    """Play one round; rows come in the order in which things started."""
    layout = _layout(pipeline)
    members = [(p, place) for p, stage in enumerate(pipeline.stages) for place in range(len(stage.members))]
    tracks = new_tracks(len(members), pipeline.micro_batches, len(pipeline.stages))
    lay(layout, tracks)
    for g, (p, place) in enumerate(members):
        _give_order(tracks, g, pipeline.stages[p].members[place].order)
    desk = new_desk(len(members), pipeline.micro_batches, len(pipeline.stages))
    now = int(play(tracks, desk))
    reached, length = desk.member[:, engine.POSITION].tolist(), tracks.member[:, engine.LENGTH].tolist()
    stuck = tuple((*members[g], reached[g]) for g in range(len(members)) if reached[g] < length[g])
    reduces = () if stuck else tuple(_reduces(pipeline, layout, desk))
    ends = [now, *(reduce.end_ns for reduce in reduces)]
    return Simulation(max(ends), _tasks(members, tracks, desk), _transfers(members, tracks, desk), reduces, stuck)


def _layout(pipeline: Pipeline) -> Layout:
    members = [member for stage in pipeline.stages for member in stage.members]
    layout = new_layout(
        len(members),
        len(pipeline.stages),
        np.stack([np.array(pipeline.bandwidth_bytes_per_s), np.array(pipeline.latency_s)], axis=-1).astype(np.float64),
    )
    layout.size[:] = len(pipeline.stages), pipeline.micro_batches
    layout.stage[1:, columns.FIRST] = np.cumsum([len(stage.members) for stage in pipeline.stages])
    for g, member in enumerate(members):
        layout.member[g] = member.device, member.samples, member.forward_ns, member.backward_ns
    for p, stage in enumerate(pipeline.stages):
        row = stage.warmup, stage.trainable_bytes, stage.output_bytes, stage.gradient_bytes
        layout.stage[p, columns.WARMUP :] = row
    return layout


def _give_order(tracks: Tracks, g: int, order: Order | None) -> None:
    """Replace the usual order of member g."""
    if order is None:
        return
    micro_batches = int(tracks.used[2])
    if len(order) > 2 * micro_batches or any(not 0 <= m < micro_batches for _, m in order):
        raise Refused(
            f"order: {len(order)} tasks are given for {micro_batches} micro-batches; give each micro-batch's forward "
            "and backward once"
        )
    tracks.order[g, : len(order)] = [2 * m + _LETTERS.index(letter) for letter, m in order]
    tracks.member[g, engine.LENGTH] = len(order)


def _tasks(members: list[tuple[int, int]], tracks: Tracks, desk: Desk) -> tuple[Task, ...]:
    rows = []
    for g, at, start_ns in desk.started[0, : desk.sizes[TASKS]].tolist():
        code = int(tracks.order[g, at])
        end_ns = start_ns + int(tracks.member[g, engine.FORWARD + code % 2])
        p, place = members[g]
        rows.append(Task(p, place, _LETTERS[code % 2], code // 2, start_ns, end_ns))
    return tuple(rows)


def _transfers(members: list[tuple[int, int]], tracks: Tracks, desk: Desk) -> tuple[Transfer, ...]:
    rows = []
    routes = tracks.route.tolist()
    for r, m, start_ns in desk.started[1, : desk.sizes[TRANSFERS]].tolist():
        sender, receiver, letter, _, holds_ns, latency_ns, size = routes[r]
        end_ns = start_ns + holds_ns
        ends = members[sender], members[receiver]
        rows.append(Transfer(*ends, _LETTERS[letter], m, size, start_ns, end_ns, end_ns + latency_ns))
    return tuple(rows)


def _reduces(pipeline: Pipeline, layout: Layout, desk: Desk) -> list[Reduce]:
    """Each stage of several members, from the end of its slowest one."""
    return [
        Reduce(p, int(desk.ended[p]), int(desk.ended[p]) + int(reduce_ns(layout, p)))
        for p, stage in enumerate(pipeline.stages)
        if len(stage.members) > 1
    ]
