"""A plan: what every device does in one round, and in which order.

One language for every strategy. A field that only some strategies decide has a neutral value, and a plan with neutral
values behaves as if the field did not exist. Actions are spelled `LANE/SEGMENT LETTER MICRO_BATCH`: `main/2F0` is lane
main, segment 2, forward of micro-batch 0. Letters: F forward, B backward, R all-reduce of the round's gradients within
a group, U update (gradients to the collector, new parameters back), A average (parameters of all lanes). U and A have
micro-batch 0 and are never in an explicit order. The spelling follows the schedules of torch.distributed.pipelining.
"""

import re
from dataclasses import field
from typing import Annotated, Any

from pydantic import Field

from fleetune.contracts.link_codecs import CODECS, DENSE, FORWARD_MASK, SPARSE, TOP_K
from fleetune.contracts.record import check_link_ends, check_name, distinct, not_negative, one_of, positive, record
from fleetune.contracts.training_request import NEVER
from fleetune.errors import Refused

FORWARD, BACKWARD, REDUCE, UPDATE, AVERAGE = "F", "B", "R", "U", "A"
SPELLING = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)/(\d+)([FBRUA])(\d+)")


@record
class Action:
    """One step of one device: a forward, backward, all-reduce or update; `str()` spells it as `main/2F0`."""

    lane: str
    segment: int
    letter: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.lane}/{self.segment}{self.letter}{self.micro_batch}"


def parse_action(spelling: str) -> Action:
    """Parse a spelling such as `main/2F0`. Refused: any other text; the error gives an example."""
    found = SPELLING.fullmatch(spelling)
    if not found:
        raise Refused(
            f"action {spelling!r}: write LANE/SEGMENT LETTER MICRO-BATCH such as main/2F0, letters F, B, R, U, A"
        )
    lane, segment, letter, micro_batch = found.groups()
    return Action(lane=lane, segment=int(segment), letter=letter, micro_batch=int(micro_batch))


FULL, FORWARD_ONLY, SKIP = "123"
"""Operations of a gate, numbered as in D2FT's tables."""


def _neutral(value: Any) -> bool:
    """Return True for a field's neutral value, which is left out of the JSON form."""
    return not value


@record
class Share:
    """Samples of every micro-batch that one device of a group processes."""

    device: str
    samples: int

    def __post_init__(self) -> None:
        check_name("share", self.device)
        positive(f"share of {self.device}", samples=self.samples)


@record
class Segment:
    """Units that a group of devices runs; the samples of a micro-batch are dealt in the order of the shares."""

    units: tuple[str, ...]
    shares: tuple[Share, ...]
    warmup: int
    """Forwards before the first backward (K_p in Asteroid); capped at micro_batches."""
    trains: Annotated[tuple[str, ...], Field(exclude_if=_neutral)] = ()
    """Units whose trainable parameters are trained here; backward passes end at the first one. Neutral: empty, all."""
    recompute: Annotated[bool, Field(exclude_if=_neutral)] = False
    """True: of the activations inside a block of the model only its inputs are kept, and the backward computes the
    others again (Chen et al., arXiv:1604.06174). Neutral: False, all are kept."""

    def __post_init__(self) -> None:
        if not self.units or not self.shares:
            raise Refused("segment: it needs at least one unit and one device")
        distinct(f"segment {self.units[0]}", "trained unit", self.trains)
        for name in self.trains:
            if name not in self.units:
                raise Refused(f"segment {self.units[0]}: it trains unit {name!r}, which it does not run")
        distinct("segment", "device", (share.device for share in self.shares))
        positive(f"segment {self.units[0]}", warmup=self.warmup)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the group's devices, in the order in which samples are dealt."""
        return tuple(share.device for share in self.shares)

    @property
    def trained(self) -> tuple[str, ...]:
        """Units whose trainable parameters are trained here, in model order."""
        return tuple(name for name in self.units if not self.trains or name in self.trains)

    def span(self, device: str) -> tuple[int, int]:
        """Half-open range [first, end) of the samples of each micro-batch that `device` processes."""
        first = 0
        for share in self.shares:
            if share.device == device:
                return first, first + share.samples
            first += share.samples
        raise Refused(f"segment {self.units[0]}: {device!r} is not of its group ({', '.join(self.devices)})")


