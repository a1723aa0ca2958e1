"""Asteroid's own estimate of a round, eq. (4)-(6): reported beside the exact simulation, and what its planner
minimises."""

import numpy as np

from fleetune.solving.hpp.case import Case, Floats

Shape = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""(first layer, end, devices, samples) of a stage."""


class Steps:
    """Execution and communication steps in turn: E_f, E_b (eq. (8)) and T_a (eq. (5), without latency) of each."""

    def __init__(self, case: Case, stages: list[Shape]) -> None:
        forward, backward, reduce = [], [], []
        for p, (first, end, devices, samples) in enumerate(stages):
            if p > 0:
                there, back = _crossing(case, stages[p - 1][2], devices, first)
                forward.append(there)
                backward.append(back)
                reduce.append(0.0)
            tasks = [case.seconds(d, y, first, end) for d, y in zip(devices, samples, strict=True)]
            forward.append(max(there for there, _ in tasks))
            backward.append(max(back for _, back in tasks))
            reduce.append(all_reduce_s(case, devices, first, end))
        self.forward_s, self.backward_s = np.array(forward), np.array(backward)
        self.reduce_s: Floats = np.array(reduce)


def formula_round_s(case: Case, stages: list[Shape]) -> float:
    """Eq. (4): the largest T_w + T_e + T_a over all steps; the dominant step is the first with the largest
    M · (E_f + E_b) plus the E_f + E_b of the steps before it (eq. (11) says why)."""
    steps = Steps(case, stages)
    both = steps.forward_s + steps.backward_s
    before = np.concatenate([[0.0], np.cumsum(both)[:-1]])
    dominant = int(np.argmax(case.micro_batches * both + before))
    waiting = np.concatenate([[0.0], np.cumsum(steps.forward_s)[:-1]])
    executing = case.micro_batches * both[dominant] + before[dominant] - before
    return float(np.max(waiting + executing + steps.reduce_s))


def all_reduce_s(case: Case, devices: tuple[int, ...], first: int, end: int) -> float:
    """T_a of eq. (5): 2(|G|-1) · w / (|G| · the slowest link inside)."""
    count = len(devices)
    if count == 1:
        return 0.0
    slowest = min(float(case.bandwidth[a, b]) for a in devices for b in devices if a != b)
    return 2 * (count - 1) * float(case.trainable_bytes[end] - case.trainable_bytes[first]) / (count * slowest)


def _crossing(case: Case, low: tuple[int, ...], high: tuple[int, ...], edge: int) -> tuple[float, float]:
    """A whole micro-batch over the slowest link between the two groups plus the largest latency, each way."""
    result = []
    for senders, receivers, size in ((low, high, case.output_bytes[edge]), (high, low, case.gradient_bytes[edge])):
        slowest = min(float(case.bandwidth[a, b]) for a in senders for b in receivers)
        latency_s = max(float(case.latency_s[a, b]) for a in senders for b in receivers)
        result.append(case.samples * float(size) / slowest + latency_s)
    return result[0], result[1]
