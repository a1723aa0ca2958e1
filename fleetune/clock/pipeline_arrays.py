"""Stages, members and links of a pipeline as arrays, and their compiled conversion to the event loop's input."""

from typing import NamedTuple

import numpy as np

from fleetune.arrays import Floats, Ints
from fleetune.clock import event_loop
from fleetune.clock.event_loop import SimInput
from fleetune.jit import compiled, inner

FIRST, WARMUP, TRAINABLE, OUTPUT, GRADIENT = range(5)
"""Columns of `PipelineArrays.stage`: first member (an extra row marks the end of the last stage); warm-up forwards;
trainable bytes; bytes per sample to the next stage, and back across the same cut (adjacent columns)."""
DEVICE, SAMPLES, FORWARD_NS, BACKWARD_NS = range(4)
"""Columns of `PipelineArrays.member`: row of the links; samples per micro-batch; ns of a forward and a backward."""


class PipelineArrays(NamedTuple):
    """A pipeline as arrays, which may be longer than their content."""

    size: Ints
    """[2] number of stages, number of micro-batches."""
    stage: Ints
    """[stage, column]"""
    member: Ints
    """[member, column]"""
    link: Floats
    """[from, to, 2] bytes per second, latency in seconds."""


def new_arrays(members: int, stages: int, link: Floats) -> PipelineArrays:
    """Allocate arrays for that many members and stages."""
    return PipelineArrays(
        size=np.zeros(2, np.int64),
        stage=np.zeros((stages + 1, 5), np.int64),
        member=np.zeros((members, 4), np.int64),
        link=link,
    )


@compiled
def fill_input(layout: PipelineArrays, inputs: SimInput) -> None:
    """Fill `inputs` with the routes of every cut and with 1F1B orders."""
    fill_routes(layout, inputs)
    fill_orders(layout, inputs)


@inner
def fill_routes(layout: PipelineArrays, inputs: SimInput) -> None:
    """Fill task durations and the routes in both directions of every cut."""
    stages = layout.size[0]
    members = layout.stage[stages, FIRST]
    inputs.used[0], inputs.used[1], inputs.used[2], inputs.used[3] = members, 0, layout.size[1], stages
    for g in range(members):
        row = inputs.member[g]
        row[event_loop.FORWARD_NS] = layout.member[g, FORWARD_NS]
        row[event_loop.BACKWARD_NS] = layout.member[g, BACKWARD_NS]
        row[event_loop.AWAITS] = row[event_loop.AWAITS + 1] = 0
    for p in range(stages):
        for g in range(layout.stage[p, FIRST], layout.stage[p + 1, FIRST]):
            inputs.member[g, event_loop.STAGE_INDEX] = p
            for letter in range(2):
                inputs.member[g, event_loop.FIRST_ROUTE + letter] = inputs.used[1]
                if 0 <= p + 1 - 2 * letter < stages:
                    _fill_member_routes(layout, inputs, g, p, letter)
    inputs.member[members, event_loop.FIRST_ROUTE] = inputs.used[1]


@inner
def fill_orders(layout: PipelineArrays, inputs: SimInput) -> None:
    """Fill 1F1B orders: min(K, M) forwards, then backward 0, forward K, backward 1, ..."""
    micro_batches = layout.size[1]
    for p in range(layout.size[0]):
        warm = min(layout.stage[p, WARMUP], micro_batches)
        for g in range(layout.stage[p, FIRST], layout.stage[p + 1, FIRST]):
            order, at = inputs.order[g], warm
            for m in range(warm):
                order[m] = 2 * m
            for m in range(micro_batches):
                order[at] = 2 * m + 1
                at += 1
                if warm + m < micro_batches:
                    order[at] = 2 * (warm + m)
                    at += 1
            inputs.member[g, event_loop.LENGTH] = at


@inner
def _fill_member_routes(layout: PipelineArrays, inputs: SimInput, g: int, p: int, letter: int) -> None:
    """Add the routes of member g of stage p for one letter, to each neighbour whose samples overlap with its own."""
    other = p + 1 - 2 * letter
    low, places = min(p, other), inputs.member.shape[0]
    begin, at = 0, 0
    for k in range(layout.stage[p, FIRST], g):
        begin += layout.member[k, SAMPLES]
    end = begin + layout.member[g, SAMPLES]
    for h in range(layout.stage[other, FIRST], layout.stage[other + 1, FIRST]):
        overlap = min(end, at + layout.member[h, SAMPLES]) - max(begin, at)
        at += layout.member[h, SAMPLES]
        if overlap <= 0:
            continue
        route, link = inputs.route[inputs.used[1]], layout.link[layout.member[g, DEVICE], layout.member[h, DEVICE]]
        inputs.used[1] += 1
        route[event_loop.SENDER], route[event_loop.RECEIVER], route[event_loop.LETTER] = g, h, letter
        route[event_loop.HOLDS] = np.int64(np.rint(overlap * layout.stage[low, OUTPUT + letter] / link[0] * 1e9))
        route[event_loop.LATENCY] = np.int64(np.rint(link[1] * 1e9))
        here, there = g - layout.stage[p, FIRST], h - layout.stage[other, FIRST]
        route[event_loop.RANK] = (low * places + here) * places + there
        inputs.member[h, event_loop.AWAITS + letter] += 1


@inner
def all_reduce_ns(layout: PipelineArrays, p: int) -> int:
    """Return the duration of stage p's ring all-reduce in ns; 0 for a single member.

    2(|G|-1) · (largest latency + w / (|G| · smallest bandwidth)), over all ordered pairs of members.
    """
    first, end = layout.stage[p, FIRST], layout.stage[p + 1, FIRST]
    count = end - first
    if count == 1:
        return 0
    latency_s, bandwidth = 0.0, np.inf
    for g in range(first, end):
        for h in range(first, end):
            if g != h:
                link = layout.link[layout.member[g, DEVICE], layout.member[h, DEVICE]]
                latency_s, bandwidth = max(latency_s, link[1]), min(bandwidth, link[0])
    lasts_s = 2 * (count - 1) * (latency_s + layout.stage[p, TRAINABLE] / (count * bandwidth))
    return int(np.rint(lasts_s * 1e9))
