"""Small random changes of a candidate plan; compiled.

Each change returns whether it changed anything, and replaces the shares and cuts that it invalidates. Random numbers
come from a xorshift generator in an array, so that a seed gives the same numbers everywhere.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.arrays import Ints
from fleetune.jit import inner, signed
from fleetune.solving.hpp.candidate import Candidate
from fleetune.solving.hpp.instance import InstanceArrays
from fleetune.solving.hpp.sample_allocation import allocate_optimally, least_samples, max_samples

RandomState = NDArray[np.uint64]
EVERY_DEVICE, STAGE_COUNT, FREE_WARMUP = range(3)
"""Indices of `PlanRules.flags`."""


class PlanRules(NamedTuple):
    """Constraints on a plan besides memory."""

    flags: Ints
    """[every device must take part (0 or 1), number of stages (0: any), K is free (0 or 1)]"""
    warmups: Ints
    """[number of stages, stage]: K by the policy."""


@signed("int64(uint64[::1], int64)")
def random_below(rng: RandomState, count: int) -> int:
    """A random integer from 0 to count - 1."""
    x = rng[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    rng[0] = x
    return int(np.int64((x >> np.uint64(11)) % np.uint64(count)))


@inner
def stage_of(candidate: Candidate, g: int) -> int:
    """Stage of member g."""
    p = 0
    while candidate.first[p + 1] <= g:
        p += 1
    return p


@inner
def remove_member(candidate: Candidate, g: int) -> int:
    """Remove member g and return its device; a stage left empty goes too, and a neighbour takes its layers."""
    p, device, stages = stage_of(candidate, g), candidate.device[g], candidate.size[0]
    for h in range(g, candidate.first[stages] - 1):
        candidate.device[h], candidate.samples[h] = candidate.device[h + 1], candidate.samples[h + 1]
    for q in range(p + 1, stages + 1):
        candidate.first[q] -= 1
    if candidate.first[p] == candidate.first[p + 1]:
        _remove_empty_stage(candidate, p)
    return int(device)


@inner
def _remove_empty_stage(candidate: Candidate, p: int) -> None:
    """Remove an empty stage; the one before it, or the next one where it is the first, takes its layers."""
    stages = candidate.size[0]
    for q in range(p, stages):
        candidate.first[q] = candidate.first[q + 1]
        if q > 0 or stages == 1:
            candidate.edge[q] = candidate.edge[q + 1]
    candidate.size[0] = stages - 1


@inner
def insert_member(candidate: Candidate, p: int, place: int, device: int) -> None:
    """Insert `device` into stage p at position `place`."""
    stages = candidate.size[0]
    at = candidate.first[p] + place
    for h in range(candidate.first[stages], at, -1):
        candidate.device[h], candidate.samples[h] = candidate.device[h - 1], candidate.samples[h - 1]
    candidate.device[at], candidate.samples[at] = device, 1
    for q in range(p + 1, stages + 1):
        candidate.first[q] += 1


@inner
def split_stage(candidate: Candidate, p: int, edge: int, members: int) -> None:
    """Split stage p at layer `edge`: its first `members` stay, the rest become stage p + 1."""
    stages = candidate.size[0]
    for q in range(stages + 1, p + 1, -1):
        candidate.first[q], candidate.edge[q] = candidate.first[q - 1], candidate.edge[q - 1]
    candidate.first[p + 1], candidate.edge[p + 1] = candidate.first[p] + members, edge
    candidate.size[0] = stages + 1


@inner
def allocate_stage(arrays: InstanceArrays, candidate: Candidate, p: int) -> None:
    """Allocate the samples of stage p again.

    Where memory allows no allocation, use the one for a single kept forward, or else even shares; the candidate is
    then short of memory or of samples, and its score says so.
    """
    low, high = candidate.first[p], candidate.first[p + 1]
    group, shares = candidate.device[low:high], candidate.samples[low:high]
    first, end = candidate.edge[p], candidate.edge[p + 1]
    for kept in (int(candidate.warmup[p]), int(candidate.size[0] * 0)):
        if allocate_optimally(arrays, group, first, end, kept, shares):
            return
    batch = arrays.seconds.shape[1] - 1
    for k in range(shares.size):
        shares[k] = batch // shares.size + (1 if k < batch % shares.size else 0)


@inner
def fits(arrays: InstanceArrays, candidate: Candidate, p: int) -> bool:
    """Tell whether the shares of stage p fit into its devices' memories, and are enough for its layers."""
    first, end, kept = candidate.edge[p], candidate.edge[p + 1], candidate.warmup[p]
    least, members = least_samples(arrays, first, end), candidate.first[p + 1] - candidate.first[p]
    for g in range(candidate.first[p], candidate.first[p + 1]):
        room = max_samples(arrays, candidate.device[g], first, end, kept, members)
        if candidate.samples[g] > room or candidate.samples[g] < least:
            return False
    return True