@record
class Lane:
    """One stream of micro-batches through a chain of segments."""

    name: str
    segments: tuple[Segment, ...]
    micro_batches: Annotated[int, Field(exclude_if=_neutral)] = 0
    """Micro-batches of this lane in a round, at most the plan's: a slow client does fewer. Neutral: 0, the plan's."""
    rounds: Annotated[int, Field(exclude_if=_neutral)] = 0
    """Rounds after each average in which this lane takes a step; in the others it rests (FedAvg of clients with
    unequal numbers of steps). Neutral: 0, all."""

    def __post_init__(self) -> None:
        check_name("lane", self.name)
        not_negative(f"lane {self.name}", micro_batches=self.micro_batches, rounds=self.rounds)
        if not self.segments:
            raise Refused(f"lane {self.name}: it needs at least one segment")
        for index, (before, after) in enumerate(zip(self.segments, self.segments[1:], strict=False)):
            both = set(before.devices) & set(after.devices)
            if both:
                raise Refused(
                    f"lane {self.name}: device {min(both)!r} is used twice, in segments {index} and {index + 1}; a "
                    "device may come back later, but not in the next segment"
                )
        distinct(f"lane {self.name}", "unit", (u for segment in self.segments for u in segment.units))


@record
class DeviceOrder:
    """The actions of one device, in order, spelled as `Action` spells them."""

    device: str
    actions: tuple[str, ...]

    def __post_init__(self) -> None:
        for spelling in self.actions:
            parse_action(spelling)


@record
class Backup:
    """A device holds what training changes of a segment that another one trains, as of the newest backup."""

    lane: str
    """Empty: of the collector."""
    segment: int
    holder: str


@record
class LinkUse:
    """Compression and bandwidth share of a directed link; links without a LinkUse are dense and unshared."""

    source: str
    target: str
    codec: str = DENSE
    """Codec of tensors that cross cuts, from CODECS; a collector's parameters and gradients stay dense."""
    ratio: float = 1.0
    """Compression ratio of a codec that leaves elements out: one of every `ratio` elements is sent."""
    share: float = 1.0
    """Share of a medium, in (0, 1]: the link runs at this part of its rate and waits for no other link."""
    feedback: Annotated[bool, Field(exclude_if=_neutral)] = False
    """Error feedback: what a message loses is added to the sender's next one of the same lane, segment, direction and
    micro-batch, in the next round."""

    def __post_init__(self) -> None:
        owner = f"link {self.source}>{self.target}"
        check_name(owner, self.source)
        check_name(owner, self.target)
        check_link_ends(owner, self.source, self.target)
        one_of(owner, "codec", self.codec, CODECS)
        positive(owner, ratio=self.ratio, share=self.share)
        if self.ratio < 1 or self.share > 1:
            raise Refused(f"{owner}: ratio must be at least 1 and share at most 1 (got {self.ratio}, {self.share})")
        if self.ratio > 1 and self.codec not in SPARSE:
            raise Refused(f"{owner}: ratio {self.ratio} needs a codec that leaves elements out, not {self.codec}")
        if self.feedback and self.codec == DENSE:
            raise Refused(f"{owner}: feedback needs a codec that loses something; give one, or leave feedback out")

    @property
    def is_neutral(self) -> bool:
        """True for a link at its full rate whose codec sends every element as it is."""
        return self.share == 1.0 and (self.codec == DENSE or self.codec in SPARSE and self.ratio == 1.0)

    def codec_of(self, letter: str) -> str:
        """Return the codec of forward (F) or backward (B) messages: a forward has no mask yet, so top-k makes one."""
        return TOP_K if self.codec == FORWARD_MASK and letter == FORWARD else self.codec


@record
class Gate:
    """Operation of a subnet (a head of a block) for every micro-batch of a round."""

    subnet: str
    operations: str
    """One digit per micro-batch: 1 full, 2 forward-only, 3 skip (D2FT §2)."""

    def __post_init__(self) -> None:
        if not self.operations or set(self.operations) - {FULL, FORWARD_ONLY, SKIP}:
            raise Refused(f"gate of {self.subnet}: {self.operations!r}; give a digit 1, 2 or 3 per micro-batch")

    @property
    def is_neutral(self) -> bool:
        """True if the subnet runs in full in every micro-batch."""
        return set(self.operations) == {FULL}


