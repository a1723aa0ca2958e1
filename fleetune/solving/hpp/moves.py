"""Small changes of a sketch; compiled. Each says whether it changed anything; shares and cuts it upsets are made anew.

Chance comes from a xorshift generator in an array, so that a seed means the same everywhere.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.compiled import inner, signed
from fleetune.solving.hpp.case import GRADIENT, OUTPUT, Ints, Numbers
from fleetune.solving.hpp.dealing import deal_exactly, most_samples
from fleetune.solving.hpp.sketch import Sketch

Chance = NDArray[np.uint64]


class Rules(NamedTuple):
    """What a plan must keep to."""

    flags: Ints
    """Every device takes part (0 or 1), the number of stages (0: any), K is free (0 or 1)."""
    warmups: Ints
    """[stages, stage]: K by the policy."""


@signed("int64(uint64[::1], int64)")
def below(chance: Chance, count: int) -> int:
    """A whole number of 0..count-1."""
    x = chance[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    chance[0] = x
    return int(np.int64((x >> np.uint64(11)) % np.uint64(count)))


@inner
def stage_of(sketch: Sketch, g: int) -> int:
    """The stage of member g."""
    p = 0
    while sketch.first[p + 1] <= g:
        p += 1
    return p


@inner
def take_out(sketch: Sketch, g: int) -> int:
    """Remove member g, and its stage when it was alone (a neighbour inherits the layers); the device."""
    p, device, stages = stage_of(sketch, g), sketch.device[g], sketch.size[0]
    for h in range(g, sketch.first[stages] - 1):
        sketch.device[h], sketch.samples[h] = sketch.device[h + 1], sketch.samples[h + 1]
    for q in range(p + 1, stages + 1):
        sketch.first[q] -= 1
    if sketch.first[p] == sketch.first[p + 1]:
        _drop(sketch, p)
    return int(device)


@inner
def _drop(sketch: Sketch, p: int) -> None:
    """Remove an empty stage; the one before it, or the first of the rest, takes its layers."""
    stages = sketch.size[0]
    for q in range(p, stages):
        sketch.first[q] = sketch.first[q + 1]
        if q > 0 or stages == 1:
            sketch.edge[q] = sketch.edge[q + 1]
    sketch.size[0] = stages - 1


@inner
def put_in(sketch: Sketch, p: int, place: int, device: int) -> None:
    """Make `device` a member of stage p, at `place`."""
    stages = sketch.size[0]
    at = sketch.first[p] + place
    for h in range(sketch.first[stages], at, -1):
        sketch.device[h], sketch.samples[h] = sketch.device[h - 1], sketch.samples[h - 1]
    sketch.device[at], sketch.samples[at] = device, 1
    for q in range(p + 1, stages + 1):
        sketch.first[q] += 1


@inner
def open_stage(sketch: Sketch, p: int, edge: int, members: int) -> None:
    """Part stage p at layer `edge`: its first `members` stay, the rest become stage p + 1."""
    stages = sketch.size[0]
    for q in range(stages + 1, p + 1, -1):
        sketch.first[q], sketch.edge[q] = sketch.first[q - 1], sketch.edge[q - 1]
    sketch.first[p + 1], sketch.edge[p + 1] = sketch.first[p] + members, edge
    sketch.size[0] = stages + 1


@inner
def deal(numbers: Numbers, sketch: Sketch, p: int) -> None:
    """New shares for stage p; where memory forbids any, those it would have with a single forward kept, or even ones
    (the sketch then lacks memory, and is scored so)."""
    low, high = sketch.first[p], sketch.first[p + 1]
    group, shares = sketch.device[low:high], sketch.samples[low:high]
    first, end = sketch.edge[p], sketch.edge[p + 1]
    for kept in (int(sketch.warmup[p]), int(sketch.size[0] * 0)):
        if deal_exactly(numbers, group, first, end, kept, shares):
            return
    batch = numbers.seconds.shape[1] - 1
    for k in range(shares.size):
        shares[k] = batch // shares.size + (1 if k < batch % shares.size else 0)


@inner
def fits(numbers: Numbers, sketch: Sketch, p: int) -> bool:
    """Whether the shares of stage p fit its devices' memories."""
    for g in range(sketch.first[p], sketch.first[p + 1]):
        room = most_samples(numbers, sketch.device[g], sketch.edge[p], sketch.edge[p + 1], sketch.warmup[p])
        if sketch.samples[g] > room:
            return False
    return True


@inner
def give_warmups(numbers: Numbers, sketch: Sketch, rules: Rules) -> None:
    """K of every stage by the policy; where K is free, lowered until the shares fit (K may not rise again behind)."""
    stages = sketch.size[0]
    for p in range(stages):
        sketch.warmup[p] = rules.warmups[stages, p]
    if rules.flags[2] == 0:
        return
    for p in range(stages):
        sketch.warmup[p] = min(sketch.warmup[p], numbers.micro_batches)
        if p > 0:
            sketch.warmup[p] = min(sketch.warmup[p], sketch.warmup[p - 1])
        low, high = sketch.first[p], sketch.first[p + 1]
        while sketch.warmup[p] > 1 and not deal_exactly(
            numbers,
            sketch.device[low:high],
            sketch.edge[p],
            sketch.edge[p + 1],
            sketch.warmup[p],
            sketch.samples[low:high],
        ):
            sketch.warmup[p] -= 1


