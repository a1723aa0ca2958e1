"""Recomputed activations, where memory is short (`clock.recompute` says what they cost).

Whatever the strategy, a plan that recomputes everywhere is a plan for a profile whose blocks keep only their inputs and
take their forward again in the backward. Of such a plan, segments with memory for it keep their activations after all.
"""

from collections.abc import Callable
from dataclasses import replace

from fleetune.clock import Clock
from fleetune.clock.costs import received_bytes, segment_bytes
from fleetune.clock.partial_passes import with_least_passes, with_whole_rests
from fleetune.clock.recompute import input_bytes
from fleetune.contracts.plan import Plan, PlanResult
from fleetune.contracts.profile import DeviceTimes
from fleetune.contracts.training_request import ALWAYS, AUTO, NEVER
from fleetune.errors import Infeasible, Refused
from fleetune.formatting import exact_size
from fleetune.planning.plan_result import lower_bound_s
from fleetune.planning.strategy import Problem, free_bytes
from fleetune.program.blocks import Run, block_runs

Find = Callable[[Problem], PlanResult]
"""Plans for a problem; Infeasible if there is no plan."""


def within_memory(problem: Problem, find: Find) -> PlanResult:
    """Return what `find` plans, with recomputed activations as the problem asks for.

    auto: where memory may be short, the faster of the plans with and without. Infeasible as `find` says.
    """
    if problem.recompute == NEVER:
        return find(problem)
    kept: PlanResult | None = None
    if problem.recompute == AUTO:
        try:
            kept = find(problem)
        except Infeasible as error:
            short = error
        if kept is not None and not memory_may_bind(problem):
            return kept
    try:
        found = _recomputed(find(recomputing(problem)), problem)
    except (Infeasible, Refused) as error:  # refused: what was asked for needs cuts inside blocks
        if kept is not None:
            return kept
        if problem.recompute == AUTO and (isinstance(error, Refused) or str(error) == str(short)):
            raise short from None
        raise type(error)(f"{error}; activations are already recomputed in the backward") from None
    return found if kept is None or found.objective < kept.objective else kept


def memory_may_bind(problem: Problem) -> bool:
    """Return whether some device lacks memory for all units, with as many kept micro-batches as any pipeline keeps in
    as many lanes as there may be."""
    profile, devices = problem.profile, len(problem.fleet.devices)
    kept = min(problem.micro_batches, 2 * devices) * devices
    received = received_bytes(sum(unit.trainable_bytes for unit in profile.units), devices)
    most_bytes = received + segment_bytes(
        profile.units,
        trained=profile.units,
        state_per_param_byte=1 + profile.optimizer_bytes_per_param_byte,
        kept_samples=kept * problem.micro_batch_samples,
    )
    return any(free_bytes(problem, device.name) < most_bytes for device in problem.fleet.devices)


def recomputing(problem: Problem) -> Problem:
    """Return the problem in which every block recomputes; no cut lies inside a block.

    Every device holds the activations of the largest block of a whole micro-batch beside the rest.
    """
    profile = problem.profile
    runs = [run for run in block_runs([unit.name for unit in profile.units]) if run.block]
    units = list(profile.units)
    again = 0
    for run in runs:
        inside = sum(unit.activation_bytes for unit in units[run.first : run.end])
        again = max(again, inside)
        for k in range(run.first, run.end):
            kept = min(inside, input_bytes(profile, run.first)) if k == run.first else 0
            cut_after = units[k].cut_after and k == run.end - 1
            units[k] = replace(units[k], activation_bytes=kept, cut_after=cut_after)
    reserved = problem.micro_batch_samples * again
    times = tuple(_with_forwards(each, runs, reserved) for each in profile.times)
    return replace(problem, profile=replace(profile, units=tuple(units), times=times))


def _with_forwards(times: DeviceTimes, runs: list[Run], reserved_bytes: int) -> DeviceTimes:
    """Return times whose backwards contain the forwards of blocks."""
    inside = {k for run in runs for k in range(run.first, run.end)}
    forward_usual, backward_usual = times.usual_factors()

    def backward_s(unit: int) -> tuple[float, ...]:
        rows = zip(times.forward_s[unit], times.backward_s[unit], strict=True)
        ratio = forward_usual[unit] / backward_usual[unit]
        return tuple(back + ratio * there * (back > 0) for there, back in rows)

    rows = tuple(backward_s(k) if k in inside else row for k, row in enumerate(times.backward_s))
    partial = with_whole_rests(times.partial, times.backward_s, rows) if times.partial else None
    return replace(times, backward_s=rows, partial=partial, runtime_bytes=times.runtime_bytes + reserved_bytes)


def _recomputed(result: PlanResult, problem: Problem) -> PlanResult:
    """Return a plan that was made for a recomputing problem as a plan of the problem itself.

    Infeasible where it does not fit after all: strategies that train a part of a block alone count less for it.
    """
    clock = Clock(problem.fleet, problem.profile)
    plan = everywhere(result.plan, recompute=True)
    for name in plan.devices:
        missing = clock.memory_bytes(plan, name) - problem.fleet.device(name).memory_bytes
        if missing > 0:
            raise Infeasible(f"device {name} lacks {exact_size(missing)} for its segments; give it more memory")
    if problem.recompute != ALWAYS:
        plan = _where_needed(plan, clock)
    objective = clock.round_s(plan)
    trains_parts = any(segment.trains for lane in plan.lanes for segment in lane.segments)
    least = Clock(problem.fleet, with_least_passes(problem.profile)) if trains_parts else clock
    bound = None if result.lower_bound is None else min(objective, lower_bound_s(problem, least))
    return replace(result, plan=plan, objective=objective, lower_bound=bound, status="feasible")


def everywhere(plan: Plan, recompute: bool) -> Plan:
    """Return the plan in which all segments recompute, or none."""
    lanes = tuple(
        replace(lane, segments=tuple(replace(segment, recompute=recompute) for segment in lane.segments))
        for lane in plan.lanes
    )
    return replace(plan, lanes=lanes)


def _where_needed(plan: Plan, clock: Clock) -> Plan:
    """Return the plan in which segments keep their activations where their devices have the memory: those first that
    recompute longest."""
    places = [(at, index) for at, lane in enumerate(plan.lanes) for index in range(len(lane.segments))]
    for at, index in sorted(places, key=lambda place: -_again_s(plan, place[0], place[1], clock)):
        keeping = _keeping(plan, at, index)
        devices = plan.lanes[at].segments[index].devices
        if all(clock.memory_bytes(keeping, name) <= clock.fleet.device(name).memory_bytes for name in devices):
            plan = keeping
    return plan


def _again_s(plan: Plan, at: int, index: int, clock: Clock) -> float:
    """Return the seconds by which the round is longer because a segment recomputes, were it alone."""
    segment = plan.lanes[at].segments[index]
    places = [clock.profile.position(name) for name in segment.units]
    found_s = []
    for share in segment.shares:
        forward_s, backward_s = clock.unit_times(share.device, share.samples)
        again = clock.runs_again(segment, backward_s)
        found_s.append(sum(forward_s[k] for k, runs in zip(places, again, strict=True) if runs))
    return max(found_s)


def _keeping(plan: Plan, at: int, index: int) -> Plan:
    lane = plan.lanes[at]
    segments = list(lane.segments)
    segments[index] = replace(segments[index], recompute=False)
    lanes = list(plan.lanes)
    lanes[at] = replace(lane, segments=tuple(segments))
    return replace(plan, lanes=tuple(lanes))
