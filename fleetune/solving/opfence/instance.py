"""A problem as arrays, AdaTopK compression of its links, the cost of a placement, and linear orders of operators.

Each link is compressed according to its speed (FusionLLM section 5.2, eq. (7)). A linear order is a topological order
with prefix sums, so that the work and traffic of a run of operators are one subtraction.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetune.arrays import Floats, Ints
from fleetune.solving.opfence.graph import depth_first, indexed, topological, users_of
from fleetune.solving.opfence.problem import Problem
from fleetune.solving.validation import link_matrix

ROUNDING = 1e-12
"""Relative rounding of quotients: compressing 300,000 elements by 300 keeps 1,000, however the ratio was rounded."""
MIN_SLOWEST_S = 1e-300
"""Avoids a division by 0 if no link takes any time."""


class Codec(NamedTuple):
    """Parameters of top-k compression."""

    ratio: float
    """The user's r; 0: everything is sent dense."""
    kept_bytes: float
    """c: bytes of a kept element on the wire."""
    element_bytes: float

    @property
    def max_ratio(self) -> float:
        """Ratio of the slowest link; eq. (7) has 3 for c / element_bytes."""
        return max(1.0, self.kept_bytes / self.element_bytes * self.ratio)

    @property
    def min_wire_share(self) -> float:
        """Lower limit of wire bytes relative to dense bytes, over all links."""
        return min(1.0, self.kept_bytes / self.element_bytes / self.max_ratio) if self.ratio else 1.0

    def ratios(self, dense_s: Floats, slowest_s: float | Floats) -> Floats:
        """Return r_i of eq. (7); dense_s: time of each link's dense transfers, slowest_s: that of the slowest link."""
        share = np.minimum(dense_s / np.maximum(slowest_s, MIN_SLOWEST_S), 1.0)
        ratios: Floats = np.maximum(1.0, self.kept_bytes / self.element_bytes * self.ratio * share)
        return ratios

    def sent(self, dense_bytes: Floats, ratios: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """Return bytes on the wire and a mask of the compressed links: those for which compression saves bytes."""
        kept = np.ceil(dense_bytes / self.element_bytes / ratios * (1 - ROUNDING))
        smaller = kept * self.kept_bytes < dense_bytes
        return np.where(smaller, kept * self.kept_bytes, dense_bytes), smaller

    def link_seconds(self, links: Sequence[tuple[float, float, float]]) -> list[float]:
        """Return the seconds of links given as (latencies, seconds per byte, dense bytes).

        Equal to the array version, which is slower for a few links.
        """
        dense_s = [alpha_s + beta * dense for alpha_s, beta, dense in links]
        if not self.ratio:
            return dense_s
        factor = self.kept_bytes / self.element_bytes * self.ratio
        slowest_s = max(*dense_s, MIN_SLOWEST_S, MIN_SLOWEST_S)
        found = []
        for (alpha_s, beta, dense), taken_s in zip(links, dense_s, strict=True):
            ratio = max(1.0, factor * min(taken_s / slowest_s, 1.0))
            sent = math.ceil(dense / self.element_bytes / ratio * (1 - ROUNDING)) * self.kept_bytes
            found.append(alpha_s + beta * sent if sent < dense else taken_s)
        return found

    def wire_bytes(self, dense_bytes: Floats, dense_s: Floats, slowest_s: float | Floats) -> Floats:
        """Return bytes on the wire."""
        if not self.ratio:
            return dense_bytes
        return self.sent(dense_bytes, self.ratios(dense_s, slowest_s))[0]


Placement = Ints
"""[operator], its device."""
MIN_GAIN = 1e-12
"""Relative gain that counts as an improvement."""


class Traffic(NamedTuple):
    """Traffic of a placement per micro-batch: arrays [link], ascending by sender and receiver."""

    sender: Ints
    receiver: Ints
    transfers: Ints
    dense_bytes: Floats


class Instance:
    """A problem as arrays; operators and devices are indices in the order listed.

    parents, users: [operator] the operators that it reads and that read it; order: a topological order; edges: [edge]
    maker and user. flops, output_bytes, memory_bytes: [operator]. speed (flops/s), budget_bytes: [device]. alpha (s),
    beta (s/byte): [from, to].
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        operators, devices = problem.operators, problem.devices
        self.operators, self.devices = len(operators), len(devices)
        self.micro_batches = problem.micro_batches
        self.parents = indexed([x.name for x in operators], [x.inputs for x in operators])
        self.users = users_of(self.parents)
        self.order = topological(self.parents)
        self.flops = np.array([x.flops for x in operators], np.float64)
        self.output_bytes = np.array([x.output_bytes for x in operators], np.float64)
        self.memory_bytes = np.array(
            [required_bytes(problem, x.param_bytes, x.output_bytes) for x in operators], np.float64
        )
        self.speed = np.array([x.flops_per_s for x in devices])
        self.budget_bytes = np.array([x.memory_bytes for x in devices], np.float64)
        self.alpha, self.beta = link_matrix(problem.alpha_s), link_matrix(problem.beta_s_per_byte)
        self.codec = Codec(
            ratio=problem.compression_ratio or 0.0,
            kept_bytes=problem.codec_bytes_per_kept_element or problem.element_bytes,
            element_bytes=problem.element_bytes,
        )
        self.edges = np.array(
            [(one, user) for user, wanted in enumerate(self.parents) for one in wanted], np.int64
        ).reshape(-1, 2)

    def traffic(self, placement: Placement) -> Traffic:
        """Return the traffic: every output goes once to each other device that reads it."""
        maker, target = self.edges[:, 0], placement[self.edges[:, 1]]
        away = placement[maker] != target
        sent = np.unique(maker[away] * self.devices + target[away])
        maker, target = sent // self.devices, sent % self.devices
        link, where = np.unique(placement[maker] * self.devices + target, return_inverse=True)
        return Traffic(
            sender=link // self.devices,
            receiver=link % self.devices,
            transfers=np.bincount(where, minlength=len(link)),
            dense_bytes=sum_by_group(self.output_bytes[maker], where, len(link)),
        )

    def dense_s(self, traffic: Traffic) -> Floats:
        """Return [link] the seconds of its transfers without compression."""
        at = (traffic.sender, traffic.receiver)
        seconds: Floats = self.alpha[at] * traffic.transfers + self.beta[at] * traffic.dense_bytes
        return seconds

    def busy_s(self, placement: Placement) -> tuple[Floats, Floats]:
        """Return the compute and receive times of eq. (2), C_p and R_p, both [device]."""
        compute_s: Floats = sum_by_group(self.flops, placement, self.devices) / self.speed
        traffic = self.traffic(placement)
        at, dense_s = (traffic.sender, traffic.receiver), self.dense_s(traffic)
        wire = self.codec.wire_bytes(traffic.dense_bytes, dense_s, float(dense_s.max(initial=0.0)))
        link_s = self.alpha[at] * traffic.transfers + self.beta[at] * wire
        return compute_s, sum_by_group(link_s, traffic.receiver, self.devices)

    def cost_s(self, placement: Placement) -> float:
        """Return the time by eq. (3), without regard to memory."""
        compute_s, receive_s = self.busy_s(placement)
        slowest = max(float(compute_s.max()), float(receive_s.max()))
        return float(compute_s.sum() + receive_s.sum()) + (self.micro_batches - 1) * slowest

    def peak_bytes(self, placement: Placement) -> list[int | float]:
        """Return [device] the bytes it keeps; integers unless the optimizer's are not."""
        params, outputs = [0] * self.devices, [0] * self.devices
        for operator, device in zip(self.problem.operators, placement.tolist(), strict=True):
            params[device] += operator.param_bytes
            outputs[device] += operator.output_bytes
        return [required_bytes(self.problem, one, other) for one, other in zip(params, outputs, strict=True)]

    def missing_bytes(self, placement: Placement) -> list[int | float]:
        """Return [device] the bytes it lacks; 0 or less if everything fits."""
        return [p - x.memory_bytes for p, x in zip(self.peak_bytes(placement), self.problem.devices, strict=True)]

    def fits(self, placement: Placement) -> bool:
        """Return True if no device lacks memory."""
        return max(self.missing_bytes(placement)) <= 0


def sum_by_group(values: Floats, group: Ints, groups: int) -> Floats:
    """Return [group] the sum of its values."""
    return np.bincount(group, values, minlength=groups).astype(np.float64, copy=False)


def prefix_sums(values: Floats) -> Floats:
    """Return [count] the sum of the first values, from 0 for none to the sum of all."""
    return np.concatenate([[0.0], np.cumsum(values)])


def required_bytes(problem: Problem, param_bytes: int, output_bytes: int) -> int | float:
    """Return the memory of parameters with gradients and optimizer state, and of every micro-batch's outputs."""
    factor = 2 + problem.optimizer_bytes_per_param_byte
    state = param_bytes * int(factor) if factor == int(factor) else param_bytes * factor
    kept = state + problem.micro_batches * output_bytes
    return int(kept) if kept == int(kept) else kept


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
