"""Simulated annealing over sketches: a random change is taken when the exact round gets no worse than a threshold drawn
beforehand, so that most changes are refused by a bound without a simulation; compiled.

Kirkpatrick, S., Gelatt, C., Vecchi, M.: Optimization by Simulated Annealing. Science 220, 1983.
"""

from typing import NamedTuple

import numpy as np

from fleetune.compiled import compiled, inner
from fleetune.solving.hpp.case import Floats, Numbers
from fleetune.solving.hpp.hone import hone
from fleetune.solving.hpp.memo import Memo, groups_key, plan_key, recall, remember
from fleetune.solving.hpp.moves import (
    Chance,
    Rules,
    balance,
    below,
    deal,
    fits,
    give_warmups,
    open_stage,
    put_in,
    stage_of,
    take_out,
)
from fleetune.solving.hpp.sketch import NEVER, SHORT, Bench, Sketch, copy, score

AT_ONCE = 4
"""One change in so many is followed by another before the plan is judged."""
BALANCING = 30
"""To make cuts anew takes about as long as to simulate so many tasks for each device."""
NOTHING, READY, REGROUPED = range(3)


class Walk(NamedTuple):
    """Where a walk is, where it was best, and memory for the next step."""

    here: Sketch
    best: Sketch
    trial: Sketch
    scores: np.ndarray
    """Of here and best."""
    spare: Sketch
    """Memory of `hone`."""
    pace_s: Floats
    """[stage, 2] memory of `balance`."""
    memo: Memo
    """Shared by the walks of a search."""


@compiled
def anneal(
    numbers: Numbers, bench: Bench, rules: Rules, walk: Walk, chance: Chance, course: tuple[int, float, float]
) -> None:
    """Walk on from `walk.here` until `course[0]` more work is done; the temperature, in shares of the round, falls
    from `course[1]` to `course[2]` geometrically."""
    began, until = bench.work[0], bench.work[0] + course[0]
    while bench.work[0] < until:
        bench.work[0] += 8
        copy(walk.here, walk.trial)
        drawn = _drawn(numbers, walk.trial, rules, chance)
        if drawn == NOTHING:
            continue
        done = (bench.work[0] - began) / course[0]
        heat = course[1] * (course[2] / course[1]) ** done
        luck = -np.log((below(chance, 1 << 30) + 1) / (1 << 30))
        base = SHORT if walk.scores[0] >= SHORT else 0
        within = base + int((walk.scores[0] - base) * (1.0 + heat * luck)) + 1
        anew = below(chance, 4) > 0
        key = groups_key(walk.trial, anew) if drawn == REGROUPED else plan_key(walk.trial)
        found, exact = recall(walk.memo, key)
        if found >= within:
            continue
        made = drawn == READY or _settle(numbers, bench, rules, walk.trial, (walk.spare, walk.pace_s, anew))
        if not made or not _allowed(numbers, rules, walk.trial):
            found = NEVER
        elif not exact:
            found = score(numbers, walk.trial, bench, within)
        exact = found < NEVER
        remember(walk.memo, key, found if exact else within, exact)
        if found < within:
            copy(walk.trial, walk.here)
            walk.scores[0] = found
            if found < walk.scores[1]:
                copy(walk.trial, walk.best)
                walk.scores[1] = found


@inner
def _allowed(numbers: Numbers, rules: Rules, sketch: Sketch) -> bool:
    """Whether the plan keeps to the rules and every group is small enough for a micro-batch."""
    stages = sketch.size[0]
    if stages < 1 or (rules.flags[1] > 0 and stages != rules.flags[1]):
        return False
    if rules.flags[0] and sketch.first[stages] < numbers.memory_bytes.size:
        return False
    for p in range(stages):
        count = sketch.first[p + 1] - sketch.first[p]
        if count < 1 or count > numbers.seconds.shape[1] - 1 or sketch.edge[p + 1] <= sketch.edge[p]:
            return False
    return bool(sketch.edge[stages] == numbers.seconds.shape[2] - 1)


