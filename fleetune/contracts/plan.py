"""A plan: what every device does, in which order. Data that reads aloud, prints, parses back and draws.

One language for every strategy. Fields that only some strategies decide have a neutral value, and a plan with
neutral values behaves as if the field did not exist.
"""

from typing import Annotated, Any

from pydantic import Field

from fleetune.contracts.action import BACKWARD, FORWARD, Action, parse_action
from fleetune.contracts.codecs import CODECS, DENSE
from fleetune.contracts.record import a_name, distinct, not_negative, one_of, positive, record
from fleetune.errors import Refused

FULL, FORWARD_ONLY, SKIP = "123"
"""Operations of a gate, as D2FT's tables number them."""


def _neutral(value: Any) -> bool:
    """Whether a field says nothing: then it is not written, and older plans read as they were."""
    return not value


@record
class Share:
    """How many samples of every micro-batch a device of a group takes."""

    device: str
    samples: int

    def __post_init__(self) -> None:
        a_name("share", self.device)
        positive(f"share of {self.device}", samples=self.samples)


@record
class Segment:
    """Units that a group of devices runs; samples keep their position, in the order of the shares."""

    units: tuple[str, ...]
    shares: tuple[Share, ...]
    warmup: int
    """Forwards before the first backward (K_p of Asteroid); more than micro_batches counts as all."""
    trains: Annotated[tuple[str, ...], Field(exclude_if=_neutral)] = ()
    """Units whose trainable parameters are trained here; backwards end at the first of them. Neutral: empty, all."""

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
        """Names of the group, in the order in which samples are dealt."""
        return tuple(share.device for share in self.shares)

    @property
    def trained(self) -> tuple[str, ...]:
        """Units whose trainable parameters are trained here, in their order."""
        return tuple(name for name in self.units if not self.trains or name in self.trains)

    def span(self, device: str) -> tuple[int, int]:
        """[first, end) of the samples of each micro-batch that the device takes."""
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

    def __post_init__(self) -> None:
        a_name("lane", self.name)
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
    """The actions of one device, in order; spelled as in action.py."""

    device: str
    actions: tuple[str, ...]

    def __post_init__(self) -> None:
        for spelling in self.actions:
            parse_action(spelling)


@record
class LinkUse:
    """How a directed link is used, where not as it is."""

    source: str
    target: str
    codec: str = DENSE
    """What crosses cuts is sent as (`contracts.codecs`); parameters and gradients of a collector stay dense."""
    ratio: float = 1.0
    """Of a sparsifying codec: one of so many elements is sent."""
    share: float = 1.0
    """Of the medium that it shares with others: it runs at this part of its rate, and waits for no other link."""

    def __post_init__(self) -> None:
        owner = f"link {self.source}>{self.target}"
        a_name(owner, self.source)
        a_name(owner, self.target)
        if self.source == self.target:
            raise Refused(f"{owner}: a link joins two different devices")
        one_of(owner, "codec", self.codec, CODECS)
        positive(owner, ratio=self.ratio, share=self.share)
        if self.ratio < 1 or self.share > 1:
            raise Refused(f"{owner}: ratio must be at least 1 and share at most 1 (got {self.ratio}, {self.share})")
        if self.ratio > 1 and self.codec == DENSE:
            raise Refused(f"{owner}: ratio {self.ratio} needs a codec that leaves elements out, not {self.codec}")

    @property
    def is_neutral(self) -> bool:
        """Whether the link is used as it is."""
        return self.ratio == 1.0 and self.share == 1.0


@record
class Gate:
    """What happens to a subnet (a head of a block) in every micro-batch of a round."""

    subnet: str
    operations: str
    """One digit per micro-batch: 1 full, 2 forward-only, 3 skip (D2FT §2)."""

    def __post_init__(self) -> None:
        if not self.operations or set(self.operations) - {FULL, FORWARD_ONLY, SKIP}:
            raise Refused(f"gate of {self.subnet}: {self.operations!r}; give a digit 1, 2 or 3 per micro-batch")

    @property
    def is_neutral(self) -> bool:
        """Whether the subnet runs in full all the time."""
        return set(self.operations) == {FULL}


