"""split-learning: clients keep the first and the last part of the model, with their data; helpers run the middle.

After Tirana et al., Workflow Optimization for Parallel Split Learning, IEEE INFOCOM 2024 (arXiv:2402.10092).
`fleetune.solving.split` assigns clients to helpers and schedules their tasks. Helpers follow the order of the schedule,
not its slots.

Deviations: times are measured; both cuts are the same for all clients, and are searched if none are given; tasks are
not preempted, as no runtime can interrupt a backward pass. A client's batch may have several micro-batches, and a
helper then runs all of its forwards before its backwards; training.batch_samples is per client. The clock also counts
contention of clients at a helper's port, where links have no rates of their own; the paper leaves it out. FedAvg comes
after a number of rounds, not after an epoch; the forecast tells its time apart from a round's. Clients take as many
steps as `local_rounds` says.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar

from fleetune.clock import Clock
from fleetune.contracts import json_io
from fleetune.contracts.plan import BACKWARD, FORWARD, Action, DeviceOrder, Lane, Plan, PlanResult
from fleetune.contracts.record import distinct, positive, record
from fleetune.errors import Infeasible, Refused, TryAgain
from fleetune.formatting import exact_size
from fleetune.planning import papers
from fleetune.planning.layers import cut_places
from fleetune.planning.named_cuts import cuts_at
from fleetune.planning.plan_result import plan_result, segment
from fleetune.planning.split_problem import Cuts, Roles, SplitProblemBuilder
from fleetune.planning.strategy import Problem, free_bytes, participants, unprofiled_reason
from fleetune.solving.limits import Deadline
from fleetune.solving.split.bounds import quick_bound
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.problem import Problem as SplitProblem
from fleetune.solving.split.problem import Solution
from fleetune.solving.split.solve import solve

MAX_PLANS = 12
"""Maximum number of plans before giving up on memory for averages."""
MAX_CANDIDATES = 8
"""Maximum number of candidate positions for each of the two cuts, evenly spread over the model."""


@record
class Options:
    """Options of `split-learning`."""

    method: str = "auto"
    """Method of kind "split" (`fleetune solve --list`), except `admm`, which preempts tasks."""
    helpers: tuple[str, ...] = ()
    """Names of the helpers; empty: the fastest quarter of the devices, at least one, which others might do better
    than."""
    clients: tuple[str, ...] = ()
    """Names of the devices whose data is trained on; empty: those of data.local, else all that are no helpers."""
    devices: tuple[str, ...] = ()
    """Names of the devices that may be used; empty: the whole fleet."""
    cuts: tuple[str, str] | None = None
    """Names of the last unit of part 1 and of part 2; None: searched."""
    average_every_rounds: int = 10
    """Rounds after which the clients' models are averaged, weighted by their samples (FedAvg)."""
    least_micro_batches: int | None = None
    """Slow clients run fewer micro-batches a round, in proportion to their speed, but at least this many; they then own
    fewer samples. None: all run the same number."""
    local_rounds: dict[str, int] = field(default_factory=dict)
    """Client -> steps that it takes between two averages, one a round; then it rests until the next one. Clients that
    are left out take one in every round. For clients with fewer data than others, so that all go through theirs alike
    often, as FedAvg defines it."""
    time_limit_s: float | None = None
    """Seconds that the search may take, with plans that may differ between runs; None: a fixed amount of work."""

    def __post_init__(self) -> None:
        positive("split-learning", average_every_rounds=self.average_every_rounds)
        distinct("split-learning", "device", (*self.helpers, *self.clients))
        if self.least_micro_batches is not None:
            positive("split-learning", least_micro_batches=self.least_micro_batches)
        for client, rounds in self.local_rounds.items():
            if not 0 < rounds <= self.average_every_rounds:
                raise Refused(
                    f"split-learning: local_rounds of {client} is {rounds}; give 1 to {self.average_every_rounds}, the "
                    "rounds between averages (average_every_rounds)"
                )
        if self.time_limit_s is not None:
            positive("split-learning", time_limit_s=self.time_limit_s)
        if self.method == "admm":
            raise Refused("split-learning: method admm preempts tasks, which no runtime supports; choose another")


