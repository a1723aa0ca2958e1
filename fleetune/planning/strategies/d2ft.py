"""d2ft: a hybrid pipeline in which every head of every block is trained, only run, or skipped, micro-batch by
micro-batch.

After Ding et al., You Don't Need All Attentions: Distributed Dynamic Fine-Tuning for Foundation Models, 2025
(arXiv:2504.12471). `fleetune.solving.d2ft` selects the operations. Scores are part of the profile
(`profile.scores=true`): weight magnitude backward and Fisher information forward by default, the best pair of the
paper's Table III. The pruning methods respect only the total of all budgets, as in the paper.

Deviations: norms, which belong to no head, are trained in every micro-batch. Taylor importance, the fourth score of
Table III, is not offered. With method `joint` the two budgets of a device are one of time. Subnets are not devices of
their own; segments are placed as in strategy asteroid, and the subnets of a device get its budget. Costs are measured,
not assumed to be 40 %. Scores are those of the first round's micro-batches; with `refresh_every_rounds` training takes
them anew, from a round in which every head runs in full.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import field, replace
from typing import ClassVar

from fleetune.clock import Clock
from fleetune.clock.costs import MOST_GRADIENTS_ASIDE
from fleetune.contracts import json_io
from fleetune.contracts.head_scores import HeadScores
from fleetune.contracts.plan import Gate, Plan, PlanResult
from fleetune.contracts.record import not_negative, one_of, record
from fleetune.contracts.subnet import Subnet
from fleetune.errors import Infeasible, Refused
from fleetune.planning import papers
from fleetune.planning.hpp_problem import PosedProblem, in_one_stage, to_hpp_problem, to_plan
from fleetune.planning.plan_result import plan_result
from fleetune.planning.strategy import Problem, participants, unprofiled_reason
from fleetune.solving.d2ft.problem import Problem as SelectionProblem
from fleetune.solving.d2ft.solve import solve as choose
from fleetune.solving.hpp.problem import Solution
from fleetune.solving.hpp.solve import solve as place

SCORES = ("weight-magnitude", "gradient-magnitude", "fisher")


@record
class Options:
    """Options of `d2ft`."""

    method: str = "bilevel"
    """Method of kind "d2ft" (`fleetune solve --list`)."""
    full: int = 3
    """Micro-batches per round in which each subnet is trained; at most all of them."""
    forward_only: int = 1
    """Most micro-batches per round in which each subnet is only run forward; fewer by bilevel, where full wins."""
    budgets: dict[str, tuple[int, int]] = field(default_factory=dict)
    """device -> (full, forward_only) of its subnets, instead of the values above; in a group that shares samples, the
    smallest of each holds for all."""
    backward_score: str = "weight-magnitude"
    forward_score: str = "fisher"
    forward_weight: float | None = None
    """Weight of forward scores in `joint`; None: lexicographic, backward scores first."""
    placement: str = "search"
    """Method of kind "hpp" that places the segments."""
    devices: tuple[str, ...] = ()
    """Names of the devices that may be used; empty: the whole fleet."""
    layers: str | int = "units"
    warmup: str | tuple[int, ...] = "2(P-p)-1"
    refresh_every_rounds: int = 0
    """Every so many rounds, one runs every head in full, scores all heads on its samples, and chooses the operations of
    the rounds that follow; 0: never, those of the first scores stay."""

    def __post_init__(self) -> None:
        not_negative("d2ft", full=self.full, forward_only=self.forward_only)
        not_negative("d2ft", refresh_every_rounds=self.refresh_every_rounds)
        if self.refresh_every_rounds == 1:
            raise Refused(
                "d2ft: with refresh_every_rounds 1 every round would run all heads in full; give 2 or more, or 0"
            )
        for device, (full, forward) in self.budgets.items():
            not_negative(f"d2ft: budgets of {device}", full=full, forward_only=forward)
        one_of("d2ft", "backward_score", self.backward_score, SCORES)
        one_of("d2ft", "forward_score", self.forward_score, SCORES)
        if self.forward_weight is not None and self.method != "joint":
            raise Refused(f"d2ft: forward_weight is for method joint, and method is {self.method}; leave it out")
        if self.placement == "hetpipe":
            raise Refused("d2ft: placement hetpipe is asynchronous and only for comparison; choose another")


class D2FT:
    """Adds gates to a hybrid pipeline."""

    name = "d2ft"
    options: ClassVar[type] = Options
    methods: ClassVar[dict[str, str]] = {"method": "d2ft", "placement": "hpp"}
    needs_scores = True
    summary = "a hybrid pipeline in which every head is trained, only run, or skipped by its scores (lossy)"
    citation = papers.D2FT

    def unsupported_reason(self, problem: Problem) -> str:
        """Names a lack of scores or of measured times."""
        subnets = problem.profile.subnets
        if not subnets:
            return "the profile has no scores of subnets; ask for them with profile.scores=true"
        if len(subnets[0].fisher) != problem.micro_batches:
            return (
                f"scores are of {len(subnets[0].fisher)} micro-batches, and a round has {problem.micro_batches}; "
                "profile again"
            )
        return unprofiled_reason(problem)

    def plan(self, problem: Problem) -> PlanResult:
        """Place the segments, then select each subnet's gates within the budget of its device."""
        options = json_io.load(Options, problem.options, "strategy d2ft")
        for device in options.budgets:
            problem.fleet.device(device)
        names = participants(problem, options.devices)
        clock = Clock(problem.fleet, problem.profile)
        plan = _place_segments(problem, options, names)
        plan = replace(plan, gates=_select(problem, plan, clock, options))
        found = plan_result(
            replace(plan, refresh_gates_every_rounds=options.refresh_every_rounds), problem, clock, self.citation
        )
        return replace(found, method=options.method, lower_bound=None, status="feasible")


