"""Topological orders with prefix sums, so that the work and traffic of a run of operators are one subtraction."""

from typing import NamedTuple

import numpy as np

from fleetune.arrays import Floats, Ints
from fleetune.solving.opfence.graph import depth_first
from fleetune.solving.opfence.instance import Instance, Placement, prefix_sums


class LinearOrder(NamedTuple):
    """A topological order with its cuts 0..n, and prefix sums and traffic at each cut."""

    order: Ints
    at: Ints
    """[cut], number of operators before it; ascending from 0 to all."""
    flops: Floats
    """[cut], of all operators before it."""
    memory_bytes: Floats
    """[cut], of all operators before it."""
    crossing_bytes: Floats
    """[cut], outputs of operators before it that an operator behind it reads; 0 at both ends."""
    crossing: Floats
    """[cut], number of these outputs."""

    @property
    def cuts(self) -> int:
        """Index of the last cut."""
        return len(self.at) - 1

    def coarse(self, most: int) -> "LinearOrder":
        """Return the order with about `most` cuts: for each stretch of equal work, the one with the least traffic."""
        if self.cuts <= most:
            return self
        share = self.flops / (self.flops[-1] or 1.0) + np.arange(self.cuts + 1) / self.cuts
        stretch = np.minimum((share / 2 * most).astype(np.int64), most - 1)
        weight = self.crossing_bytes + self.crossing
        inner = np.lexsort((np.arange(self.cuts + 1), weight, stretch))
        first = inner[np.unique(stretch[inner], return_index=True)[1]]
        keep = np.unique(np.concatenate([[0], first, [self.cuts]]))
        return LinearOrder(self.order, *(column[keep] for column in self[1:]))

    def to_placement(self, devices: list[int], ends: list[int]) -> Placement:
        """Return the placement of runs that end at these cuts on these devices."""
        found = np.empty(len(self.order), np.int64)
        lengths = np.diff(self.at[[0, *ends]])
        found[self.order] = np.repeat(np.array(devices, np.int64), lengths)
        return found


def linear_orders(instance: Instance) -> list[LinearOrder]:
    """Return distinct orders: as listed and depth first, each with all traffic and with short-range traffic only.

    Short range omits skip connections that pass over several devices, which cuts between them should not pay for.
    """
    found: dict[bytes, LinearOrder] = {}
    short_range = max(2, 2 * instance.operators // max(instance.devices, 1))
    for order in (instance.order, depth_first(instance.parents)):
        for reach in (instance.operators, short_range):
            line = linear_order(instance, order, reach)
            found.setdefault(b"".join(np.ascontiguousarray(column).tobytes() for column in line), line)
    return list(found.values())


def linear_order(instance: Instance, order: list[int], reach: int) -> LinearOrder:
    """Return an order with its sums; an output crosses the cuts up to each reader, at most `reach` before it."""
    count = instance.operators
    position = np.empty(count, np.int64)
    position[order] = np.arange(count)
    outputs, crossing = np.zeros(count + 2), np.zeros(count + 2)
    for maker in range(count):
        before = int(position[maker])
        for user in sorted(int(position[u]) for u in instance.users[maker]):
            first = max(before, user - reach) + 1
            if first <= user:
                outputs[first] += instance.output_bytes[maker]
                outputs[user + 1] -= instance.output_bytes[maker]
                crossing[first] += 1
                crossing[user + 1] -= 1
            before = user
    return LinearOrder(
        order=np.array(order, np.int64),
        at=np.arange(count + 1),
        flops=prefix_sums(instance.flops[order]),
        memory_bytes=prefix_sums(instance.memory_bytes[order]),
        crossing_bytes=np.maximum(np.cumsum(outputs)[: count + 1], 0.0),
        crossing=np.cumsum(crossing)[: count + 1],
    )


def equal_cuts(before: Floats, parts: int, *, nearest: bool) -> Ints:
    """Cuts [parts - 1] that divide a prefix sum [cut] into equal shares; two may be the same.

    Each is the first cut at or behind the end of its share; with `nearest` the nearest one, of two equally near the
    later.
    """
    ends = before[-1] * np.arange(1, parts) / parts
    cuts: Ints = np.clip(np.searchsorted(before, ends), 1, len(before) - 1)
    if nearest:
        cuts -= ends - before[cuts - 1] < before[cuts] - ends
    return cuts