class SplitLearning:
    """Plans a lane per client through its helper."""

    name = "split-learning"
    options: ClassVar[type] = Options
    methods: ClassVar[dict[str, str]] = {"method": "split"}
    summary = "every client trains on its own data; helpers run the middle of the model, scheduled for the makespan"
    citation = papers.SPLIT_LEARNING

    def unsupported_reason(self, problem: Problem) -> str:
        """Names a lack of devices, of cuts or of measured times."""
        if len(problem.fleet.devices) < 2:
            return "it needs a helper and at least one client; the fleet has one device"
        if len(cut_places(problem.profile.units)) < 4:
            return "the model cannot be cut in three parts; profile it in finer units (model.granularity)"
        return unprofiled_reason(problem)

    def plan(self, problem: Problem) -> PlanResult:
        """A lane per client and an explicit order of actions per device."""
        options = json_io.load(Options, problem.options, "strategy split-learning")
        clock = Clock(problem.fleet, problem.profile)
        roles = _roles(problem, options, clock)
        builder = SplitProblemBuilder(problem, clock, roles, options.least_micro_batches)
        cuts = cuts_at(problem, options.cuts) if options.cuts else _best_cuts(problem, builder, options)
        plan = _resting(_within_memory(builder, cuts, options), options.local_rounds)
        bound_s = _bound_of_roles_s(builder, cuts, options) if options.helpers else None  # else others might do better
        result = plan_result(plan, problem, clock, self.citation, bound_s=bound_s)
        return replace(result, method=options.method)

    def revise(self, problem: Problem, plan: Plan, lost: Collection[str]) -> PlanResult:
        """Without a lost client its lane ends; a lost helper's clients go to the other helpers, which are scheduled
        anew. Cuts and micro-batches stay. Where no helper is left, or the others lack memory for all of them, every
        client runs the whole model.
        """
        options = json_io.load(Options, problem.options, "strategy split-learning")
        clock = Clock(problem.fleet, problem.profile)
        lanes = {lane.segments[0].devices[0]: lane for lane in plan.lanes}
        many = {client: plan.micro_batches_of(lane) for client, lane in lanes.items() if client not in lost}
        if not many:
            raise Infeasible(f"split-learning: all clients were lost ({', '.join(lanes)}); start one of them again")
        helpers = [lane.segments[1].devices[0] for lane in plan.lanes if len(lane.segments) > 1]
        roles = Roles(tuple(many), tuple(name for name in dict.fromkeys(helpers) if name not in lost))
        if roles.helpers:
            builder = SplitProblemBuilder(problem, clock, roles)
            builder.micro_batches = many
            first, second, _ = (len(segment.units) for segment in next(iter(lanes.values())).segments)
            made = _helped_or_whole(builder, Cuts(first, first + second), options, [lanes[client] for client in many])
        else:
            made = _plan_of_lanes(problem, tuple(_whole(problem, lanes[client]) for client in many), ())
        rounds = _rounds_left([lanes[client] for client in many], plan.average_every_rounds)
        made = _resting(replace(made, average_every_rounds=plan.average_every_rounds), rounds)
        return plan_result(made, problem, clock, self.citation, bound_s=0.0)


def _helped_or_whole(builder: SplitProblemBuilder, cuts: Cuts, options: Options, lanes: Sequence[Lane]) -> Plan:
    """The plan of the helpers that are left; or of clients without help, where these have the memory and those not."""
    try:
        return _within_memory(builder, cuts, options)
    except Infeasible:
        whole = _plan_of_lanes(builder.problem, tuple(_whole(builder.problem, lane) for lane in lanes), ())
        whole = replace(whole, average_every_rounds=options.average_every_rounds)
        if any(_missing_bytes(builder, whole, name) > 0 for name in whole.devices):
            raise
        return whole