def choose_gates(problem: Problem, plan: Plan, scores: Iterable[HeadScores]) -> dict[str, str]:
    """Return subnet -> operations in a plan that trains, chosen by scores that replace those of the profile.

    problem: the one that the first plan solves. Refused: scores of heads that the profile does not have, a head without
    scores, or scores of another number of micro-batches.
    """
    options = json_io.load(Options, problem.options, "strategy d2ft")
    found = {each.name: each for each in scores}
    subnets = problem.profile.subnets
    if found.keys() != {subnet.name for subnet in subnets}:
        raise Refused(f"scores: devices told those of {len(found)} heads, and the profile has {len(subnets)}")
    if odd := [each.name for each in found.values() if len(each.fisher) != problem.micro_batches]:
        raise Refused(f"scores of {odd[0]}: they are not of the {problem.micro_batches} micro-batches of a round")
    anew = tuple(
        replace(
            subnet,
            weight_magnitude=found[subnet.name].weight_magnitude,
            gradient_magnitude=found[subnet.name].gradient_magnitude,
            fisher=found[subnet.name].fisher,
        )
        for subnet in subnets
    )
    problem = replace(problem, profile=replace(problem.profile, subnets=anew))
    clock = Clock(problem.fleet, problem.profile)
    return {gate.subnet: gate.operations for gate in _select(problem, plan, clock, options)}


def _select(problem: Problem, plan: Plan, clock: Clock, options: Options) -> tuple[Gate, ...]:
    """Select the operations of all subnets, within the budgets of the devices that hold them."""
    selection = _selection_problem(problem, plan, clock, options)
    chosen = choose(selection, method=options.method, seed=problem.seed)
    return tuple(
        Gate(subnet=subnet.name, operations="".join(map(str, row)))
        for subnet, row in zip(problem.profile.subnets, chosen.table, strict=True)
    )


def _place_segments(problem: Problem, options: Options, names: tuple[str, ...]) -> Plan:
    """The placement, with room for rounds that score heads if there are any: one copy of the gradients more, and
    MOST_GRADIENTS_ASIDE where devices share samples."""
    if not options.refresh_every_rounds:
        return _placed(problem, problem, options, names)
    plan = _placed(problem, with_gradients_aside(problem, 1), options, names)
    if all(len(segment.devices) == 1 for lane in plan.lanes for segment in lane.segments):
        return plan
    return _placed(problem, with_gradients_aside(problem, MOST_GRADIENTS_ASIDE), options, names)