@record
class Plan:
    """The `plan` artifact's core. Relations to fleet and profile are checked in `fleetune.checks`."""

    strategy: str
    micro_batch_samples: int
    micro_batches: int
    lanes: tuple[Lane, ...]
    order: tuple[DeviceOrder, ...] = ()
    """Neutral: empty, each device runs one-forward-one-backward with its segment's warm-up."""
    revision: int = 0
    links: Annotated[tuple[LinkUse, ...], Field(exclude_if=_neutral)] = ()
    """Neutral: empty, every link dense and whole."""
    gates: Annotated[tuple[Gate, ...], Field(exclude_if=_neutral)] = ()
    """Neutral: empty, every subnet full."""
    collector: Annotated[str, Field(exclude_if=_neutral)] = ""
    """Device that sums the gradients of all lanes, steps the optimizer and hands out the new parameters. Neutral:
    empty, every holder steps its own."""

    def __post_init__(self) -> None:
        if self.collector:
            a_name("plan: collector", self.collector)
        distinct("plan", "link", (f"{use.source}>{use.target}" for use in self.links))
        distinct("plan", "gate of subnet", (gate.subnet for gate in self.gates))
        for gate in self.gates:
            if len(gate.operations) != self.micro_batches:
                raise Refused(
                    f"plan: gate of {gate.subnet} has {len(gate.operations)} operations for {self.micro_batches} "
                    "micro-batches; give one for each"
                )
        positive("plan", micro_batch_samples=self.micro_batch_samples, micro_batches=self.micro_batches)
        not_negative("plan", revision=self.revision)
        if not self.lanes:
            raise Refused("plan: it needs at least one lane")
        distinct("plan", "lane", (lane.name for lane in self.lanes))
        for lane in self.lanes:
            for index, segment in enumerate(lane.segments):
                total = sum(share.samples for share in segment.shares)
                if total != self.micro_batch_samples:
                    raise Refused(
                        f"plan: segment {lane.name}/{index} deals {total} samples, but a micro-batch has "
                        f"{self.micro_batch_samples}"
                    )

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device that takes part, in the order of lanes, segments and shares; a collector without units last."""
        names = [d for lane in self.lanes for segment in lane.segments for d in segment.devices]
        return tuple(dict.fromkeys([*names, *([self.collector] if self.collector else [])]))

    @property
    def is_chain(self) -> bool:
        """Whether it is one lane of segments, each on devices of its own, and nothing else is decided."""
        names = [d for lane in self.lanes for segment in lane.segments for d in segment.devices]
        trains = any(segment.trains for lane in self.lanes for segment in lane.segments)
        extra = trains or self.links or self.gates or self.collector
        return len(self.lanes) == 1 and not extra and len(set(names)) == len(names)

    @property
    def batch_samples(self) -> int:
        """Samples of one round; where lanes have data of their own, of each."""
        return self.micro_batch_samples * self.micro_batches


@record
class PlanResult:
    """A plan with what its strategy knows about it; the `plan` artifact as a file."""

    plan: Plan
    objective: float
    """Forecast seconds of one round by the clock."""
    lower_bound: float | None
    """No plan of this strategy, with its options and the roles it gave to devices, can be faster than this; None where
    it knows none."""
    status: str
    """`optimal` when proven, else `feasible`."""
    solve_s: float
    method: str
    citation: str = ""

    @property
    def gap(self) -> float | None:
        """How far the plan may be from the best one, relative to the bound."""
        return None if not self.lower_bound else self.objective / self.lower_bound - 1.0


def one_forward_one_backward(lane: str, segment: int, warmup: int, micro_batches: int) -> tuple[Action, ...]:
    """min(K, M) forwards, then backward 0, forward K, backward 1, ... (1F1B with K warm-up forwards)."""

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
    """What a device does in one round: the plan's own order, or 1F1B lane after lane."""
    for order in plan.order:
        if order.device == device:
            return tuple(parse_action(spelling) for spelling in order.actions)
    mine: list[Action] = []
    for lane in plan.lanes:
        for index, segment in enumerate(lane.segments):
            if device in segment.devices:
                mine += one_forward_one_backward(lane.name, index, segment.warmup, plan.micro_batches)
    return tuple(mine)