def _resting(plan: Plan, rounds: Mapping[str, int]) -> Plan:
    """The plan in which clients take that many steps between averages; with 0, or without a number, one in every round.

    Refused: an unknown client, and rounds in which none takes a step.
    """
    known = [lane.name for lane in plan.lanes]
    for client in rounds:
        if client not in known:
            raise Refused(f"split-learning: local_rounds names {client}, which is no client; known: {', '.join(known)}")
    every = plan.average_every_rounds
    lanes = (replace(lane, rounds=rounds.get(lane.name, 0) % every) for lane in plan.lanes)
    return replace(plan, lanes=tuple(lanes))


def _rounds_left(lanes: Collection[Lane], every: int) -> dict[str, int]:
    """Client -> steps between averages of the clients that are left, in the proportions of before: the busiest of them
    takes one in every round."""
    steps = {lane.name: lane.rounds or every for lane in lanes}
    busiest = max(steps.values())
    return {name: max(1, round(each * every / busiest)) for name, each in steps.items()}


def _whole(problem: Problem, lane: Lane) -> Lane:
    """The lane of a client that runs all units itself."""
    client = lane.segments[0].shares[0]
    whole = segment(problem.profile.units, [(client.device, client.samples)], warmup=1)
    return replace(lane, segments=(whole,), rounds=0)