@record
class Plan:
    """The `plan` artifact's core. Relations to fleet and profile are checked in `fleetune.checks`."""

    strategy: str
    micro_batch_samples: int
    micro_batches: int
    lanes: tuple[Lane, ...]
    order: tuple[DeviceOrder, ...] = ()
    """Explicit orders. Neutral: empty, each device runs one-forward-one-backward with its segment's warm-up."""
    revision: int = 0
    links: Annotated[tuple[LinkUse, ...], Field(exclude_if=_neutral)] = ()
    """Neutral: empty, every link dense and whole."""
    gates: Annotated[tuple[Gate, ...], Field(exclude_if=_neutral)] = ()
    """Neutral: empty, every subnet full."""
    refresh_gates_every_rounds: Annotated[int, Field(exclude_if=_neutral)] = 0
    """Rounds of which the last runs every subnet in full, and chooses gates by its scores. Neutral: 0, gates stay."""
    collector: Annotated[str, Field(exclude_if=_neutral)] = ""
    """Device that sums the gradients of all lanes, steps the optimizer and hands out the new parameters. Neutral:
    empty, every holder steps its own."""
    average_every_rounds: Annotated[int, Field(exclude_if=_neutral)] = 0
    """Rounds after which the parameters of all lanes are averaged, weighted by their samples (FedAvg); they always are
    after the last round. Neutral: 0, nothing is averaged."""
    averager: Annotated[str, Field(exclude_if=_neutral)] = ""
    """Device that averages. Neutral: empty, the one that trains most units."""
    replan_every_rounds: Annotated[int, Field(exclude_if=_neutral)] = 0
    """Rounds after which training may deal the lanes' trained units anew, from measured times (LoLa-DEFT). Neutral: 0,
    never."""
    backup_every_rounds: Annotated[int, Field(exclude_if=_neutral)] = 0
    """Rounds between two copies of what training changes: each device's snapshot of its own, and `backups` on others.
    Neutral: 0, none."""
    backups: Annotated[tuple[Backup, ...], Field(exclude_if=_neutral)] = ()
    """Of what only one device holds (Asteroid, section 3.4). Neutral: empty, none."""

    def __post_init__(self) -> None:
        self._check_replanning()
        if self.collector:
            check_name("plan: collector", self.collector)
        if self.collector and self.average_every_rounds:
            raise Refused("plan: a collector holds the only parameters, so nothing is to be averaged; leave out one")
        distinct("plan", "link", (f"{use.source}>{use.target}" for use in self.links))
        self._check_masks()
        distinct("plan", "gate of subnet", (gate.subnet for gate in self.gates))
        for gate in self.gates:
            if len(gate.operations) != self.micro_batches:
                raise Refused(
                    f"plan: gate of {gate.subnet} has {len(gate.operations)} operations for {self.micro_batches} "
                    "micro-batches; give one for each"
                )
        positive("plan", micro_batch_samples=self.micro_batch_samples, micro_batches=self.micro_batches)
        every = ("average_every_rounds", "backup_every_rounds", "refresh_gates_every_rounds")
        not_negative("plan", **{name: getattr(self, name) for name in ("revision", *every)})
        alone = self.gates and len(self.lanes) == 1 and not (self.collector or self.order)
        if self.refresh_gates_every_rounds and not alone:
            raise Refused("plan: refresh_gates_every_rounds needs gates, one lane, no collector and no order")
        if self.backups and not self.backup_every_rounds:
            raise Refused("plan: backups need backup_every_rounds; give the rounds between two of them")
        if not self.lanes:
            raise Refused("plan: it needs at least one lane")
        distinct("plan", "lane", (lane.name for lane in self.lanes))
        self._check_rounds()
        for lane in self.lanes:
            if lane.micro_batches > self.micro_batches:
                raise Refused(
                    f"plan: lane {lane.name} has {lane.micro_batches} micro-batches, and a round has at most "
                    f"{self.micro_batches}; raise micro_batches of the plan"
                )
            for index, segment in enumerate(lane.segments):
                total = sum(share.samples for share in segment.shares)
                if total != self.micro_batch_samples:
                    raise Refused(
                        f"plan: segment {lane.name}/{index} deals {total} samples, but a micro-batch has "
                        f"{self.micro_batch_samples}"
                    )

    def _check_replanning(self) -> None:
        """Refuse replanning where something other than the names of trained units would have to move."""
        not_negative("plan", replan_every_rounds=self.replan_every_rounds)
        whole = all(len(lane.segments) == 1 and len(lane.segments[0].devices) == 1 for lane in self.lanes)
        if self.replan_every_rounds and not (
            self.collector and whole and all(lane.segments[0].trains for lane in self.lanes)
        ):
            raise Refused(
                "plan: replan_every_rounds needs a collector, and lanes of one segment on one device that trains some "
                "of its units; leave it out"
            )

    def _check_rounds(self) -> None:
        """Refuse lanes that rest without an average to come, and rounds in which all of them would."""
        every = self.average_every_rounds
        for lane in self.lanes:
            if lane.rounds > every:
                raise Refused(
                    f"plan: lane {lane.name} takes a step in {lane.rounds} rounds after each average, and averages are "
                    f"{every} rounds apart; give 1 to average_every_rounds, or 0 for all rounds"
                )
        if all(0 < lane.rounds < every for lane in self.lanes):
            raise Refused(
                f"plan: no lane takes a step in all {every} rounds between averages; lower average_every_rounds to the "
                f"{max(lane.rounds for lane in self.lanes)} of the busiest lane"
            )

    def _check_masks(self) -> None:
        """Refuse forward-mask where the forward, on the opposite link, is not top-k of the same ratio."""
        uses = {(use.source, use.target): use for use in self.links}
        for (source, target), use in uses.items():
            forward = uses.get((target, source))
            masked = forward is not None and forward.codec in SPARSE and forward.ratio == use.ratio
            if use.codec == FORWARD_MASK and not masked:
                raise Refused(
                    f"plan: link {source}>{target} sends gradients at the elements that {target}>{source} kept, so "
                    f"{target}>{source} needs codec {TOP_K} and ratio {use.ratio} too"
                )

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of all participating devices, ordered by lane, segment and share; a collector without units is last."""
        names = [d for lane in self.lanes for segment in lane.segments for d in segment.devices]
        return tuple(dict.fromkeys([*names, *([self.collector] if self.collector else [])]))

    @property
    def is_chain(self) -> bool:
        """True for one lane of segments on disjoint device groups whose other fields are neutral."""
        names = [d for lane in self.lanes for segment in lane.segments for d in segment.devices]
        trains = any(segment.trains for lane in self.lanes for segment in lane.segments)
        extra = trains or self.links or self.gates or self.collector or self.average_every_rounds
        extra = extra or any(lane.micro_batches for lane in self.lanes)
        return len(self.lanes) == 1 and not extra and len(set(names)) == len(names)

    @property
    def trains_whole_gradients(self) -> bool:
        """True if each round is one step of one model by its whole gradient, as on one device: nothing is left out,
        rounded on a link, or averaged."""
        whole = all(segment.trained == segment.units for lane in self.lanes for segment in lane.segments)
        lossy = any(use.codec != DENSE and not use.is_neutral for use in self.links)
        gated = any(not gate.is_neutral for gate in self.gates)
        return len(self.lanes) == 1 and whole and not (lossy or gated or self.average_every_rounds)

    @property
    def batch_samples(self) -> int:
        """Samples of one round, per lane where lanes have data of their own; a lane of fewer micro-batches has less."""
        return self.micro_batch_samples * self.micro_batches

    def micro_batches_of(self, lane: Lane) -> int:
        """Return the number of micro-batches that a lane runs in a round in which it takes a step."""
        return lane.micro_batches or self.micro_batches

    def refreshes_gates_in(self, round: int) -> bool:
        """Return whether a round (from 0) runs every subnet in full and scores it, for other gates from the next on."""
        return bool(self.refresh_gates_every_rounds) and (round + 1) % self.refresh_gates_every_rounds == 0

    def resting_in(self, round: int) -> tuple[str, ...]:
        """Return the names of the lanes that rest in a round (from 0), until the next average."""
        at = round % (self.average_every_rounds or 1)
        return tuple(lane.name for lane in self.lanes if 0 < lane.rounds <= at)


@record
class PlanResult:
    """A plan with its objective, lower bound and solve time: the file of the `plan` artifact."""

    plan: Plan
    objective: float
    """Seconds of one round, forecast by the event simulation."""
    lower_bound: float | None
    """Seconds that no plan of this strategy, with its options and device roles, can beat; None if unknown."""
    status: str
    """`optimal` if proven, else `feasible`."""
    solve_s: float
    method: str
    citation: str = ""
    options: Annotated[dict[str, Any], Field(exclude_if=lambda value: not value)] = field(default_factory=dict)
    """Of the strategy, for plans that follow this one when devices are lost."""
    recompute: Annotated[str, Field(exclude_if=lambda value: value == NEVER)] = NEVER
    """What the run allows, for the same plans."""

    @property
    def gap(self) -> float | None:
        """Relative distance of the objective from the lower bound; None without a bound."""
        return None if not self.lower_bound else self.objective / self.lower_bound - 1.0


def one_forward_one_backward(lane: str, segment: int, warmup: int, micro_batches: int) -> tuple[Action, ...]:
    """1F1B schedule with K warm-up forwards: min(K, M) forwards, then backward 0, forward K, backward 1, ..."""

    def act(letter: str, micro_batch: int) -> Action:
        return Action(lane=lane, segment=segment, letter=letter, micro_batch=micro_batch)

    warm = min(warmup, micro_batches)
    actions = [act(FORWARD, m) for m in range(warm)]
    for m in range(micro_batches):
        actions.append(act(BACKWARD, m))
        if warm + m < micro_batches:
            actions.append(act(FORWARD, warm + m))
    return tuple(actions)


def actions_of(plan: Plan, device: str) -> tuple[Action, ...]:
    """Actions of a device in one round: the plan's explicit order, or 1F1B for one lane after the other."""
    for order in plan.order:
        if order.device == device:
            return tuple(parse_action(spelling) for spelling in order.actions)
    mine: list[Action] = []
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            if device in segment.devices:
                mine += one_forward_one_backward(lane.name, index, segment.warmup, plan.micro_batches_of(lane))
    return tuple(mine)
