"""A pipeline in numbers only, and the flat tables the simulation runs on.

A stage here is a paper's pipeline stage (our segment): members share every micro-batch by samples, a cut lies between
neighbouring stages. Devices are rows of the link matrices.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fleetune.clock.times import nanoseconds
from fleetune.contracts.record import not_negative, positive, record
from fleetune.errors import Refused

Order = tuple[tuple[str, int], ...]
"""What a member does: ("F" or "B", micro-batch), in order."""


@record
class Member:
    """A device of a stage."""

    device: int
    """Row and column of the link matrices."""
    samples: int
    """Of every micro-batch."""
    forward_ns: int
    backward_ns: int
    order: Order | None = None
    """Neutral: None, one-forward-one-backward with the stage's warm-up."""

    def __post_init__(self) -> None:
        not_negative("member", device=self.device, forward_ns=self.forward_ns, backward_ns=self.backward_ns)
        positive("member", samples=self.samples)


@record
class Stage:
    """Devices that run the same layers on different samples."""

    members: tuple[Member, ...]
    """In the order in which the samples of a micro-batch are dealt."""
    warmup: int
    """Forwards before the first backward; more than micro_batches counts as all."""
    trainable_bytes: int
    """What the ring all-reduce sums when there are several members."""
    output_bytes: int = 0
    """Per sample, to the next stage; the last stage sends nothing."""
    gradient_bytes: int = 0
    """Per sample, back across the same cut."""

    def __post_init__(self) -> None:
        positive("stage", members=len(self.members), warmup=self.warmup)
        not_negative(
            "stage",
            trainable_bytes=self.trainable_bytes,
            output_bytes=self.output_bytes,
            gradient_bytes=self.gradient_bytes,
        )


@record
class Pipeline:
    """All that decides how long a round takes."""

    stages: tuple[Stage, ...]
    micro_batches: int
    bandwidth_bytes_per_s: tuple[tuple[float, ...], ...]
    """[from][to]; the diagonal is not read."""
    latency_s: tuple[tuple[float, ...], ...]
    """[from][to]"""

    def __post_init__(self) -> None:
        positive("pipeline", stages=len(self.stages), micro_batches=self.micro_batches)
        if len({sum(m.samples for m in stage.members) for stage in self.stages}) != 1:
            raise Refused("pipeline: every stage must deal the same number of samples")
        devices = [member.device for stage in self.stages for member in stage.members]
        if len(set(devices)) != len(devices):
            raise Refused("pipeline: a device may be a member once")


class Route(NamedTuple):
    """What one member sends to one member of a neighbouring stage, for every micro-batch."""

    sender: int
    receiver: int
    letter: str
    rank: tuple[int, int, int]
    """Lower of the two stages joined, sender's place, receiver's place: breaks ties between waiting transfers."""
    bytes: int
    duration_ns: int
    """How long it holds the sender's egress and the receiver's ingress."""
    latency_ns: int
    """From then until it has arrived."""


class Tables(NamedTuple):
    """A pipeline flattened: members are numbered through all stages."""

    seats: list[tuple[int, int]]
    """Of every member: stage, place in the stage."""
    orders: list[Order]
    durations: list[dict[str, int]]
    """Of every member: ns of its F and of its B."""
    routes: list[Route]
    sends: dict[tuple[int, str], list[int]]
    """(member, letter of the task that ended) -> routes that have something to send"""
    awaits: dict[tuple[int, str], int]
    """(member, letter) -> arrivals a task waits for, per micro-batch"""
    reduce_ns: list[int]
    """Of every stage; 0 where one device runs it."""


def one_forward_one_backward(warmup: int, micro_batches: int) -> Order:
    """min(K, M) forwards, then backward 0, forward K, backward 1, ..."""
    warm = min(warmup, micro_batches)
    order = [("F", m) for m in range(warm)]
    for m in range(micro_batches):
        order.append(("B", m))
        if warm + m < micro_batches:
            order.append(("F", warm + m))
    return tuple(order)


def tables(pipeline: Pipeline) -> Tables:
    """Flatten once, so that the event loop only reads lists."""
    seats, orders, durations = [], [], []
    for p, stage in enumerate(pipeline.stages):
        usual = one_forward_one_backward(stage.warmup, pipeline.micro_batches)
        for place, member in enumerate(stage.members):
            seats.append((p, place))
            orders.append(usual if member.order is None else member.order)
            durations.append({"F": member.forward_ns, "B": member.backward_ns})
    routes = _routes(pipeline)
    sends: dict[tuple[int, str], list[int]] = {}
    awaits: dict[tuple[int, str], int] = {}
    for index, route in enumerate(routes):
        sends.setdefault((route.sender, route.letter), []).append(index)
        key = (route.receiver, route.letter)
        awaits[key] = awaits.get(key, 0) + 1
    reduce_ns = [reduce_duration_ns(pipeline, stage) for stage in pipeline.stages]
    return Tables(seats, orders, durations, routes, sends, awaits, reduce_ns)


def spans(samples: Sequence[int]) -> list[tuple[int, int]]:
    """[first, end) of each member's samples."""
    result, first = [], 0
    for count in samples:
        result.append((first, first + count))
        first += count
    return result


def _routes(pipeline: Pipeline) -> list[Route]:
    """Both directions of every cut, wherever the samples of two members overlap (even if that makes 0 bytes)."""
    routes: list[Route] = []
    base = 0
    for p, (low, high) in enumerate(zip(pipeline.stages, pipeline.stages[1:], strict=False)):
        after = base + len(low.members)
        low_spans = spans([m.samples for m in low.members])
        high_spans = spans([m.samples for m in high.members])
        for i, (a, (x0, x1)) in enumerate(zip(low.members, low_spans, strict=True)):
            for j, (b, (y0, y1)) in enumerate(zip(high.members, high_spans, strict=True)):
                overlap = min(x1, y1) - max(x0, y0)
                if overlap > 0:
                    there, back = overlap * low.output_bytes, overlap * low.gradient_bytes
                    routes.append(_route(pipeline, (base + i, after + j, "F", (p, i, j)), (a, b), there))
                    routes.append(_route(pipeline, (after + j, base + i, "B", (p, j, i)), (b, a), back))
        base = after
    return routes


def _route(
    pipeline: Pipeline, ends: tuple[int, int, str, tuple[int, int, int]], devices: tuple[Member, Member], size: int
) -> Route:
    source, target = devices[0].device, devices[1].device
    duration_ns = nanoseconds(size / pipeline.bandwidth_bytes_per_s[source][target])
    return Route(*ends, size, duration_ns, nanoseconds(pipeline.latency_s[source][target]))


def reduce_duration_ns(pipeline: Pipeline, stage: Stage) -> int:
    """Ring all-reduce: 2(|G|-1) · (largest latency + w / (|G| · smallest bandwidth)), over all ordered pairs."""
    devices = [member.device for member in stage.members]
    count = len(devices)
    if count == 1:
        return 0
    pairs = [(a, b) for a in devices for b in devices if a != b]
    latency_s = max(pipeline.latency_s[a][b] for a, b in pairs)
    bandwidth = min(pipeline.bandwidth_bytes_per_s[a][b] for a, b in pairs)
    return nanoseconds(2 * (count - 1) * (latency_s + stage.trainable_bytes / (count * bandwidth)))
