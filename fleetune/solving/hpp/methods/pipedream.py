"""pipedream: hybrid parallelism planned for a homogeneous cluster, by the slowest stage.

Narayanan, D. et al.: PipeDream: Generalized Pipeline Parallelism for DNN Training. SOSP 2019,
doi:10.1145/3341301.3359646, §3.1, one level of machines. A(j, m), the slowest stage of the first j layers on m
machines, is the least over the last stage's layers i..j and machines m' of max(A(i, m - m'), cut i, T(i..j, m')), where
T(i..j, m) = max(compute, weight exchange 2 (m - 1) |w| / bandwidth) / m and a cut carries a micro-batch's activations
and gradients. Trained synchronously as in Asteroid's comparison: weights are exchanged once a round, so that a
micro-batch bears 1 / M of it.

It takes activations, weights and replication into account; it takes all devices and links for the average one, splits
samples evenly, places stages in the order given, and ignores memory, latency and the pipeline's filling and draining.
"""

from typing import NamedTuple

import numpy as np

from fleetune.arrays import Floats, Ints
from fleetune.solving.hpp.draft import Draft, HomogeneousFleet
from fleetune.solving.hpp.instance import Instance

RUNS = 256
"""Longer chains of layers are joined into this many runs."""


class Reached(NamedTuple):
    """Best plans of the first runs on the first devices, [devices, edge]."""

    slowest_s: Floats
    cut: Ints
    """Edge where the last stage begins."""
    size: Ints
    """Number of devices of the last stage."""


def plan(instance: Instance) -> Draft:
    """A plan on all devices that can have a sample, in as many stages as warm-ups are listed."""
    fleet = HomogeneousFleet(instance, RUNS)
    stages_s, cut_s = stage_times(fleet)
    tables = [_one_stage(fleet, stages_s)]
    if fleet.stages is None:
        for m in range(2, fleet.count + 1):
            _extend(tables[0], tables[0], m, stages_s, cut_s)
    for _ in range(1, fleet.stages or 1):
        tables.append(_unreached(fleet))
        for m in range(2, fleet.count + 1):
            _extend(tables[-2], tables[-1], m, stages_s, cut_s)
    return _read(fleet, tables)


def stage_times(fleet: HomogeneousFleet) -> tuple[Floats, Floats]:
    """T(i..j, m) as [m, i, j], infinite unless i < j, and the seconds of a cut as [edge]."""
    both_s = fleet.forward_s + fleet.backward_s
    sizes = np.arange(1, min(fleet.group, fleet.count) + 1)[:, None, None]
    exchange_s = 2 * fleet.trainable_bytes / (fleet.bandwidth * fleet.instance.micro_batches)
    compute = both_s[None, :] - both_s[:, None]
    exchange = exchange_s[None, :] - exchange_s[:, None]
    never = np.tril(np.full(compute.shape, np.inf))
    times = np.maximum(compute, (sizes - 1) * exchange) / sizes + never
    return np.concatenate([np.full_like(times[:1], np.inf), times]), fleet.output_s + fleet.gradient_s


def _unreached(fleet: HomogeneousFleet) -> Reached:
    shape = (fleet.count + 1, fleet.runs + 1)
    return Reached(np.full(shape, np.inf), np.zeros(shape, np.int64), np.zeros(shape, np.int64))


def _one_stage(fleet: HomogeneousFleet, stages_s: Floats) -> Reached:
    found = _unreached(fleet)
    for m in range(1, len(stages_s)):
        found.slowest_s[m], found.size[m] = stages_s[m, 0], m
    return found


def _extend(before: Reached, after: Reached, m: int, stages_s: Floats, cut_s: Floats) -> None:
    """Append a last stage to plans of fewer devices where that improves the plans of m devices in `after`."""
    for size in range(1, min(m, len(stages_s))):
        slowest_s = np.maximum(np.maximum(before.slowest_s[m - size], cut_s)[:, None], stages_s[size])
        cut = np.argmin(slowest_s, axis=0)
        found_s = slowest_s[cut, np.arange(len(cut))]
        better = found_s < after.slowest_s[m]
        after.slowest_s[m, better], after.cut[m, better], after.size[m, better] = found_s[better], cut[better], size


def _read(fleet: HomogeneousFleet, tables: list[Reached]) -> Draft:
    """Walk back from the last run; with a fixed number of stages, each stage has a table of its own."""
    cuts, sizes, m, depth = [fleet.runs], [], fleet.count, len(tables)
    while cuts[-1] > 0:
        table = tables[max(depth - 1, 0)]
        sizes.append(int(table.size[m, cuts[-1]]))
        cuts.append(int(table.cut[m, cuts[-1]]))
        m, depth = m - sizes[-1], depth - 1
    return fleet.draft(cuts[::-1], sizes[::-1])
