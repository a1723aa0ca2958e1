"""When each task of one helper may run: what a node of `lane`'s branch and bound is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fleetune.solving.split.case import Case

FAR = 2**62
"""Later than anything."""


class Times(NamedTuple):
    """Of one helper, as lists by client."""

    release: list[int]
    lengths: tuple[list[int], list[int]]
    """Forward, backward."""
    between: list[int]
    tail: list[int]
    """Two switches included."""
    switch_cost: int
    preemptive: bool

    @classmethod
    def of(cls, case: Case, helper: int) -> Times:
        """The case's, for plain loops."""
        return cls(
            case.release[helper].tolist(),
            (case.forward[helper].tolist(), case.backward[helper].tolist()),
            case.between[helper].tolist(),
            (case.tail[helper] + 2 * case.switch_cost[helper]).tolist(),
            int(case.switch_cost[helper]),
            case.preemptive,
        )


class Windows(NamedTuple):
    """Windows of the tasks of n clients, forwards first: lists [2 n]."""

    head: list[int]
    length: list[int]
    tail: list[int]
    """Least time from its end to the client's completion."""
    cap: list[int]
    """Latest end whatever the makespan."""
    solid: list[bool]
    """May not be interrupted."""
    charged: list[int]
    """Interruptions that its tail already pays for."""
    orders: tuple[tuple[int, int], ...]
    """One task wholly before another."""

    @classmethod
    def root(cls, times: Times, clients: Sequence[int]) -> Windows:
        """What holds in every schedule of these clients."""
        forward, backward = ([lengths[j] for j in clients] for lengths in times.lengths)
        head = [times.release[j] for j in clients]
        tail = [times.tail[j] for j in clients]
        between = [times.between[j] for j in clients]
        count = len(clients)
        return cls(
            head + [h + p + d for h, p, d in zip(head, forward, between, strict=True)],
            forward + backward,
            [d + q + t for d, q, t in zip(between, backward, tail, strict=True)] + tail,
            [FAR] * (2 * count),
            [not times.preemptive] * (2 * count),
            [0] * (2 * count),
            (),
        )

    def copy(self) -> Windows:
        """To be changed; lengths never are."""
        head, tail, cap, solid, charged = self.head[:], self.tail[:], self.cap[:], self.solid[:], self.charged[:]
        return Windows(head, self.length, tail, cap, solid, charged, self.orders)

    def shrink(self, between: Sequence[int], horizon: int) -> bool:
        """Shrink the windows by orders and ties until nothing changes; False: some task has too little room."""
        count = len(between)
        ties = [(k, k + count, gap) for k, gap in enumerate(between)] + [(a, b, 0) for a, b in self.orders]
        head, length, tail, cap = self.head, self.length, self.tail, self.cap
        for _ in range(len(ties) + 1):
            before = sum(head) - sum(cap) + sum(tail)
            for a, b, gap in ties:
                head[b] = max(head[b], head[a] + length[a] + gap)
                tail[a] = max(tail[a], tail[b] + length[b] + gap)
                cap[a] = min(cap[a], cap[b] - length[b] - gap)
            if before == sum(head) - sum(cap) + sum(tail):
                break
        return all(h + p <= min(c, horizon - q) for h, p, c, q in zip(head, length, cap, tail, strict=True))
