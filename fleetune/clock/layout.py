"""Stages, shares and links laid out as the tracks of the event loop; compiled, for planners ask about many."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.clock import engine
from fleetune.clock.engine import Ints, Tracks
from fleetune.compiled import compiled, inner

Floats = NDArray[np.float64]

FIRST, WARMUP, TRAINABLE, OUTPUT, GRADIENT = range(5)
"""Columns of `Layout.stage`: its first member (one row more says where the last stage ends); forwards before its first
backward; trainable bytes; bytes per sample to the next stage, and back across the same cut (they stand together)."""
DEVICE, SAMPLES, FORWARD, BACKWARD = range(4)
"""Columns of `Layout.member`: row of the links; samples of every micro-batch; ns of a forward and a backward."""


class Layout(NamedTuple):
    """All that decides how long a round takes; arrays may be longer than what they hold."""

    size: Ints
    """Stages, micro-batches."""
    stage: Ints
    """[stage, column]"""
    member: Ints
    """[member, column]"""
    link: Floats
    """[from, to, 2]: bytes per second, latency in seconds."""


def new_layout(members: int, stages: int, link: Floats) -> Layout:
    """Room for that many."""
    return Layout(
        size=np.zeros(2, np.int64),
        stage=np.zeros((stages + 1, 5), np.int64),
        member=np.zeros((members, 4), np.int64),
        link=link,
    )


@compiled
def lay(layout: Layout, tracks: Tracks) -> None:
    """Fill `tracks`: both directions of every cut, and one-forward-one-backward orders."""
    lay_routes(layout, tracks)
    lay_orders(layout, tracks)


@inner
def lay_routes(layout: Layout, tracks: Tracks) -> None:
    """Who lasts how long, and sends what to whom."""
    stages = layout.size[0]
    members = layout.stage[stages, FIRST]
    tracks.used[0], tracks.used[1], tracks.used[2], tracks.used[3] = members, 0, layout.size[1], stages
    for g in range(members):
        row = tracks.member[g]
        row[engine.FORWARD], row[engine.BACKWARD] = layout.member[g, FORWARD], layout.member[g, BACKWARD]
        row[engine.AWAITS] = row[engine.AWAITS + 1] = 0
    for p in range(stages):
        for g in range(layout.stage[p, FIRST], layout.stage[p + 1, FIRST]):
            tracks.member[g, engine.STAGE] = p
            for letter in range(2):
                tracks.member[g, engine.FIRST_ROUTE + letter] = tracks.used[1]
                if 0 <= p + 1 - 2 * letter < stages:
                    _routes(layout, tracks, g, p, letter)
    tracks.member[members, engine.FIRST_ROUTE] = tracks.used[1]


@inner
def lay_orders(layout: Layout, tracks: Tracks) -> None:
    """What everybody does in which order: min(K, M) forwards, then backward 0, forward K, backward 1, ..."""
    micro_batches = layout.size[1]
    for p in range(layout.size[0]):
        warm = min(layout.stage[p, WARMUP], micro_batches)
        for g in range(layout.stage[p, FIRST], layout.stage[p + 1, FIRST]):
            order, at = tracks.order[g], warm
            for m in range(warm):
                order[m] = 2 * m
            for m in range(micro_batches):
                order[at] = 2 * m + 1
                at += 1
                if warm + m < micro_batches:
                    order[at] = 2 * (warm + m)
                    at += 1
            tracks.member[g, engine.LENGTH] = at


@inner
def _routes(layout: Layout, tracks: Tracks, g: int, p: int, letter: int) -> None:
    """What member g of stage p sends after a task, wherever its samples and a neighbour's overlap."""
    other = p + 1 - 2 * letter
    low, places = min(p, other), tracks.member.shape[0]
    begin, at = 0, 0
    for k in range(layout.stage[p, FIRST], g):
        begin += layout.member[k, SAMPLES]
    end = begin + layout.member[g, SAMPLES]
    for h in range(layout.stage[other, FIRST], layout.stage[other + 1, FIRST]):
        overlap = min(end, at + layout.member[h, SAMPLES]) - max(begin, at)
        at += layout.member[h, SAMPLES]
        if overlap <= 0:
            continue
        route, link = tracks.route[tracks.used[1]], layout.link[layout.member[g, DEVICE], layout.member[h, DEVICE]]
        tracks.used[1] += 1
        route[engine.SENDER], route[engine.RECEIVER], route[engine.LETTER] = g, h, letter
        route[engine.BYTES] = overlap * layout.stage[low, OUTPUT + letter]
        route[engine.HOLDS] = np.int64(np.rint(route[engine.BYTES] / link[0] * 1e9))
        route[engine.LATENCY] = np.int64(np.rint(link[1] * 1e9))
        here, there = g - layout.stage[p, FIRST], h - layout.stage[other, FIRST]
        route[engine.RANK] = (low * places + here) * places + there
        tracks.member[h, engine.AWAITS + letter] += 1


@compiled
def reduce_ns(layout: Layout, p: int) -> int:
    """Ring all-reduce: 2(|G|-1) · (largest latency + w / (|G| · smallest bandwidth)), over all ordered pairs; 0 for a
    single device."""
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
