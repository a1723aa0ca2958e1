"""Cuts of a candidate plan, balanced by a fluid model of its groups or refined by the lower bound; compiled."""

from typing import NamedTuple

from fleetune.arrays import Floats
from fleetune.jit import inner
from fleetune.solving.hpp.candidate import Candidate, Evaluator, copy, lower_bound
from fleetune.solving.hpp.instance import GRADIENT, OUTPUT, InstanceArrays, Span
from fleetune.solving.hpp.moves import FREE_WARMUP, PlanRules, allocate_stage
from fleetune.solving.hpp.sample_allocation import least_samples, max_samples

_PASSES = 8


class CutLimits(NamedTuple):
    """Limits of a stage while cuts are balanced."""

    seconds: float
    """Limit of computing, and of sending, per micro-batch."""
    memory: bool
    """True: the group must also hold a micro-batch in memory, and each device the fewest samples of its layers."""


@inner
def balance_cuts(arrays: InstanceArrays, candidate: Candidate, rules: PlanRules, port_s_per_byte: Floats) -> bool:
    """Choose cuts that minimise the slowest stage, sending included, by bisection over a fluid model of the groups.

    The cuts fit into memory where any cuts of these groups do. False where there are fewer layers than stages.
    port_s_per_byte: scratch buffer [stage, 2], filled with seconds per byte sent forward and backward.
    """
    stages, layers = candidate.size[0], arrays.seconds.shape[2] - 1
    if stages > layers:
        return False
    if stages == 1:
        return True
    low, high = 0.0, 0.0
    for p in range(stages):
        port_s_per_byte[p, 0] = port_s_per_byte[p, 1] = 0.0
        high = max(high, _fluid_s(arrays, candidate, p, candidate.edge[0], layers))
    for p in range(stages - 1):
        port_s_per_byte[p, 0] = _port_s_per_byte(arrays, candidate, p, p + 1)
        port_s_per_byte[p + 1, 1] = _port_s_per_byte(arrays, candidate, p + 1, p)
    for edge in range(1, layers):
        for p in range(stages):
            high = max(high, _sending_s(arrays, port_s_per_byte, p, edge, edge))
    memory = _sweep(arrays, candidate, rules, port_s_per_byte, CutLimits(high, stages > 0))
    for _ in range(14):
        middle = 0.5 * (low + high)
        if _sweep(arrays, candidate, rules, port_s_per_byte, CutLimits(middle, memory)):
            high = middle
        else:
            low = middle
    return _sweep(arrays, candidate, rules, port_s_per_byte, CutLimits(high, memory))


@inner
def _sweep(
    arrays: InstanceArrays,
    candidate: Candidate,
    rules: PlanRules,
    port_s_per_byte: Floats,
    limits: CutLimits,
) -> bool:
    """Give every stage, first to last, as many layers as the limits allow; False where some stage exceeds them."""
    stages, layers = candidate.size[0], arrays.seconds.shape[2] - 1
    first, possible = int(candidate.edge[0]), True
    for p in range(stages - 1):
        low, high = first + 1, layers - (stages - 1 - p)
        while low < high:
            middle = (low + high + 1) // 2
            if _keeps_limits(arrays, candidate, rules, p, Span(first, middle), limits):
                low = middle
            else:
                high = middle - 1
        cut = low
        while cut > first and (
            _sending_s(arrays, port_s_per_byte, p, first, cut) > limits.seconds
            or _sending_s(arrays, port_s_per_byte, p + 1, cut, layers) > limits.seconds
        ):
            cut -= 1
        if cut == first:
            cut, possible = low, False
        possible &= low > first + 1 or _keeps_limits(arrays, candidate, rules, p, Span(first, cut), limits)
        candidate.edge[p], candidate.edge[p + 1] = first, cut
        first = cut
    candidate.edge[stages - 1], candidate.edge[stages] = first, layers
    return possible and _keeps_limits(arrays, candidate, rules, stages - 1, Span(first, layers), limits)


