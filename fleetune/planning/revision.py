"""Plans for the devices that are left after others were lost (Ye et al., Asteroid, §3.4, "pipeline replay").

`light` keeps the order of the groups: only cut points and shares move, so that most weights stay where they are. It is
solved in milliseconds. `heavy` plans anew with the plan's own strategy, and may move everything. A strategy with lanes
revises its plans itself: no device can take over the samples of another one.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from fleetune.checks import check_local_data, validate
from fleetune.clock import Clock
from fleetune.clock.spread import scaled_profile
from fleetune.contracts.plan import Plan, PlanResult
from fleetune.contracts.record import record
from fleetune.errors import Infeasible, Refused
from fleetune.planning import api, papers
from fleetune.planning.backups import with_backups
from fleetune.planning.plan_result import plan_result
from fleetune.planning.recompute import everywhere, within_memory
from fleetune.planning.recut import recut
from fleetune.planning.segment_costs import SegmentCosts
from fleetune.planning.strategy import Problem, Revising, free_bytes, participants
from fleetune.solving.hpp.problem import FREE

WARMUP = "2(P-p)-1"
"""Asteroid's policy; the warm-ups of a plan with another number of segments say nothing for fewer."""
MIN_GAIN = 0.1
"""Least relative gain for which a plan changes although no device is lost."""


def without_devices(problem: Problem, lost: Collection[str]) -> Problem:
    """Return the problem on the devices that are left; options no longer name the lost ones, nor warm-ups of more
    segments than the devices that are left can form.

    Refused: a device that the fleet does not have. Infeasible: no device is left.
    """
    if {device.name for device in problem.fleet.devices} <= set(lost):
        raise Infeasible(f"all devices were lost ({', '.join(sorted(lost))}); start one of them again")
    options = {
        name: _without(value, lost) if name in api.DEVICE_OPTIONS else value
        for name, value in problem.options.items()
        if not (name in api.DEVICE_OPTIONS and isinstance(value, str) and value in lost)
    }
    owners = tuple(name for name in problem.owners if name not in lost)
    found = replace(problem, fleet=problem.fleet.without(lost), options=options, owners=owners)
    listed = _listed(options)
    if listed and listed > _most_segments(found):
        found = replace(found, options={name: value for name, value in options.items() if name != "warmup"})
    return found


def _listed(options: Mapping[str, Any]) -> int:
    """Return the number of segments for which warm-ups are listed; 0 where a policy is named."""
    warmup = options.get("warmup")
    return len(warmup) if isinstance(warmup, list | tuple) else 0


def _most_segments(problem: Problem) -> int:
    """Return the most segments of a pipeline: one for each of the groups that are asked for, else for each device that
    may be used and has memory beside an idle worker."""
    if problem.options.get("groups"):
        return len(problem.options["groups"])
    names = participants(problem, problem.options.get("devices") or ())
    return sum(free_bytes(problem, name) >= 0 for name in names)


def light(problem: Problem, plan: Plan, lost: Collection[str]) -> PlanResult:
    """Return the best plan that keeps the groups of `plan`, and their order, without the lost devices.

    A group that lost all of its devices is left out; the others take its layers. Groups keep their warm-ups if all of
    them are left. Refused: a plan of several lanes, or with segments that come back to a device. Infeasible: the
    groups that are left have no memory for the model; `heavy` may find another order.
    """
    if not plan.is_chain:
        raise Refused(f"plan: {plan.strategy} made no single chain of segments; plan it anew (heavy)")
    keeping = everywhere(plan, recompute=False)
    return within_memory(without_devices(problem, lost), lambda left: _light(left, keeping, lost))


def _light(left: Problem, plan: Plan, lost: Collection[str]) -> PlanResult:
    """Return the plan of `light` for the problem of the devices that are left."""
    segments = plan.lanes[0].segments
    kept = [tuple(device for device in segment.devices if device not in lost) for segment in segments]
    groups = tuple(group for group in kept if group)
    if not groups:
        raise Infeasible(f"plan: it used no other device than {', '.join(sorted(lost))}; plan it anew (heavy)")
    named = left.options.get("warmup")
    policy = named if isinstance(named, str) and named != FREE else WARMUP
    complete = len(groups) == len(segments)
    warmup: str | tuple[int, ...] = tuple(segment.warmup for segment in segments) if complete else policy
    costs = SegmentCosts(left)
    revised = recut(plan.strategy, costs, groups, warmup)
    revised = replace(revised, links=tuple(use for use in plan.links if not {use.source, use.target} & set(lost)))
    if plan.backup_every_rounds:
        with suppress(Infeasible):  # devices that have no memory for backups go on without
            revised = with_backups(revised, left, costs.clock)
    return replace(plan_result(revised, left, costs.clock, papers.ASTEROID), method="light")