@inner
def balance(numbers: Numbers, sketch: Sketch, rules: Rules, pace_s: NDArray[np.float64]) -> bool:
    """Move the cuts so that no stage takes longer than need be, nor what it sends, if its group dealt samples like a
    fluid, and so that it fits memory where any cuts of these groups do; False where there are fewer layers than stages.
    `pace_s` is memory for two numbers per stage.
    """
    stages, layers = sketch.size[0], numbers.seconds.shape[2] - 1
    if stages > layers:
        return False
    if stages == 1:
        return True
    low, high = 0.0, 0.0
    for p in range(stages):
        pace_s[p, 0] = pace_s[p, 1] = 0.0
        high = max(high, _fluid_s(numbers, sketch, p, sketch.edge[0], layers))
    for p in range(stages - 1):
        pace_s[p, 0] = _pace_s(numbers, sketch, p, p + 1)
        pace_s[p + 1, 1] = _pace_s(numbers, sketch, p + 1, p)
    for edge in range(1, layers):
        for p in range(stages):
            high = max(high, _sending_s(numbers, pace_s, p, edge, edge))
    heed = _sweep(numbers, sketch, rules, pace_s, (high, stages > 0))
    for _ in range(14):
        middle = 0.5 * (low + high)
        if _sweep(numbers, sketch, rules, pace_s, (middle, heed)):
            high = middle
        else:
            low = middle
    return _sweep(numbers, sketch, rules, pace_s, (high, heed))


@inner
def _sweep(
    numbers: Numbers, sketch: Sketch, rules: Rules, pace_s: NDArray[np.float64], limits: tuple[float, bool]
) -> bool:
    """Give every stage as many layers as it does within the limit, cut where it sends within it too; whether that was
    possible. `limits`: seconds, and whether the group must have the memory as well."""
    stages, layers = sketch.size[0], numbers.seconds.shape[2] - 1
    first, possible = int(sketch.edge[0]), True
    for p in range(stages - 1):
        low, high = first + 1, layers - (stages - 1 - p)
        while low < high:
            middle = (low + high + 1) // 2
            if _within(numbers, sketch, rules, (p, first, middle), limits):
                low = middle
            else:
                high = middle - 1
        cut = low
        while cut > first and (
            _sending_s(numbers, pace_s, p, first, cut) > limits[0]
            or _sending_s(numbers, pace_s, p + 1, cut, layers) > limits[0]
        ):
            cut -= 1
        if cut == first:
            cut, possible = low, False
        possible &= low > first + 1 or _within(numbers, sketch, rules, (p, first, cut), limits)
        sketch.edge[p], sketch.edge[p + 1] = first, cut
        first = cut
    sketch.edge[stages - 1], sketch.edge[stages] = first, layers
    return possible and _within(numbers, sketch, rules, (stages - 1, first, layers), limits)


@inner
def _within(
    numbers: Numbers, sketch: Sketch, rules: Rules, span: tuple[int, int, int], limits: tuple[float, bool]
) -> bool:
    """Whether stage span[0] does layers [span[1], span[2]) in time and, if asked, has room for a micro-batch's samples
    with as few forwards kept as the rules allow."""
    p, first, end = span
    if _fluid_s(numbers, sketch, p, first, end) > limits[0]:
        return False
    if not limits[1]:
        return True
    kept, total = int(rules.warmups[sketch.size[0], p]), 0
    if rules.flags[2]:
        kept = 1
    for g in range(sketch.first[p], sketch.first[p + 1]):
        room = most_samples(numbers, sketch.device[g], first, end, kept)
        if room < 1:
            return False
        total += room
    return bool(total >= numbers.seconds.shape[1] - 1)


@inner
def _sending_s(numbers: Numbers, pace_s: NDArray[np.float64], p: int, first: int, end: int) -> float:
    """What stage p, of layers [first, end), sends of a micro-batch: outputs on, gradients back."""
    batch = numbers.seconds.shape[1] - 1
    return float(batch * (pace_s[p, 0] * numbers.edge[end, OUTPUT] + pace_s[p, 1] * numbers.edge[first, GRADIENT]))


@inner
def _fluid_s(numbers: Numbers, sketch: Sketch, p: int, first: int, end: int) -> float:
    """Forward and backward seconds of a micro-batch on stage p, each device at its speed for its even share."""
    batch, speed = numbers.seconds.shape[1] - 1, 0.0
    count = sketch.first[p + 1] - sketch.first[p]
    y = max(1, batch // count)
    for g in range(sketch.first[p], sketch.first[p + 1]):
        table = numbers.seconds[sketch.device[g], y]
        speed += y / max(table[end, 0] - table[first, 0] + table[end, 1] - table[first, 1], 1e-15)
    return float(batch / speed)


@inner
def _pace_s(numbers: Numbers, sketch: Sketch, a: int, b: int) -> float:
    """Seconds per byte of a micro-batch from stage a to stage b, dealt like a fluid: the busiest port of either."""
    most, shares = 0.0, numbers.hand[0]
    for p in (a, b):
        total = 0.0
        for g in range(sketch.first[p], sketch.first[p + 1]):
            y = max(1, (numbers.seconds.shape[1] - 1) // (sketch.first[p + 1] - sketch.first[p]))
            table = numbers.seconds[sketch.device[g], y]
            end = table.shape[0] - 1
            shares[g] = 1.0 / max(table[end, 0] + table[end, 1], 1e-15)
            total += shares[g]
        for g in range(sketch.first[p], sketch.first[p + 1]):
            shares[g] /= total
    for here, there in ((a, b), (b, a)):
        low = 0.0
        for g in range(sketch.first[here], sketch.first[here + 1]):
            high, busy, reached = low + shares[g], 0.0, 0.0
            for h in range(sketch.first[there], sketch.first[there + 1]):
                shared = min(high, reached + shares[h]) - max(low, reached)
                reached += shares[h]
                if shared > 1e-9:
                    sender, receiver = (g, h) if here == a else (h, g)
                    busy += shared / numbers.link[sketch.device[sender], sketch.device[receiver], 0]
            most, low = max(most, busy), high
    return float(most)
