"""Stages, shares and links laid out as the tracks of the event loop; compiled, for planners ask about many."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.clock.engine import Ints, Tracks
from fleetune.compiled import compiled, inner

Floats = NDArray[np.float64]


class Layout(NamedTuple):
    """All that decides how long a round takes; arrays may be longer than what they hold."""

    size: Ints
    """Stages, micro-batches."""
    first: Ints
    """[stage] its first member; and one more."""
    device: Ints
    """[member] row of the link matrices."""
    samples: Ints
    """[member] of every micro-batch."""
    duration: Ints
    """[member, letter] ns; 0 forward, 1 backward."""
    warmup: Ints
    """[stage] forwards before the first backward."""
    trainable_bytes: Ints
    """[stage]"""
    output_bytes: Ints
    """[stage] per sample, to the next stage."""
    gradient_bytes: Ints
    """[stage] per sample, back across the same cut."""
    bandwidth_bytes_per_s: Floats
    """[from, to]"""
    latency_s: Floats
    """[from, to]"""


def new_layout(members: int, stages: int, bandwidth_bytes_per_s: Floats, latency_s: Floats) -> Layout:
    """Room for that many."""
    return Layout(
        size=np.zeros(2, np.int64),
        first=np.zeros(stages + 1, np.int64),
        device=np.zeros(members, np.int64),
        samples=np.zeros(members, np.int64),
        duration=np.zeros((members, 2), np.int64),
        warmup=np.zeros(stages, np.int64),
        trainable_bytes=np.zeros(stages, np.int64),
        output_bytes=np.zeros(stages, np.int64),
        gradient_bytes=np.zeros(stages, np.int64),
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        latency_s=latency_s,
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
    tracks.used[0], tracks.used[1] = layout.first[stages], 0
    tracks.used[2], tracks.used[3] = layout.size[1], stages
    for p in range(stages):
        for g in range(layout.first[p], layout.first[p + 1]):
            tracks.stage[g] = p
            tracks.duration[g, 0], tracks.duration[g, 1] = layout.duration[g, 0], layout.duration[g, 1]
            tracks.awaits[g, 0] = tracks.awaits[g, 1] = 0
    for p in range(stages):
        for g in range(layout.first[p], layout.first[p + 1]):
            for letter in range(2):
                tracks.first_route[2 * g + letter] = tracks.used[1]
                if 0 <= p + 1 - 2 * letter < stages:
                    _routes(layout, tracks, g, p, letter)
    tracks.first_route[2 * tracks.used[0]] = tracks.used[1]


@inner
def lay_orders(layout: Layout, tracks: Tracks) -> None:
    """What everybody does in which order."""
    for p in range(layout.size[0]):
        for g in range(layout.first[p], layout.first[p + 1]):
            _one_forward_one_backward(tracks, g, min(layout.warmup[p], layout.size[1]), layout.size[1])


@inner
def _one_forward_one_backward(tracks: Tracks, g: int, warm: int, micro_batches: int) -> None:
    """min(K, M) forwards, then backward 0, forward K, backward 1, ..."""
    at = warm
    for m in range(warm):
        tracks.order[g, m] = 2 * m
    for m in range(micro_batches):
        tracks.order[g, at] = 2 * m + 1
        at += 1
        if warm + m < micro_batches:
            tracks.order[g, at] = 2 * (warm + m)
            at += 1
    tracks.length[g] = at


@inner
def _routes(layout: Layout, tracks: Tracks, g: int, p: int, letter: int) -> None:
    """What member g of stage p sends after a task, wherever its samples and a neighbour's overlap."""
    other = p + 1 - 2 * letter
    low = min(p, other)
    per_sample = layout.output_bytes[low] if letter == 0 else layout.gradient_bytes[low]
    begin = 0
    for k in range(layout.first[p], g):
        begin += layout.samples[k]
    end, from_, at = begin + layout.samples[g], layout.device[g], 0
    for h in range(layout.first[other], layout.first[other + 1]):
        overlap = min(end, at + layout.samples[h]) - max(begin, at)
        at += layout.samples[h]
        if overlap <= 0:
            continue
        r, to = tracks.used[1], layout.device[h]
        tracks.used[1] += 1
        tracks.sender[r], tracks.receiver[r], tracks.letter[r] = g, h, letter
        tracks.bytes[r] = overlap * per_sample
        tracks.holds[r] = np.int64(np.rint(tracks.bytes[r] / layout.bandwidth_bytes_per_s[from_, to] * 1e9))
        tracks.latency[r] = np.int64(np.rint(layout.latency_s[from_, to] * 1e9))
        places = tracks.stage.size
        tracks.rank[r] = (low * places + g - layout.first[p]) * places + h - layout.first[other]
        tracks.awaits[h, letter] += 1


@compiled
def reduce_ns(layout: Layout, p: int) -> int:
    """Ring all-reduce: 2(|G|-1) · (largest latency + w / (|G| · smallest bandwidth)), over all ordered pairs; 0 for a
    single device."""
    count = layout.first[p + 1] - layout.first[p]
    if count == 1:
        return 0
    latency_s, bandwidth = 0.0, np.inf
    for g in range(layout.first[p], layout.first[p + 1]):
        for h in range(layout.first[p], layout.first[p + 1]):
            if g != h:
                latency_s = max(latency_s, layout.latency_s[layout.device[g], layout.device[h]])
                bandwidth = min(bandwidth, layout.bandwidth_bytes_per_s[layout.device[g], layout.device[h]])
    lasts_s = 2 * (count - 1) * (latency_s + layout.trainable_bytes[p] / (count * bandwidth))
    return int(np.rint(lasts_s * 1e9))
