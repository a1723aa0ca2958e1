"""split-learning: clients keep the first and the last part of the model, with their data; helpers run the middle.

After Tirana et al., Workflow Optimization for Parallel Split Learning, IEEE INFOCOM 2024 (arXiv:2402.10092). Who helps
whom, and in which order, is `fleetune.solving.split`, which knows numbers only. Helpers follow the order of its
schedule, not its slots.

Deviations: times are measured; both cuts are the same for all clients, and are searched where none are given; helpers
do not interrupt a task, as no runtime can interrupt a backward pass. A client's batch may be several micro-batches:
then a helper does all of its forwards before its backwards; training.batch_samples is each client's. The clock also
counts what the paper leaves out: messages of several clients that meet at a helper's port. FedAvg after the epoch is no
part of a round.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from fleetune.clock import Clock
from fleetune.contracts import wire
from fleetune.contracts.plan import BACKWARD, FORWARD, Action, DeviceOrder, Lane, Plan, PlanResult
from fleetune.contracts.record import distinct, positive, record
from fleetune.errors import Infeasible, Refused
from fleetune.planning.parts.layers import cut_places
from fleetune.planning.parts.plan_result import plan_result, segment
from fleetune.planning.parts.requirements import not_profiled, taking_part
from fleetune.planning.parts.split_problem import Cuts, Roles, SplitProblemBuilder
from fleetune.planning.problem import Problem
from fleetune.solving.split.bounds import quick_bound
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.problem import Solution
from fleetune.solving.split.solve import solve

PLACES = 8
"""Of a model's cut places, those tried for each of the two cuts, evenly spread."""


@record
class Options:
    """Of `split-learning`."""

    method: str = "auto"
    """Of kind "split" (`fleetune solve --list`); not `admm`, which interrupts tasks."""
    helpers: tuple[str, ...] = ()
    """The fastest quarter of the devices, at least one, where none are named."""
    clients: tuple[str, ...] = ()
    """Whose data is trained on; all other devices where none are named."""
    devices: tuple[str, ...] = ()
    """Which ones may take part at all; all of the fleet where none are named."""
    cuts: tuple[str, str] | None = None
    """The last unit of part 1 and the last of part 2; None: searched."""
    time_limit_s: float | None = None
    """None: a fixed amount of work; else the search goes on until then, and may answer differently from run to run."""

    def __post_init__(self) -> None:
        distinct("split-learning", "device", (*self.helpers, *self.clients))
        if self.time_limit_s is not None:
            positive("split-learning", time_limit_s=self.time_limit_s)
        if self.method == "admm":
            raise Refused("split-learning: method admm interrupts tasks, which no runtime can; choose another")


class SplitLearning:
    """Client lanes through helpers."""

    name = "split-learning"
    options: ClassVar[type] = Options
    methods: ClassVar[dict[str, str]] = {"method": "split"}
    summary = "every client trains on its own data; helpers run the middle of the model, scheduled for the makespan"
    citation = (
        "Tirana, J., Tsigkari, D., Iosifidis, G. and Chatzopoulos, D.: Workflow Optimization for Parallel Split "
        "Learning. IEEE INFOCOM 2024. arXiv:2402.10092"
    )

    def supports(self, problem: Problem) -> str:
        """Any profiled fleet of two devices or more, and a model that can be cut twice."""
        if len(problem.fleet.devices) < 2:
            return "it needs a helper and at least one client; the fleet has one device"
        if len(cut_places(problem.profile.units)) < 4:
            return "the model cannot be cut in three parts; profile it in finer units (model.granularity)"
        return not_profiled(problem)

    def plan(self, problem: Problem) -> PlanResult:
        """A lane per client, an explicit order per device."""
        options = wire.load(Options, problem.options, "strategy split-learning")
        clock = Clock(problem.fleet, problem.profile)
        roles = _roles(problem, options, clock)
        sharer = SplitProblemBuilder(problem, clock, roles)
        cuts = _given(problem, options.cuts) if options.cuts else _searched(problem, sharer)
        _prove_clients(problem, roles, cuts)
        slot_s = sharer.slot_s(cuts)
        posed = sharer.posed(cuts, slot_s)
        try:
            found = solve(posed, method=options.method, time_limit_s=options.time_limit_s, seed=problem.seed)
        except Infeasible as error:
            raise Infeasible(f"{error} ({_told(roles)})") from None
        plan = _plan(problem, roles, cuts, found)
        least_s = _least_s(sharer, cuts) if options.cuts else _least_of_all_s(problem, sharer)
        rounding_s = least_s * 1e-9 + 1e-8 * problem.micro_batches * (1 + len(roles.clients))  # the clock's, the slots'
        result = plan_result(plan, problem, clock, self.citation, bound_s=max(0.0, least_s - rounding_s))
        return replace(result, method=options.method)


