"""OP-Fence (Tang et al., FusionLLM, 2024, section 4): a connected part of the graph for each cluster of fast links.

Louvain communities of the bandwidth graph become clusters; each takes one stretch of the graph, so that slow links are
crossed once between two of them; inside, operators are assigned by compute within the memories (eq. (6)). The paper
leaves open the order of clusters, and how evenly compute is balanced where an even cut would cross large outputs: a few
orders and several limits on the busiest device are tried, and the fastest by eq. (3) is kept. Every device that can
hold an operator takes part.

If one of the paper's baselines (section 7.2) fits the memories and is faster than the fastest plan with connected
clusters, its plan is returned, so that this method is never slower than they are.

The baselines ignore speeds, memory and links: devices take runs of the topological order as they are listed.
"""

import numpy as np

from fleetune.arrays import Ints
from fleetune.errors import Infeasible
from fleetune.solving.limits import NO_DEADLINE, Deadline
from fleetune.solving.opfence.clusters import (
    communities,
    device_orders,
    excess_components,
    median_hop_s,
    reconnect_clusters,
)
from fleetune.solving.opfence.device_exchange import exchange_devices
from fleetune.solving.opfence.graph import depth_first
from fleetune.solving.opfence.infeasibility import greedy_packing, infeasibility_reason, pack, packing_failure
from fleetune.solving.opfence.instance import Instance, LinearOrder, Placement, equal_cuts, linear_order, prefix_sums
from fleetune.solving.opfence.path_dp import TrialLimits, best_cuts, geometric_grid

DEVICE_ORDERS = 6
"""Orders of clusters."""
BALANCE_LIMITS = 12
"""Limits on the busiest device, from even to twice the fastest device alone."""
MAX_CUTS = 160
"""Cuts of a linear order, unless there are more devices."""
FIRST_PLACEMENT_S = 1.0
"""Minimum seconds for finding a first placement that fits, however short the time limit."""
EXCHANGED = 4
"""Placements whose devices are exchanged within their clusters."""


def plan(instance: Instance, seed: int, deadline: Deadline = NO_DEADLINE) -> Placement:
    """Return the fastest placement with connected clusters, or a faster baseline that fits; else raise Infeasible."""
    options = [clustered_placement(instance, seed, deadline), *(baseline(instance, seed) for baseline in BASELINES)]
    return min(filter(instance.fits, options), key=instance.cost_s)


def clustered_placement(instance: Instance, seed: int, deadline: Deadline = NO_DEADLINE) -> Placement:
    """Return the fastest placement among those with the fewest disconnected clusters; Infeasible if none fits."""
    missing = infeasibility_reason(instance)
    if missing is not None:
        raise Infeasible(missing)
    clusters = communities(instance, seed)
    cluster_of = np.empty(instance.devices, np.int64)
    for number, cluster in enumerate(clusters):
        cluster_of[cluster] = number
    found = _RankedPlacements(instance, cluster_of, deadline)
    for baseline in BASELINES:  # may keep to the clusters, directly or once reconnected
        found.offer(baseline(instance, seed))
    if deadline.limited and not found.ranked:
        first = greedy_packing(instance)
        if first is not None:
            found.offer(first)
    _offer_partitions(instance, found, clusters)
    for placement in found.best(EXCHANGED):
        found.offer(exchange_devices(instance, placement, cluster_of, deadline))
    if not found.ranked:
        fitting, proven = pack(instance, deadline.extended(1.0, FIRST_PLACEMENT_S))
        if fitting is None:
            raise Infeasible(packing_failure(instance, proven, deadline.limited))
        found.offer(fitting)
    return found.best(1)[0]


def _offer_partitions(instance: Instance, found: "_RankedPlacements", clusters: list[list[int]]) -> None:
    """Offer the partitions of several linear orders over several device orders."""
    for line in _linear_orders(instance):
        for device_order in device_orders(median_hop_s(instance, line), clusters, DEVICE_ORDERS, found.deadline):
            if found.deadline.expired:
                return
            for placement in _partitions(instance, line, device_order, found.deadline):
                found.offer(placement)