@inner
def set_warmups(arrays: InstanceArrays, candidate: Candidate, rules: PlanRules) -> None:
    """Set K of every stage by the policy; where K is free, lower it until shares fit. K never rises towards the end."""
    stages = candidate.size[0]
    for p in range(stages):
        candidate.warmup[p] = rules.warmups[stages, p]
    if rules.flags[FREE_WARMUP] == 0:
        return
    for p in range(stages):
        candidate.warmup[p] = min(candidate.warmup[p], arrays.micro_batches)
        if p > 0:
            candidate.warmup[p] = min(candidate.warmup[p], candidate.warmup[p - 1])
        low, high = candidate.first[p], candidate.first[p + 1]
        while candidate.warmup[p] > 1 and not allocate_optimally(
            arrays,
            candidate.device[low:high],
            candidate.edge[p],
            candidate.edge[p + 1],
            candidate.warmup[p],
            candidate.samples[low:high],
        ):
            candidate.warmup[p] -= 1


@inner
def tune(arrays: InstanceArrays, candidate: Candidate, rules: PlanRules, rng: RandomState, draw: int) -> bool:
    """Change a cut, shares, K or the order inside a group; `draw` from 0 to 61 chooses."""
    if draw < 30:
        return candidate.size[0] > 1 and _move_cut(arrays, candidate, rng)
    if draw < 50:
        return _move_samples(arrays, candidate, rng)
    if draw < 58 and rules.flags[FREE_WARMUP]:
        return _change_warmup(arrays, candidate, rng)
    return _swap_members(candidate, rng)


@inner
def regroup(candidate: Candidate, rng: RandomState, draw: int) -> bool:
    """Change the groups of devices; `draw` from 62 to 99 chooses."""
    if draw < 74:
        return _move_device(candidate, rng)
    if draw < 86:
        return _swap_devices(candidate, rng)
    if draw < 90:
        return _merge_stages(candidate, rng)
    if draw < 95:
        return _divide_stage(candidate, rng)
    return candidate.size[0] > 1 and _swap_stages(candidate, random_below(rng, candidate.size[0] - 1))


@inner
def _move_cut(arrays: InstanceArrays, candidate: Candidate, rng: RandomState) -> bool:
    """Move a cut by a few layers."""
    p = 1 + random_below(rng, candidate.size[0] - 1)
    step = 1 + random_below(rng, 1 << random_below(rng, 5))
    edge = candidate.edge[p] + (step if random_below(rng, 2) else -step)
    edge = min(max(edge, candidate.edge[p - 1] + 1), candidate.edge[p + 1] - 1)
    if edge == candidate.edge[p]:
        return False
    candidate.edge[p] = edge
    reallocate = random_below(rng, 2)
    for q in range(p - 1, p + 1):
        if reallocate or not fits(arrays, candidate, q):
            allocate_stage(arrays, candidate, q)
    return True


@inner
def _move_samples(arrays: InstanceArrays, candidate: Candidate, rng: RandomState) -> bool:
    """Move samples from one member of a stage to another."""
    g = random_below(rng, candidate.first[candidate.size[0]])
    p = stage_of(candidate, g)
    count = candidate.first[p + 1] - candidate.first[p]
    if count < 2:
        return False
    h = candidate.first[p] + random_below(rng, count)
    spare = candidate.samples[g] - least_samples(arrays, candidate.edge[p], candidate.edge[p + 1])
    moved = min(spare, 1 + random_below(rng, 1 << random_below(rng, 6)))
    if h == g or moved < 1:
        return False
    candidate.samples[g] -= moved
    candidate.samples[h] += moved
    return True


@inner
def _change_warmup(arrays: InstanceArrays, candidate: Candidate, rng: RandomState) -> bool:
    """Raise or lower K of a stage by 1; K must not rise from a stage to the next."""
    p = random_below(rng, candidate.size[0])
    k = min(candidate.warmup[p], arrays.micro_batches) + (1 if random_below(rng, 2) else -1)
    ahead = candidate.warmup[p - 1] if p > 0 else arrays.micro_batches
    behind = candidate.warmup[p + 1] if p + 1 < candidate.size[0] else 1
    if k < behind or k > ahead:
        return False
    candidate.warmup[p] = k
    if not fits(arrays, candidate, p):
        allocate_stage(arrays, candidate, p)
    return True