def _roles(problem: Problem, options: Options, clock: Clock) -> Roles:
    named = (*options.helpers, *options.clients)
    names = taking_part(problem, options.devices or (named if options.helpers and options.clients else ()))
    for name in named:
        problem.fleet.device(name)
        if name not in names:
            raise Refused(f"split-learning: {name} is not among the devices {', '.join(names)}; name it there too")

    def whole_s(name: str) -> float:
        return sum(map(sum, clock.unit_times(name, problem.micro_batch_samples)))

    free = sorted((name for name in names if name not in named), key=whole_s)
    helpers = options.helpers or tuple(free[: max(1, len(names) // 4)])
    clients = options.clients or tuple(name for name in names if name not in helpers)
    if not helpers or not clients:
        raise Refused("split-learning: no device is left to be helper or client; name fewer of the other")
    return Roles(clients, helpers)


def _given(problem: Problem, named: tuple[str, str]) -> Cuts:
    first, second = (problem.profile.position(name) + 1 for name in named)
    places = cut_places(problem.profile.units)[1:-1]
    for name, place in zip(named, (first, second), strict=True):
        if place not in places:
            raise Refused(f"split-learning: the model cannot be cut after unit {name}; choose another")
    if first >= second:
        raise Refused(f"split-learning: cuts {list(named)} leave nothing between them; name an earlier unit first")
    return Cuts(first, second)


def _searched(problem: Problem, sharer: SplitProblemBuilder) -> Cuts:
    """The pair of cuts whose greedy schedule is shortest; Infeasible: no pair fits the memories."""
    best: tuple[float, Cuts] | None = None
    reason = "no pair of cuts leaves every client and helper enough memory"
    for cuts in _pairs(problem):
        slot_s = sharer.slot_s(cuts)
        try:
            _prove_clients(problem, sharer.roles, cuts)
            found = solve(sharer.posed(cuts, slot_s), method="balanced-greedy").objective * slot_s
        except Infeasible as error:
            reason = f"with the last pair of cuts that was tried, {error} ({_told(sharer.roles)})"
            continue
        best = (found, cuts) if best is None or found < best[0] else best
    if best is None:
        raise Infeasible(f"split-learning: {reason}")
    return best[1]


def _least_s(sharer: SplitProblemBuilder, cuts: Cuts) -> float:
    """No plan of these roles and cuts has a shorter round: by clients and helpers together, by each client alone."""
    slot_s, own_s = sharer.slot_s(cuts), max(sharer.own_s(client, cuts) for client in sharer.roles.clients)
    instance = Instance.from_problem(sharer.posed(cuts, slot_s, least=True))
    if not instance.linked.any(axis=0).all():
        return math.inf  # a copy of part 2 fits no helper: there is no plan
    return max(own_s, quick_bound(instance) * slot_s)


def _least_of_all_s(problem: Problem, sharer: SplitProblemBuilder) -> float:
    """The same for any cuts. Where they are many, only what clients do themselves counts, with as little as can be."""
    places = cut_places(problem.profile.units)[1:-1]
    pairs = [Cuts(first, second) for first in places for second in places if first < second]
    if len(pairs) <= PLACES**2:
        return min(_least_s(sharer, cuts) for cuts in pairs)  # one of them has a plan
    return max(sharer.own_s(client, Cuts(places[0], places[-1])) for client in sharer.roles.clients)


def _pairs(problem: Problem) -> Iterator[Cuts]:
    places = cut_places(problem.profile.units)[1:-1]
    step = max(1, (len(places) - 1) / (PLACES - 1))
    tried = sorted({places[round(k * step)] for k in range(PLACES) if round(k * step) < len(places)} | {places[-1]})
    return (Cuts(first, second) for first in tried for second in tried if first < second)


def _prove_clients(problem: Problem, roles: Roles, cuts: Cuts) -> None:
    """Infeasible: a client lacks memory for its own parts."""
    lanes = tuple(_lane(problem, client, roles.helpers[0], cuts) for client in roles.clients)
    plan = _of(problem, lanes, ())
    clock = Clock(problem.fleet, problem.profile)
    for client in roles.clients:
        missing = clock.memory_bytes(plan, client) - problem.fleet.device(client).memory_bytes
        if missing > 0:
            raise Infeasible(f"client {client} lacks {missing} bytes for its first and last part")


def _plan(problem: Problem, roles: Roles, cuts: Cuts, found: Solution) -> Plan:
    lanes = tuple(
        _lane(problem, client, roles.helpers[found.helper[number]], cuts) for number, client in enumerate(roles.clients)
    )
    orders = [DeviceOrder(device=client, actions=tuple(_of_client(client, problem))) for client in roles.clients]
    for helper, tasks in zip(roles.helpers, found.order, strict=True):
        actions = [
            _spelled(roles.clients[client], 1, FORWARD if way == "forward" else BACKWARD, m)
            for client, way in tasks
            for m in range(problem.micro_batches)
        ]
        if actions:
            orders.append(DeviceOrder(device=helper, actions=tuple(actions)))
    return _of(problem, lanes, tuple(orders))


def _lane(problem: Problem, client: str, helper: str, cuts: Cuts) -> Lane:
    """A client's way through its helper: all forwards of parts 1 and 2 come before their backwards."""
    units, samples, many = problem.profile.units, problem.micro_batch_samples, problem.micro_batches
    parts: Sequence[tuple[slice, str, int]] = (
        (slice(0, cuts.first), client, many),
        (slice(cuts.first, cuts.second), helper, many),
        (slice(cuts.second, None), client, 1),
    )
    return Lane(
        name=client, segments=tuple(segment(units[part], [(device, samples)], kept) for part, device, kept in parts)
    )


def _of_client(client: str, problem: Problem) -> Iterator[str]:
    """Part 1 forward, part 3 forward and backward as inputs come back, part 1 backward."""
    steps = [
        [(0, FORWARD, m) for m in range(problem.micro_batches)],
        [(2, letter, m) for m in range(problem.micro_batches) for letter in (FORWARD, BACKWARD)],
        [(0, BACKWARD, m) for m in range(problem.micro_batches)],
    ]
    return (_spelled(client, *step) for part in steps for step in part)


def _spelled(lane: str, index: int, letter: str, micro_batch: int) -> str:
    return str(Action(lane=lane, segment=index, letter=letter, micro_batch=micro_batch))


def _of(problem: Problem, lanes: tuple[Lane, ...], order: tuple[DeviceOrder, ...]) -> Plan:
    return Plan(
        strategy=SplitLearning.name,
        micro_batch_samples=problem.micro_batch_samples,
        micro_batches=problem.micro_batches,
        lanes=lanes,
        order=order,
    )


def _told(roles: Roles) -> str:
    helpers = ", ".join(f"{number} {name}" for number, name in enumerate(roles.helpers))
    clients = ", ".join(f"{number} {name}" for number, name in enumerate(roles.clients))
    return f"helpers are {helpers}; clients are {clients}"