def _placed(problem: Problem, roomy: Problem, options: Options, names: tuple[str, ...]) -> Plan:
    """The placement; where segments that share weights would each hold them, and sum their gradients, of which it knows
    nothing, or the best one of a single segment, as the clock says. roomy: the problem with what devices keep free."""
    posed = to_hpp_problem(roomy, names, layers=options.layers, warmup=options.warmup)
    plans = [to_plan(D2FT.name, problem, posed, _solution(problem, posed, options))]
    if problem.profile.shares_weights and options.placement == "search" and not isinstance(options.warmup, tuple):
        with suppress(Infeasible):
            joined = in_one_stage(posed, problem.profile)
            plans.append(to_plan(D2FT.name, problem, joined, _solution(problem, joined, options)))
    return min(plans, key=Clock(problem.fleet, problem.profile).round_s)


def _solution(problem: Problem, posed: PosedProblem, options: Options) -> Solution:
    try:
        extras = posed.extras._replace(lost_s_per_byte=())
        solution = place(posed.problem, method=options.placement, seed=problem.seed, extras=extras)
    except Infeasible as error:
        raise Infeasible(f"{error} (budgets are memory less what an idle worker holds)") from None
    if not solution.feasible:
        raise Infeasible(f"placement {options.placement}: {solution.reason}; choose search, which respects memory")
    return solution


def with_gradients_aside(problem: Problem, copies: int) -> Problem:
    """Return the problem in which devices keep room for so many copies of their gradients more."""
    profile = problem.profile
    more = profile.optimizer_bytes_per_param_byte + copies
    return replace(problem, profile=replace(profile, optimizer_bytes_per_param_byte=more))


def _selection_problem(problem: Problem, plan: Plan, clock: Clock, options: Options) -> SelectionProblem:
    """The problem of kind "d2ft"; costs are whole nanoseconds, so that budgets of whole micro-batches are exact."""
    subnets = problem.profile.subnets
    groups = {name: s.shares for lane in plan.lanes for s in lane.segments for name in s.units}
    default_budget = (options.full, options.forward_only)
    forward_ns, backward_ns, full, forward_only = [], [], [], []
    for subnet in subnets:
        costs = [0, 0]
        for part in subnet.parts:
            position = problem.profile.position(part.unit)
            times = [clock.unit_times(share.device, share.samples) for share in groups[part.unit]]
            slowest = max(times, key=lambda both: both[0][position] + both[1][position])
            for direction in (0, 1):
                costs[direction] += round(slowest[direction][position] * part.share * 1e9)
        budgets = [
            options.budgets.get(share.device, default_budget) for part in subnet.parts for share in groups[part.unit]
        ]
        most_full, most_forward = (min(kind) for kind in zip(*budgets, strict=True))
        forward_ns.append(float(max(1, costs[0])))
        backward_ns.append(float(costs[1]))
        full.append(min(most_full, problem.micro_batches) * (forward_ns[-1] + backward_ns[-1]))
        forward_only.append(min(most_forward, problem.micro_batches) * forward_ns[-1])
    return SelectionProblem(
        backward_scores=tuple(_scores(subnet, options.backward_score) for subnet in subnets),
        forward_scores=tuple(_scores(subnet, options.forward_score) for subnet in subnets),
        forward_cost=tuple(forward_ns),
        backward_cost=tuple(backward_ns),
        full_capacity=tuple(full),
        forward_capacity=tuple(forward_only),
        capacity=tuple(a + b for a, b in zip(full, forward_only, strict=True)),
        forward_weight=options.forward_weight,
        weight_magnitude=tuple(subnet.weight_magnitude for subnet in subnets),
        gradient_magnitude=tuple(subnet.gradient_magnitude for subnet in subnets),
    )


def _scores(subnet: Subnet, name: str) -> tuple[float, ...]:
    """Scores of a subnet, shape [micro-batch]; magnitudes do not depend on the samples."""
    if name == "fisher":
        return subnet.fisher
    return (subnet.weight_magnitude if name == "weight-magnitude" else subnet.gradient_magnitude,) * len(subnet.fisher)