@inner
def _swap_members(candidate: Candidate, rng: RandomState) -> bool:
    """Swap two members of a stage with their shares, which changes who sends to whom."""
    g = random_below(rng, candidate.first[candidate.size[0]])
    p = stage_of(candidate, g)
    h = candidate.first[p] + random_below(rng, candidate.first[p + 1] - candidate.first[p])
    if h == g:
        return False
    candidate.device[g], candidate.device[h] = candidate.device[h], candidate.device[g]
    candidate.samples[g], candidate.samples[h] = candidate.samples[h], candidate.samples[g]
    return True


@inner
def _random_unused_device(candidate: Candidate, rng: RandomState) -> int:
    """A random device that takes no part; -1 where all do."""
    devices, used = candidate.device.size, candidate.first[candidate.size[0]]
    if used == devices:
        return -1
    skip = random_below(rng, devices - used)
    for device in range(devices):
        taken = False
        for g in range(used):
            taken |= candidate.device[g] == device
        if not taken:
            if skip == 0:
                return device
            skip -= 1
    return -1


@inner
def _move_device(candidate: Candidate, rng: RandomState) -> bool:
    """Move a device to another stage or to a new one, leave one out, or take one in."""
    used = candidate.first[candidate.size[0]]
    device = _random_unused_device(candidate, rng) if random_below(rng, 3) == 0 else -1
    if device < 0:
        if used == 1:
            return False
        device = remove_member(candidate, random_below(rng, used))
        if random_below(rng, 4) == 0:
            return True
    p = random_below(rng, candidate.size[0])
    if random_below(rng, 3) == 0:
        if candidate.size[0] == candidate.warmup.size:
            return False
        members = candidate.first[p + 1] - candidate.first[p]
        behind = random_below(rng, 2)
        split_stage(candidate, p, candidate.edge[p + behind], behind * members)
        p += behind
    insert_member(candidate, p, random_below(rng, candidate.first[p + 1] - candidate.first[p] + 1), device)
    return True


@inner
def _swap_devices(candidate: Candidate, rng: RandomState) -> bool:
    """Swap two devices of different stages, or one with a device that takes no part."""
    used = candidate.first[candidate.size[0]]
    g = random_below(rng, used)
    device = _random_unused_device(candidate, rng) if random_below(rng, 3) == 0 else -1
    if device >= 0:
        candidate.device[g] = device
        return True
    h = random_below(rng, used)
    if stage_of(candidate, g) == stage_of(candidate, h):
        return False
    candidate.device[g], candidate.device[h] = candidate.device[h], candidate.device[g]
    return True


@inner
def _merge_stages(candidate: Candidate, rng: RandomState) -> bool:
    """Merge two neighbouring stages."""
    stages = candidate.size[0]
    if stages < 2:
        return False
    p = random_below(rng, stages - 1)
    for q in range(p + 1, stages):
        candidate.first[q], candidate.edge[q] = candidate.first[q + 1], candidate.edge[q + 1]
    candidate.size[0] = stages - 1
    return True


@inner
def _divide_stage(candidate: Candidate, rng: RandomState) -> bool:
    """Divide a stage in two, its members shuffled between them."""
    stages, p = candidate.size[0], random_below(rng, candidate.size[0])
    first, members = candidate.first[p], candidate.first[p + 1] - candidate.first[p]
    if members < 2 or stages == candidate.warmup.size:
        return False
    for k in range(members - 1, 0, -1):
        j = random_below(rng, k + 1)
        a, b = first + k, first + j
        candidate.device[a], candidate.device[b] = candidate.device[b], candidate.device[a]
    middle = (candidate.edge[p] + candidate.edge[p + 1]) // 2
    split_stage(candidate, p, middle, 1 + random_below(rng, members - 1))
    return True


@inner
def _swap_stages(candidate: Candidate, p: int) -> bool:
    """Swap the groups of stages p and p + 1: reverse both together, then each by itself."""
    a, b, c = candidate.first[p], candidate.first[p + 1], candidate.first[p + 2]
    middle = a + c - b
    candidate.first[p + 1] = middle
    for low, high in ((a, c), (a, middle), (middle, c)):
        for k in range((high - low) // 2):
            i, j = low + k, high - 1 - k
            candidate.device[i], candidate.device[j] = candidate.device[j], candidate.device[i]
    return True
