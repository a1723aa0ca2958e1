"""A problem as arrays, and the cost of a placement."""

from typing import NamedTuple

import numpy as np

from fleetune.arrays import Floats, Ints
from fleetune.solving.opfence.compression import Codec
from fleetune.solving.opfence.graph import indexed, topological, users_of
from fleetune.solving.opfence.problem import Problem
from fleetune.solving.validation import link_matrix

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