class _RankedPlacements:
    """Placements that fit, ranked by surplus components, then by time."""

    def __init__(self, instance: Instance, cluster_of: Ints, deadline: Deadline) -> None:
        self._instance, self._cluster_of = instance, cluster_of
        self._deadline = deadline
        self._first_deadline = deadline.extended(0.5, FIRST_PLACEMENT_S)  # leaves time for a packing
        self.ranked: dict[bytes, tuple[int, float, Placement]] = {}

    @property
    def deadline(self) -> Deadline:
        """Deadline of the next step: extended while no placement is found."""
        return self._deadline if self.ranked else self._first_deadline

    def offer(self, placement: Placement) -> None:
        """Add a placement, and the same with its clusters reconnected."""
        for option in (placement, reconnect_clusters(self._instance, placement, self._cluster_of, self._deadline)):
            if option.tobytes() not in self.ranked and self._instance.fits(option):
                surplus = excess_components(self._instance, option, self._cluster_of)
                self.ranked[option.tobytes()] = surplus, self._instance.cost_s(option), option

    def best(self, most: int) -> list[Placement]:
        """Return the `most` best placements."""
        ranked = sorted(self.ranked.items(), key=lambda item: (item[1][:2], item[0]))
        return [placement for _, (_, _, placement) in ranked[:most]]


def _linear_orders(instance: Instance) -> list[LinearOrder]:
    """Return the order as listed and the depth-first order, without duplicates."""
    orders = [instance.order, depth_first(instance.parents)]
    return [
        linear_order(instance, order, instance.operators)
        for order in (orders if orders[0] != orders[1] else orders[:1])
    ]


def _partitions(instance: Instance, line: LinearOrder, device_order: list[int], deadline: Deadline) -> list[Placement]:
    """Return partitions over a device order: under each balance limit, and as the paper's baselines cut."""
    candidates = [device for device in device_order if instance.memory_bytes.min() <= instance.budget_bytes[device]]
    while len(candidates) > line.cuts:
        candidates.remove(min(candidates, key=lambda device: instance.speed[device]))
    coarse = line.coarse(max(MAX_CUTS, 3 * len(candidates)))
    for use_all in (True, False):
        for cuts in (coarse, line):
            found = _partitions_within(instance, cuts, candidates, use_all, deadline)
            if found:
                return found + _equal_partitions(line, candidates)
    return []


def _partitions_within(
    instance: Instance, line: LinearOrder, device_order: list[int], use_all: bool, deadline: Deadline
) -> list[Placement]:
    """Return the partitions of least traffic under each limit on the busiest device."""
    speed, flops = instance.speed[device_order], line.flops[-1]
    max_compute_s = np.append(geometric_grid(flops / speed.sum(), 2 * flops / speed.min(), BALANCE_LIMITS - 1), np.inf)
    slowest = [np.inf]
    if instance.codec.ratio and len(device_order) > 1:
        slowest.append(float(median_hop_s(instance, line)[device_order[:-1], device_order[1:]].max()))
    limits = TrialLimits(
        np.tile(max_compute_s, len(slowest)),
        np.full(len(slowest) * BALANCE_LIMITS, np.inf),
        np.repeat(slowest, BALANCE_LIMITS),
    )
    return [
        line.to_placement(*trial)
        for trial in best_cuts(instance, line, device_order, limits, use_all=use_all, deadline=deadline)
    ]


def _equal_partitions(line: LinearOrder, device_order: list[int]) -> list[Placement]:
    """Return the partitions with equal numbers of operators and with equal flops."""
    return [
        line.to_placement(device_order, [*equal_cuts(before, len(device_order), nearest=False).tolist(), line.cuts])
        for before in (np.arange(line.cuts + 1.0), line.flops)
    ]


def equal_modules(instance: Instance, seed: int) -> Placement:
    """Return equally long runs of the topological order; the first ones are longer by one if the division has a
    rest."""
    found = np.empty(instance.operators, np.int64)
    for device, run in enumerate(np.array_split(np.array(instance.order), instance.devices)):
        found[run] = device
    return found


def equal_compute(instance: Instance, seed: int) -> Placement:
    """Return runs of the topological order, cut where the prefix sum of flops is nearest to its equal share."""
    order = np.array(instance.order)
    before = prefix_sums(instance.flops[order])
    if before[-1] == 0:
        return equal_modules(instance, seed)
    found = np.empty(instance.operators, np.int64)
    for device, run in enumerate(np.split(order, equal_cuts(before, instance.devices, nearest=True))):
        found[run] = device
    return found


BASELINES = (equal_modules, equal_compute)