@inner
def _drawn(numbers: Numbers, sketch: Sketch, rules: Rules, chance: Chance) -> int:
    """Change the sketch at random, now and then several times at once (what lies between two good plans may be bad, or
    fit nowhere): NOTHING where that was not possible, READY, or REGROUPED, and cuts and shares must be made anew."""
    outcome = int(NOTHING)
    while True:
        draw = below(chance, 100)
        if draw >= 62:
            if not _regroup(sketch, chance, draw):
                return NOTHING
            outcome = REGROUPED
        elif outcome == REGROUPED:
            return outcome
        elif not _tuned(numbers, sketch, rules, chance, draw):
            return NOTHING
        else:
            outcome = READY
        if below(chance, AT_ONCE) > 0 or sketch.size[0] == 0:
            return outcome


@inner
def _tuned(numbers: Numbers, sketch: Sketch, rules: Rules, chance: Chance, draw: int) -> bool:
    """Change cuts, shares, K or the order inside a group."""
    if draw < 30:
        return sketch.size[0] > 1 and _shift(numbers, sketch, chance)
    if draw < 50:
        return _reshare(sketch, chance)
    if draw < 58 and rules.flags[2]:
        return _rewarm(numbers, sketch, chance)
    return _reorder(sketch, chance)


@inner
def _regroup(sketch: Sketch, chance: Chance, draw: int) -> bool:
    """Change who works with whom."""
    if draw < 74:
        return _relocate(sketch, chance)
    if draw < 86:
        return _exchange(sketch, chance)
    if draw < 90:
        return _join(sketch, chance)
    if draw < 95:
        return _part(sketch, chance)
    return sketch.size[0] > 1 and _turn(sketch, below(chance, sketch.size[0] - 1))


@inner
def _settle(numbers: Numbers, bench: Bench, rules: Rules, sketch: Sketch, how: tuple[Sketch, Floats, bool]) -> bool:
    """After a change of groups: cuts (anew, or where a stage has no layer), K and shares of every stage; then the
    cuts once more, as far as the bound can tell. `how`: memory for both, and whether anew."""
    batch, (spare, pace_s, anew) = numbers.seconds.shape[1] - 1, how
    if sketch.size[0] < 1 or sketch.size[0] > sketch.warmup.size:
        return False
    for p in range(sketch.size[0]):
        if sketch.first[p + 1] - sketch.first[p] > batch:
            return False
        anew |= sketch.edge[p + 1] <= sketch.edge[p]
    bench.work[0] += BALANCING * sketch.first[sketch.size[0]] if anew else 0
    if anew and not balance(numbers, sketch, rules, pace_s):
        return False
    give_warmups(numbers, sketch, rules)
    for p in range(sketch.size[0]):
        deal(numbers, sketch, p)
    hone(numbers, sketch, bench, spare)
    return True


@inner
def _shift(numbers: Numbers, sketch: Sketch, chance: Chance) -> bool:
    """Move a cut by a few layers."""
    p = 1 + below(chance, sketch.size[0] - 1)
    step = 1 + below(chance, 1 << below(chance, 5))
    edge = sketch.edge[p] + (step if below(chance, 2) else -step)
    edge = min(max(edge, sketch.edge[p - 1] + 1), sketch.edge[p + 1] - 1)
    if edge == sketch.edge[p]:
        return False
    sketch.edge[p] = edge
    anew = below(chance, 2)
    for q in range(p - 1, p + 1):
        if anew or not fits(numbers, sketch, q):
            deal(numbers, sketch, q)
    return True


@inner
def _reshare(sketch: Sketch, chance: Chance) -> bool:
    """Move samples from one member of a stage to another."""
    g = below(chance, sketch.first[sketch.size[0]])
    p = stage_of(sketch, g)
    count = sketch.first[p + 1] - sketch.first[p]
    if count < 2:
        return False
    h = sketch.first[p] + below(chance, count)
    moved = min(sketch.samples[g] - 1, 1 + below(chance, 1 << below(chance, 6)))
    if h == g or moved < 1:
        return False
    sketch.samples[g] -= moved
    sketch.samples[h] += moved
    return True


@inner
def _rewarm(numbers: Numbers, sketch: Sketch, chance: Chance) -> bool:
    """One forward more or fewer before the first backward of a stage; K must not rise from a stage to the next."""
    p = below(chance, sketch.size[0])
    k = min(sketch.warmup[p], numbers.micro_batches) + (1 if below(chance, 2) else -1)
    ahead = sketch.warmup[p - 1] if p > 0 else numbers.micro_batches
    behind = sketch.warmup[p + 1] if p + 1 < sketch.size[0] else 1
    if k < behind or k > ahead:
        return False
    sketch.warmup[p] = k
    if not fits(numbers, sketch, p):
        deal(numbers, sketch, p)
    return True