@inner
def _keeps_limits(
    arrays: InstanceArrays,
    candidate: Candidate,
    rules: PlanRules,
    p: int,
    span: Span,
    limits: CutLimits,
) -> bool:
    """Tell whether stage p keeps the limits with the layers of `span` and as few kept forwards as the rules allow."""
    first, end = span
    if _fluid_s(arrays, candidate, p, first, end) > limits.seconds:
        return False
    if not limits.memory:
        return True
    kept, total, least = int(rules.warmups[candidate.size[0], p]), 0, least_samples(arrays, first, end)
    members = candidate.first[p + 1] - candidate.first[p]
    if least * members > arrays.seconds.shape[1] - 1:
        return False
    if rules.flags[FREE_WARMUP]:
        kept = 1
    for g in range(candidate.first[p], candidate.first[p + 1]):
        room = max_samples(arrays, candidate.device[g], first, end, kept, members)
        if room < least:
            return False
        total += room
    return bool(total >= arrays.seconds.shape[1] - 1)


@inner
def _sending_s(arrays: InstanceArrays, port_s_per_byte: Floats, p: int, first: int, end: int) -> float:
    """Seconds that stage p with layers [first, end) sends per micro-batch: outputs forward, gradients backward."""
    batch = arrays.seconds.shape[1] - 1
    return float(
        batch
        * (port_s_per_byte[p, 0] * arrays.edge[end, OUTPUT] + port_s_per_byte[p, 1] * arrays.edge[first, GRADIENT])
    )


@inner
def _fluid_s(arrays: InstanceArrays, candidate: Candidate, p: int, first: int, end: int) -> float:
    """Forward plus backward seconds of a micro-batch on stage p, each device at its speed at an even share."""
    batch, speed = arrays.seconds.shape[1] - 1, 0.0
    count = candidate.first[p + 1] - candidate.first[p]
    y = max(1, batch // count)
    for g in range(candidate.first[p], candidate.first[p + 1]):
        table = arrays.seconds[candidate.device[g], y]
        speed += y / max(table[end, 0] - table[first, 0] + table[end, 1] - table[first, 1], 1e-15)
    return float(batch / speed)


@inner
def _port_s_per_byte(arrays: InstanceArrays, candidate: Candidate, a: int, b: int) -> float:
    """Seconds per byte of a micro-batch from stage a to stage b on the busiest port, with fluid shares."""
    most, shares = 0.0, arrays.float_scratch[0]
    for p in (a, b):
        total = 0.0
        for g in range(candidate.first[p], candidate.first[p + 1]):
            y = max(1, (arrays.seconds.shape[1] - 1) // (candidate.first[p + 1] - candidate.first[p]))
            table = arrays.seconds[candidate.device[g], y]
            end = table.shape[0] - 1
            shares[g] = 1.0 / max(table[end, 0] + table[end, 1], 1e-15)
            total += shares[g]
        for g in range(candidate.first[p], candidate.first[p + 1]):
            shares[g] /= total
    for here, there in ((a, b), (b, a)):
        low = 0.0
        for g in range(candidate.first[here], candidate.first[here + 1]):
            high, busy, reached = low + shares[g], 0.0, 0.0
            for h in range(candidate.first[there], candidate.first[there + 1]):
                shared = min(high, reached + shares[h]) - max(low, reached)
                reached += shares[h]
                if shared > 1e-9:
                    sender, receiver = (g, h) if here == a else (h, g)
                    busy += shared / arrays.link[candidate.device[sender], candidate.device[receiver], 0]
            most, low = max(most, busy), high
    return float(most)


@inner
def refine_cuts(arrays: InstanceArrays, candidate: Candidate, evaluator: Evaluator, spare: Candidate) -> None:
    """Move each cut to where the lower bound of the score is least nearby, in steps that halve when none helps.

    spare: scratch candidate.
    """
    stages, layers = candidate.size[0], arrays.seconds.shape[2] - 1
    best, step = lower_bound(arrays, candidate, evaluator), max(1, layers // (8 * stages))
    for _ in range(_PASSES):
        before = best
        for p in range(1, stages):
            for way in range(-1, 2, 2):
                edge = candidate.edge[p] + way * step
                if edge <= candidate.edge[p - 1] or edge >= candidate.edge[p + 1]:
                    continue
                copy(candidate, spare)
                candidate.edge[p] = edge
                allocate_stage(arrays, candidate, p - 1)
                allocate_stage(arrays, candidate, p)
                found = lower_bound(arrays, candidate, evaluator)
                if found < best:
                    best = found
                else:
                    copy(spare, candidate)
        if best == before:
            if step == 1:
                return
            step = step // 2
