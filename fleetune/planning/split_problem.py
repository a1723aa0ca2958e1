"""Parallel split learning as a problem of kind "split", for given clients, helpers and cuts."""

from collections.abc import Sequence
from math import ceil, floor
from typing import NamedTuple

from fleetune.clock import Clock
from fleetune.clock.costs import segment_bytes
from fleetune.contracts.profile import Unit
from fleetune.planning.strategy import Problem, free_bytes
from fleetune.solving.split.problem import Problem as SplitProblem


class Roles(NamedTuple):
    """Names of the clients and helpers."""

    clients: tuple[str, ...]
    helpers: tuple[str, ...]


class Cuts(NamedTuple):
    """Positions in the list of units: parts 1 and 3 stay with the client, part 2 lies between."""

    first: int
    second: int


class TaskTimes(NamedTuple):
    """Seconds of the steps of a client's micro-batch on a helper, in order (the paper's r, p, l, l', p', r'), link
    latencies included."""

    release_s: float
    forward_s: float
    turnaround_forward_s: float
    turnaround_backward_s: float
    backward_s: float
    tail_s: float


class SplitProblemBuilder:
    """Builds problems of kind "split" with the clock's times, for different cuts and the same roles."""

    def __init__(self, problem: Problem, clock: Clock, roles: Roles, least_micro_batches: int | None = None) -> None:
        """least_micro_batches: slow clients run fewer micro-batches a round, at least this many; None: all the same."""
        self.problem, self.clock, self.roles = problem, clock, roles
        self.samples = problem.micro_batch_samples
        self.micro_batches = self._micro_batches(least_micro_batches)
        self.running = {name: self._running(name) for name in (*roles.clients, *roles.helpers)}

    def task_times(self, client: str, helper: str, cuts: Cuts) -> TaskTimes:
        """Times of a micro-batch of `client` on `helper`."""
        units, fleet = self.problem.profile.units, self.problem.fleet
        up, down = fleet.link(client, helper), fleet.link(helper, client)
        one, two = units[cuts.first - 1], units[cuts.second - 1]
        (part_1, part_3), part_2 = self._parts(client, cuts), self._parts(helper, cuts, middle=True)[0]

        def over(link: object, size: int) -> float:
            return link.latency_s + size * self.samples / link.bytes_per_s  # type: ignore[attr-defined, no-any-return]

        return TaskTimes(
            release_s=part_1[0] + over(up, one.output_bytes),
            forward_s=part_2[0],
            turnaround_forward_s=over(down, two.output_bytes) + part_3[0],
            turnaround_backward_s=part_3[1] + over(up, two.gradient_bytes),
            backward_s=part_2[1],
            tail_s=over(down, one.gradient_bytes) + part_1[1],
        )

    def to_problem(self, cuts: Cuts, slot_s: float, *, least: bool = False) -> SplitProblem:
        """The problem in slots of `slot_s`, rounded up.

        With `least`, rounded down and without steps that micro-batches of a client can overlap, so that a lower bound
        of the problem holds for every schedule in seconds.
        """
        rows = [
            [self.task_times(client, helper, cuts) for client in self.roles.clients] for helper in self.roles.helpers
        ]
        many = [self.micro_batches[client] for client in self.roles.clients]
        outside = [1] * len(many) if least else many
        between = [0 if least and count > 1 else times for count, times in zip(many, outside, strict=True)]

        def slots(field: str, times: list[int], low: int = 0) -> tuple[tuple[int, ...], ...]:
            rounded = floor if least else ceil
            return tuple(
                tuple(
                    max(low, rounded(getattr(each, field) * count / slot_s))
                    for each, count in zip(row, times, strict=True)
                )
                for row in rows
            )

        return SplitProblem(
            release=slots("release_s", outside),
            forward=slots("forward_s", many, 1),
            turnaround_forward=slots("turnaround_forward_s", between),
            turnaround_backward=slots("turnaround_backward_s", between),
            backward=slots("backward_s", many, 1),
            tail=slots("tail_s", outside),
            helper_memory=tuple(
                float(max(0, free_bytes(self.problem, name) - self._frozen_bytes(cuts))) for name in self.roles.helpers
            ),
            client_memory=tuple(float(self._copy_bytes(cuts, client)) for client in self.roles.clients),
            preemptive=False,
            switch_cost=(0,) * len(self.roles.helpers),
        )

    def own_s(self, client: str, cuts: Cuts) -> float:
        """Seconds per round that a client computes itself."""
        return self.micro_batches[client] * sum(map(sum, self._parts(client, cuts)))

    def slot_s(self, cuts: Cuts) -> float:
        """Seconds of a slot: a two-hundredth of the shortest task of a helper, at least a nanosecond."""
        times = [self.task_times(c, h, cuts) for c in self.roles.clients for h in self.roles.helpers]
        return max(1e-9, min(min(each.forward_s, each.backward_s) for each in times) / 200)

    def _frozen_bytes(self, cuts: Cuts) -> int:
        """Bytes of part 2's frozen weights, which a helper holds once for all clients."""
        profile = self.problem.profile
        units = profile.units[cuts.first : cuts.second]
        names = [unit.name for unit in units]
        twice = profile.repeated_weight_bytes(names) - profile.repeated_bytes(names)
        return sum(unit.param_bytes - unit.trainable_bytes for unit in units) - twice

    def _copy_bytes(self, cuts: Cuts, client: str) -> int:
        """Bytes of a client's copy of part 2 on its helper, beside the frozen weights."""
        profile = self.problem.profile
        units: Sequence[Unit] = profile.units[cuts.first : cuts.second]
        names = [unit.name for unit in units]
        state = 1 + profile.optimizer_bytes_per_param_byte
        whole = segment_bytes(
            units,
            trained=units,
            state_per_param_byte=state,
            kept_samples=self.micro_batches[client] * self.samples,
        )
        twice = profile.repeated_weight_bytes(names) + floor(profile.repeated_bytes(names) * state)
        return whole - twice - self._frozen_bytes(cuts)

    def _micro_batches(self, least: int | None) -> dict[str, int]:
        """Client -> micro-batches in a round: in proportion to its speed, the fastest runs all."""
        most = self.problem.micro_batches
        if least is None:
            return dict.fromkeys(self.roles.clients, most)
        own_s = {name: sum(map(sum, self.clock.unit_times(name, self.samples))) for name in self.roles.clients}
        fastest_s = min(own_s.values())
        parts = {name: fastest_s / each_s if each_s > fastest_s else 1.0 for name, each_s in own_s.items()}
        return {name: min(most, max(least, round(most * part))) for name, part in parts.items()}

    def _parts(self, device: str, cuts: Cuts, *, middle: bool = False) -> list[tuple[float, float]]:
        """(forward, backward) seconds of the two outer parts, or of the middle one."""
        edges = [0, *cuts, len(self.problem.profile.units)]
        runs = [(edges[1], edges[2])] if middle else [(edges[0], edges[1]), (edges[2], edges[3])]
        forward, backward = self.running[device]
        return [(forward[b] - forward[a], backward[b] - backward[a]) for a, b in runs]

    def _running(self, device: str) -> tuple[list[float], list[float]]:
        """Forward and backward, each [position]: seconds of all units before it."""
        found = []
        for seconds in self.clock.unit_times(device, self.samples):
            total = [0.0]
            for each in seconds:
                total.append(total[-1] + each)
            found.append(total)
        return found[0], found[1]