@inner
def _reorder(sketch: Sketch, chance: Chance) -> bool:
    """Swap two members of a stage, shares and all: who sends to whom changes."""
    g = below(chance, sketch.first[sketch.size[0]])
    p = stage_of(sketch, g)
    h = sketch.first[p] + below(chance, sketch.first[p + 1] - sketch.first[p])
    if h == g:
        return False
    sketch.device[g], sketch.device[h] = sketch.device[h], sketch.device[g]
    sketch.samples[g], sketch.samples[h] = sketch.samples[h], sketch.samples[g]
    return True


@inner
def _unused(sketch: Sketch, chance: Chance) -> int:
    """A device that takes no part; -1 where all do."""
    devices, used = sketch.device.size, sketch.first[sketch.size[0]]
    if used == devices:
        return -1
    skip = below(chance, devices - used)
    for device in range(devices):
        taken = False
        for g in range(used):
            taken |= sketch.device[g] == device
        if not taken:
            if skip == 0:
                return device
            skip -= 1
    return -1


@inner
def _relocate(sketch: Sketch, chance: Chance) -> bool:
    """Move a device to another stage or to a new one, leave one out, or take one in."""
    used = sketch.first[sketch.size[0]]
    device = _unused(sketch, chance) if below(chance, 3) == 0 else -1
    if device < 0:
        if used == 1:
            return False
        device = take_out(sketch, below(chance, used))
        if below(chance, 4) == 0:
            return True
    p = below(chance, sketch.size[0])
    if below(chance, 3) == 0:
        if sketch.size[0] == sketch.warmup.size:
            return False
        members = sketch.first[p + 1] - sketch.first[p]
        behind = below(chance, 2)
        open_stage(sketch, p, sketch.edge[p + behind], behind * members)
        p += behind
    put_in(sketch, p, below(chance, sketch.first[p + 1] - sketch.first[p] + 1), device)
    return True


@inner
def _exchange(sketch: Sketch, chance: Chance) -> bool:
    """Swap two devices of different stages, or one with a device that takes no part."""
    used = sketch.first[sketch.size[0]]
    g = below(chance, used)
    device = _unused(sketch, chance) if below(chance, 3) == 0 else -1
    if device >= 0:
        sketch.device[g] = device
        return True
    h = below(chance, used)
    if stage_of(sketch, g) == stage_of(sketch, h):
        return False
    sketch.device[g], sketch.device[h] = sketch.device[h], sketch.device[g]
    return True


@inner
def _join(sketch: Sketch, chance: Chance) -> bool:
    """Make one stage of two neighbours."""
    stages = sketch.size[0]
    if stages < 2:
        return False
    p = below(chance, stages - 1)
    for q in range(p + 1, stages):
        sketch.first[q], sketch.edge[q] = sketch.first[q + 1], sketch.edge[q + 1]
    sketch.size[0] = stages - 1
    return True


@inner
def _part(sketch: Sketch, chance: Chance) -> bool:
    """Make two stages of one, its members shuffled between them."""
    stages, p = sketch.size[0], below(chance, sketch.size[0])
    first, members = sketch.first[p], sketch.first[p + 1] - sketch.first[p]
    if members < 2 or stages == sketch.warmup.size:
        return False
    for k in range(members - 1, 0, -1):
        j = below(chance, k + 1)
        a, b = first + k, first + j
        sketch.device[a], sketch.device[b] = sketch.device[b], sketch.device[a]
    middle = (sketch.edge[p] + sketch.edge[p + 1]) // 2
    open_stage(sketch, p, middle, 1 + below(chance, members - 1))
    return True


@inner
def _turn(sketch: Sketch, p: int) -> bool:
    """Swap the groups of stages p and p + 1: both turned round, then each by itself."""
    a, b, c = sketch.first[p], sketch.first[p + 1], sketch.first[p + 2]
    middle = a + c - b
    sketch.first[p + 1] = middle
    for low, high in ((a, c), (a, middle), (middle, c)):
        for k in range((high - low) // 2):
            i, j = low + k, high - 1 - k
            sketch.device[i], sketch.device[j] = sketch.device[j], sketch.device[i]
    return True
