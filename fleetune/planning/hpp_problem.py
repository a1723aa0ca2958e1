"""A fleet and a profile as a problem of kind "hpp", and its solution as a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from fleetune.clock import Clock
from fleetune.clock.costs import RECEIVED_PER_GRADIENT_BYTE
from fleetune.clock.link_costs import lost_s_per_byte
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import Profile, fewest_samples
from fleetune.planning import plan_result
from fleetune.planning.layers import join_units, layer_edges
from fleetune.planning.strategy import Problem, devices_with_room
from fleetune.solving.hpp import problem as hpp
from fleetune.solving.hpp.instance import Extras
from fleetune.solving.hpp.problem import Solution


class PosedProblem(NamedTuple):
    """A planning problem as a problem of kind "hpp"."""

    problem: hpp.Problem
    edges: list[int]
    """Layer k is units edges[k] .. edges[k + 1] - 1."""
    extras: Extras
    """What else the clock counts, which is not part of the problem's format."""


def to_hpp_problem(
    problem: Problem,
    names: Sequence[str],
    *,
    layers: str | int = "units",
    warmup: str | tuple[int, ...] = "2(P-p)-1",
    snapshots: int = 0,
) -> PosedProblem:
    """Pose the planning problem on the devices `names`.

    A device's budget is its memory less that of an idle worker; devices without room for one are left out. Layers are
    units, joined where no cut is allowed and as `layers` says. Times are given for every number of samples as the
    clock has them, so that both agree to the nanosecond. snapshots: copies of what a device trains that it keeps, too.
    Infeasible where no device has room for an idle worker.
    """
    clock, profile = Clock(problem.fleet, problem.profile), problem.profile
    kept = min(1, snapshots)  # the kind of problem knows one copy; more count as optimizer state
    fleet = clock.busy_fleet
    room = devices_with_room(problem, names)
    edges = layer_edges(problem, layers, clock)
    forward_s, backward_s = zip(*(_times(problem, clock, name, edges) for name in room), strict=True)
    links = [[None if a == b else fleet.link(a, b) for b in room] for a in room]
    posed = hpp.Problem(
        micro_batch=problem.micro_batch_samples,
        micro_batches=problem.micro_batches,
        layers=tuple(join_units(profile.units[i:j]) for i, j in pairwise(edges)),
        devices=tuple(hpp.Device(name=name, memory_bytes=room[name]) for name in room),
        batch_sizes=tuple(range(1, problem.micro_batch_samples + 1)),
        forward_s=forward_s,
        backward_s=backward_s,
        bandwidth_bytes_per_s=tuple(tuple(link.bytes_per_s if link else None for link in row) for row in links),
        latency_s=tuple(tuple(link.latency_s if link else None for link in row) for row in links),
        optimizer_bytes_per_param_byte=(1 + profile.optimizer_bytes_per_param_byte) * (1 + snapshots) / (1 + kept) - 1,
        snapshots=kept,
        warmup=warmup,
    )
    lost_s = tuple(lost_s_per_byte(fleet.device(name)) for name in room)
    min_samples = tuple(fewest_samples(profile.units[i:j]) for i, j in pairwise(edges))
    return PosedProblem(posed, edges, Extras(lost_s, min_samples, RECEIVED_PER_GRADIENT_BYTE))


def to_plan(strategy: str, problem: Problem, posed: PosedProblem, solution: Solution) -> Plan:
    """Convert a solution of the posed problem to a plan."""
    units, edges = problem.profile.units, posed.edges
    segments = []
    for stage in solution.stages:
        first, end = stage.layers
        shares = [(device.name, device.samples) for device in stage.devices]
        segments.append(plan_result.segment(units[edges[first] : edges[end]], shares, stage.warmup))
    return plan_result.single_lane_plan(strategy, problem, segments)


def with_reserves(posed: PosedProblem, held_bytes: Mapping[str, int]) -> PosedProblem:
    """The posed problem with `held_bytes` (device name -> bytes) taken off the devices' budgets, down to 0."""
    devices = tuple(
        replace(device, memory_bytes=max(0, device.memory_bytes - held_bytes.get(device.name, 0)))
        for device in posed.problem.devices
    )
    return posed._replace(problem=replace(posed.problem, devices=devices))


def in_one_stage(posed: PosedProblem, profile: Profile) -> PosedProblem:
    """The posed problem for plans of one stage, which holds each weight once, however many of its units share it."""
    seen: list[str] = []
    layers = []
    for layer, (first, end) in zip(posed.problem.layers, pairwise(posed.edges), strict=True):
        own = [unit.name for unit in profile.units[first:end]]
        twice_before, less_before = profile.repeated_bytes(seen), _too_often(profile, seen)
        seen += own
        twice, less = profile.repeated_bytes(seen) - twice_before, _too_often(profile, seen) - less_before
        trained = layer.param_bytes if layer.trainable_bytes is None else layer.trainable_bytes
        layers.append(replace(layer, param_bytes=layer.param_bytes - less, trainable_bytes=trained - twice))
    return posed._replace(problem=replace(posed.problem, layers=tuple(layers), warmup=(1,)))


def _too_often(profile: Profile, units: Sequence[str]) -> int:
    """Return the bytes that sums over units have too often, beside gradients and optimizer state."""
    return profile.repeated_weight_bytes(units) - profile.awaited_bytes(units)


Table = tuple[tuple[float, ...], ...]


def _times(problem: Problem, clock: Clock, device: str, edges: list[int]) -> tuple[Table, Table]:
    """Forward and backward seconds, each [layer][samples - 1]; sums of the clock's times are exact."""
    measured = [clock.unit_times(device, samples) for samples in range(1, problem.micro_batch_samples + 1)]
    forward, backward = (
        tuple(tuple(sum(times[way][i:j]) for times in measured) for i, j in pairwise(edges)) for way in (0, 1)
    )
    return forward, backward