def heavy(problem: Problem, plan: Plan, lost: Collection[str]) -> PlanResult:
    """Return a plan of the same strategy for the devices that are left; Infeasible or Refused as the strategy says."""
    return api.solve(plan.strategy, without_devices(problem, lost))


def own(strategy: Revising, problem: Problem, plan: Plan, lost: Collection[str]) -> PlanResult:
    """Return the plan of a strategy that revises its plans itself; Infeasible or Refused as the strategy says."""
    left = without_devices(problem, lost)
    keeping = everywhere(plan, recompute=False)
    found = within_memory(left, lambda each: strategy.revise(each, keeping, lost))
    validate(found.plan, left.fleet, left.profile)
    if problem.owners:
        try:
            check_local_data(found.plan, problem.profile, problem.owners)
        except Refused as error:  # it may go on once a device without data is back
            raise Infeasible(str(error)) from None
    return replace(found, method="own", options=left.options, recompute=left.recompute)


@record
class Reviser:
    """Plans anew when devices are lost: as the strategy itself does; else `light` where the plan is a chain and its
    groups have the memory, else `heavy`. Where devices are left that the plan does not use, or links may be compressed,
    which `light` leaves dense, the faster of both.

    problem: the one that the first plan solves.
    """

    problem: Problem

    def __call__(self, plan: Plan, lost: Collection[str]) -> PlanResult:
        """Return a plan for the devices that are left; Infeasible or Refused if there is none."""
        strategy = api.strategies().get(plan.strategy)
        if isinstance(strategy, Revising):
            return own(strategy, self.problem, plan, lost)
        try:
            found = light(self.problem, plan, lost)
        except (Infeasible, Refused):
            return heavy(self.problem, plan, lost)
        used = {device.name for device in self.problem.fleet.devices} <= {*plan.devices, *lost}
        if used and not _compresses(self.problem):
            return found
        with suppress(Infeasible, Refused):
            found = min(found, heavy(self.problem, plan, lost), key=lambda each: each.objective)
        return found


def _compresses(problem: Problem) -> bool:
    return any(problem.options.get(name) is not None for name in ("compression", "compression_ratio"))


def around(
    problem: Problem, plan: Plan, lost: Collection[str], paces: Mapping[str, float], *, must: bool = False
) -> PlanResult:
    """Return a plan for devices some of which compute slower than by their profiles.

    paces: straggler -> its compute seconds over those of its profile. Infeasible where no device of the plan is lost
    and no other plan shortens the round by MIN_GAIN, so that noise moves nothing; with `must`, as where another plan
    runs than this one, it is returned whatever it gains.
    """
    slowed = with_paces(problem, paces)
    found = Reviser(problem=slowed)(plan, lost)
    present_s = Clock(slowed.fleet, slowed.profile).round_s(plan)
    if not must and not set(lost) & set(plan.devices) and found.objective > (1 - MIN_GAIN) * present_s:
        raise Infeasible(
            f"no other plan shortens the round of {present_s:.3g} s by {MIN_GAIN:.0%}; the best takes "
            f"{found.objective:.3g} s"
        )
    return found


def with_paces(problem: Problem, paces: Mapping[str, float]) -> Problem:
    """Return the problem with all that these devices compute so many times as long."""
    return replace(problem, profile=scaled_profile(problem.profile, paces))


class Copy(NamedTuple):
    """A unit that a device runs after a revision and did not run before."""

    device: str
    lane: str
    unit: str


def copies(before: Plan, after: Plan) -> Iterator[Copy]:
    """Yield the units that devices must be given when `after` follows `before`, in the order of `after`."""
    held = set(_placed(before))
    yield from (copy for copy in _placed(after) if copy not in held)


def _placed(plan: Plan) -> Iterator[Copy]:
    for lane in plan.lanes:
        for segment in lane.segments:
            yield from (Copy(device, lane.name, unit) for device in segment.devices for unit in segment.units)


def _without(value: Any, lost: Collection[str]) -> Any:
    """Return the value of an option that names devices without the lost ones; empty groups go too."""
    if isinstance(value, dict):
        return {name: _without(each, lost) for name, each in value.items() if name not in lost}
    if isinstance(value, list | tuple):
        left = [_without(each, lost) for each in value if not (isinstance(each, str) and each in lost)]
        return [each for each in left if each != []]
    return value