def _roles(problem: Problem, options: Options, clock: Clock) -> Roles:
    wanted = options.clients or tuple(name for name in problem.owners if name not in options.helpers)
    named = (*options.helpers, *wanted)
    asked = participants(problem, options.devices or (named if options.helpers and wanted else ()))
    needed = {*named, *problem.owners, *options.devices}
    roomy = tuple(name for name in asked if name in needed or free_bytes(problem, name) >= 0)
    names = roomy if len(roomy) > 1 else asked  # which of them lacks memory is told later
    for name in named:
        problem.fleet.device(name)
        if name not in names:
            raise Refused(f"split-learning: {name} is not among the devices {', '.join(names)}; name it there too")

    def whole_s(name: str) -> float:
        return sum(map(sum, clock.unit_times(name, problem.micro_batch_samples)))

    free = sorted((name for name in names if name not in (*named, *problem.owners)), key=whole_s)
    helpers = options.helpers or tuple(free[: max(1, len(names) // 4)])
    clients = wanted or tuple(name for name in names if name not in helpers)
    if not helpers or not clients:
        raise Refused("split-learning: no device is left to be helper or client; name fewer of the other")
    return Roles(clients, helpers)


def _best_cuts(problem: Problem, builder: SplitProblemBuilder, options: Options) -> Cuts:
    """The pair of cuts with the shortest greedy schedule. Infeasible: every pair exceeds some memory."""
    greedy = replace(options, method="balanced-greedy")
    found: list[tuple[float, Cuts]] = []
    reason = "no pair of cuts leaves every client and helper enough memory"
    for cuts in _candidate_cuts(problem):
        slot_s = builder.slot_s(cuts)
        try:
            _check_client_memory(builder, cuts)
            found.append((solve(builder.to_problem(cuts, slot_s), method=greedy.method).objective * slot_s, cuts))
        except Infeasible as error:
            reason = f"{error} ({_roles_in_words(builder.roles)})"
    for _, cuts in sorted(found, key=lambda each: each[0]):
        try:
            _within_memory(builder, cuts, greedy)
        except Infeasible as error:
            reason = str(error)
        else:
            return cuts
    raise Infeasible(f"split-learning: with the last pair of cuts that was tried, {reason}")


def _within_memory(builder: SplitProblemBuilder, cuts: Cuts, options: Options) -> Plan:
    """The plan of the requested method, in which every device also has memory for the averages.

    What an average takes of a helper depends on the plan, so the first plan reserves nothing. As long as a helper lacks
    memory, it must take less than its clients' parts take now, and the problem is solved again.
    """
    _check_client_memory(builder, cuts)
    instance = builder.to_problem(cuts, builder.slot_s(cuts))
    short: Infeasible | None = None
    deadline = Deadline(options.time_limit_s)
    for _ in range(MAX_PLANS):
        try:
            limit_s = deadline.rest_s
            found = solve(instance, method=options.method, time_limit_s=limit_s, seed=builder.problem.seed)
        except TryAgain:
            if short is None:
                raise
            raise short from None
        except Infeasible as error:
            raise short or Infeasible(f"{error} ({_roles_in_words(builder.roles)})") from None
        plan = replace(_plan(builder, cuts, found), average_every_rounds=options.average_every_rounds)
        lacks = {name: missing for name in plan.devices if (missing := _missing_bytes(builder, plan, name)) > 0}
        if not lacks:
            return plan
        name = max(lacks, key=lacks.__getitem__)
        helps = name in builder.roles.helpers
        less = "name more helpers or cuts nearer to each other" if helps else "cuts farther from each other"
        short = short or Infeasible(
            f"{name} lacks {exact_size(lacks[name])} for its parts of the model and for averages of them; give it more "
            f"memory, {less} (strategy.options.{'helpers, ' if helps else ''}cuts)"
        )
        if not lacks.keys() <= set(builder.roles.helpers):
            break
        instance = replace(instance, helper_memory=tuple(_less(builder, instance, found, lacks)))
    assert short is not None, "only a shortage leaves the loop"
    raise short


def _less(
    builder: SplitProblemBuilder, instance: SplitProblem, found: Solution, lacks: Collection[str]
) -> Iterator[float]:
    """Yield the memory of each helper; for those that lack some, a byte less than their clients' parts take."""
    for number, (name, memory) in enumerate(zip(builder.roles.helpers, instance.helper_memory, strict=True)):
        taken = sum(size for size, helper in zip(instance.client_memory, found.helper, strict=True) if helper == number)
        yield max(0.0, taken - 1) if name in lacks else memory


def _missing_bytes(builder: SplitProblemBuilder, plan: Plan, device: str) -> int:
    """Bytes that a device lacks for a plan; at most 0 where it has enough."""
    return builder.clock.memory_bytes(plan, device) - builder.problem.fleet.device(device).memory_bytes


def _bound_of_roles_s(builder: SplitProblemBuilder, cuts: Cuts, options: Options) -> float:
    """Lower bound of the round for these clients and helpers, less what the clock and the slots round."""
    bound_s = _lower_bound_s(builder, cuts) if options.cuts else _lower_bound_any_cuts_s(builder.problem, builder)
    rounding_s = bound_s * 1e-9 + 1e-8 * builder.problem.micro_batches * (1 + len(builder.roles.clients))
    return max(0.0, bound_s - rounding_s)


def _lower_bound_s(builder: SplitProblemBuilder, cuts: Cuts) -> float:
    """Lower bound of the round for these roles and cuts: by the scheduling problem and by each client's own work."""
    slot_s, own_s = builder.slot_s(cuts), max(builder.own_s(client, cuts) for client in builder.roles.clients)
    bound_instance = Instance.from_problem(builder.to_problem(cuts, slot_s, least=True))
    if not bound_instance.linked.any(axis=0).all():
        return math.inf  # no helper has memory for part 2, so there is no plan
    return max(own_s, quick_bound(bound_instance) * slot_s)


def _lower_bound_any_cuts_s(problem: Problem, builder: SplitProblemBuilder) -> float:
    """Lower bound for all cuts; if there are many pairs, only the smallest possible own work of clients counts."""
    places = cut_places(problem.profile.units)[1:-1]
    pairs = [Cuts(first, second) for first in places for second in places if first < second]
    if len(pairs) <= MAX_CANDIDATES**2:
        return min(_lower_bound_s(builder, cuts) for cuts in pairs)  # at least one pair has a plan
    return max(builder.own_s(client, Cuts(places[0], places[-1])) for client in builder.roles.clients)


def _candidate_cuts(problem: Problem) -> Iterator[Cuts]:
    places = cut_places(problem.profile.units)[1:-1]
    step = max(1, (len(places) - 1) / (MAX_CANDIDATES - 1))
    candidates = sorted(
        {places[round(k * step)] for k in range(MAX_CANDIDATES) if round(k * step) < len(places)} | {places[-1]}
    )
    return (Cuts(first, second) for first in candidates for second in candidates if first < second)


def _check_client_memory(builder: SplitProblemBuilder, cuts: Cuts) -> None:
    """Raises Infeasible if a client lacks memory for its own parts; averages are not counted."""
    lanes = tuple(_lane(builder, client, builder.roles.helpers[0], cuts) for client in builder.roles.clients)
    plan = _plan_of_lanes(builder.problem, lanes, ())
    for client in builder.roles.clients:
        missing = _missing_bytes(builder, plan, client)
        if missing > 0:
            raise Infeasible(
                f"client {client} lacks {exact_size(missing)} for its first and last part; give it more memory, or "
                "cuts farther from each other (strategy.options.cuts), or name the clients without it"
            )


def _plan(builder: SplitProblemBuilder, cuts: Cuts, found: Solution) -> Plan:
    problem, roles, many = builder.problem, builder.roles, builder.micro_batches
    lanes = tuple(
        _lane(builder, client, roles.helpers[found.helper[number]], cuts) for number, client in enumerate(roles.clients)
    )
    orders = [DeviceOrder(device=name, actions=tuple(_client_actions(name, many[name]))) for name in roles.clients]
    for helper, tasks in zip(roles.helpers, found.order, strict=True):
        actions = [
            _action(roles.clients[client], 1, FORWARD if way == "forward" else BACKWARD, m)
            for client, way in tasks
            for m in range(many[roles.clients[client]])
        ]
        if actions:
            orders.append(DeviceOrder(device=helper, actions=tuple(actions)))
    return _plan_of_lanes(problem, lanes, tuple(orders))


def _lane(builder: SplitProblemBuilder, client: str, helper: str, cuts: Cuts) -> Lane:
    """The lane of a client through its helper; all forwards of parts 1 and 2 precede their backwards."""
    units, samples, many = builder.problem.profile.units, builder.samples, builder.micro_batches[client]
    parts: Sequence[tuple[slice, str, int]] = (
        (slice(0, cuts.first), client, many),
        (slice(cuts.first, cuts.second), helper, many),
        (slice(cuts.second, None), client, 1),
    )
    return Lane(
        name=client,
        segments=tuple(segment(units[part], [(device, samples)], kept) for part, device, kept in parts),
        micro_batches=0 if many == builder.problem.micro_batches else many,
    )


def _client_actions(client: str, micro_batches: int) -> Iterator[str]:
    """Actions of a client: part 1 forward, then part 3 forward and backward by micro-batch, then part 1 backward."""
    steps = [
        [(0, FORWARD, m) for m in range(micro_batches)],
        [(2, letter, m) for m in range(micro_batches) for letter in (FORWARD, BACKWARD)],
        [(0, BACKWARD, m) for m in range(micro_batches)],
    ]
    return (_action(client, *step) for part in steps for step in part)


def _action(lane: str, index: int, letter: str, micro_batch: int) -> str:
    return str(Action(lane=lane, segment=index, letter=letter, micro_batch=micro_batch))


def _plan_of_lanes(problem: Problem, lanes: tuple[Lane, ...], order: tuple[DeviceOrder, ...]) -> Plan:
    return Plan(
        strategy=SplitLearning.name,
        micro_batch_samples=problem.micro_batch_samples,
        micro_batches=problem.micro_batches,
        lanes=lanes,
        order=order,
        averager=_averager(lanes) if problem.owners else "",
    )


def _roles_in_words(roles: Roles) -> str:
    helpers = ", ".join(f"{number} {name}" for number, name in enumerate(roles.helpers))
    clients = ", ".join(f"{number} {name}" for number, name in enumerate(roles.clients))
    return f"helpers are {helpers}; clients are {clients}"


def _averager(lanes: Sequence[Lane]) -> str:
    """The helper with most units of the clients; empty where they run all units themselves. With local data no client
    may be sent what another one trains.
    """
    units: dict[str, int] = {}
    for lane in lanes:
        for each in lane.segments[1:2]:
            units[each.devices[0]] = units.get(each.devices[0], 0) + len(each.units)
    return max(units, key=units.__getitem__, default="")
