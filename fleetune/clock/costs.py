"""Costs of a plan on a device: compute seconds and memory bytes.

Seconds come from interpolation over batch sizes and the work that gates leave (`link_costs` has what messages cost);
bytes from Asteroid's eq. (3).
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fleetune.arrays import Floats, Ints
from fleetune.clock.coding import feedback_bytes, mask_bytes
from fleetune.clock.recompute import activations
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import BACKWARD, FORWARD, FULL, SKIP, Gate, Plan, Segment, parse_action
from fleetune.contracts.profile import GateTimes, Profile, Unit
from fleetune.errors import Refused
from fleetune.formatting import megabytes

FORECAST_MARGIN = 0.05
"""Tolerated relative excess of a memory peak: allocator fragmentation changes it by a few percent between trainings."""
RECEIVED_PER_GRADIENT_BYTE = 1
"""Bytes of messages that a member of a group holds at most, per byte of the gradients that the group sums.

A message of a ring all-reduce of n members is an n-th of the gradients. Nobody waits for a member whose last backward
has not ended, until n - 1 messages for it have arrived beside its activations. Each is then joined from its frames in
memory of its own, which is one n-th more. What is sent is sent from the gradients, and encrypted frame by frame.
"""
MOST_GRADIENTS_ASIDE = 2
"""Copies of gradients that a round that scores heads needs at most: of other micro-batches, and in a group one that a
ring sums."""
HELD_VERSIONS = 2
"""Versions of snapshots and backups that a device holds at most."""
MUCH_OF_BUDGET = 0.5
"""A device that has used less of its budget has room for what any forecast misses."""


def interpolate(batch_sizes: Sequence[int], seconds: Sequence[float], samples: int) -> float:
    """Return seconds for `samples`, from `seconds` measured at the ascending `batch_sizes`.

    Linear between two sizes, extrapolated along the line through the two nearest sizes, proportional if there is only
    one size. Refused: an extrapolation to a negative time.
    """
    place = bisect_left(batch_sizes, samples)
    if place < len(batch_sizes) and batch_sizes[place] == samples:
        return seconds[place]
    if len(batch_sizes) == 1:
        return seconds[0] * samples / batch_sizes[0]
    right = min(max(place, 1), len(batch_sizes) - 1)
    x0, x1 = batch_sizes[right - 1], batch_sizes[right]
    t0, t1 = seconds[right - 1], seconds[right]
    value = t0 + (t1 - t0) * ((samples - x0) / (x1 - x0))
    if value < 0:
        raise Refused(
            f"times: {samples} samples would take {value:.3g} s on the line through batch sizes {x0} and {x1}; "
            "measure a batch size nearer to it"
        )
    return value


def interpolate_table(batch_sizes: Sequence[int], seconds: Floats, samples: Ints) -> Floats:
    """`interpolate` of many rows at once: seconds [..., batch size] at `samples` [k], as [..., k], to the last bit.

    Negative times are not refused.
    """
    sizes = np.array(batch_sizes)
    if len(sizes) == 1:
        times: Floats = seconds * samples / sizes[0]
    else:
        right = np.clip(np.searchsorted(sizes, samples), 1, len(sizes) - 1)
        weight = (samples - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        times = seconds[..., right - 1] + (seconds[..., right] - seconds[..., right - 1]) * weight
    exact = np.isin(samples, sizes)
    times[..., exact] = seconds[..., np.searchsorted(sizes, samples[exact])]
    return times


def interpolate_trainable(profile: Profile, seconds: Floats, samples: Ints) -> Floats:
    """`interpolate_table` of a device's times of all units: seconds [unit, batch size] at `samples` [k], as [unit, k].

    Fewer samples than a unit can be trained on take as long as the fewest. Where such a unit kept the whole model from
    being measured with fewer samples, no other unit's times fall below 0 there: they are proportional then.
    """
    sizes, fewest = profile.batch_sizes, np.array([unit.min_samples for unit in profile.units])
    times = interpolate_table(sizes, seconds, samples)
    for least in np.unique(fewest[fewest > 1]):
        needy = fewest == least
        times[needy] = interpolate_table(sizes, seconds[needy], np.maximum(samples, least))
    if 1 < sizes[0] <= np.max(fewest):
        unmeasured = (times < 0) & (samples < sizes[0])
        times = np.where(unmeasured, seconds[:, :1] * samples / sizes[0], times)
    return times


def nanoseconds(seconds: float) -> int:
    """Round seconds to whole nanoseconds, the unit of the simulation."""
    return round(seconds * 1e9)


RemainingShares = Mapping[str, tuple[tuple[float, float], ...]]
"""Unit -> per micro-batch (share of its forward, share of its backward)."""


def remaining_shares(gates: Iterable[Gate], profile: Profile) -> dict[str, tuple[tuple[float, float], ...]]:
    """Return the shares of the work that gates leave (D2FT §2), for every unit with a gated subnet.

    A skipped subnet runs neither way, a forward-only one only forward; parts of a unit outside all subnets always run.
    Refused: a subnet that the profile does not have.
    """
    subnets = {subnet.name: subnet for subnet in profile.subnets}
    lost: dict[str, list[list[float]]] = {}
    for gate in gates:
        if gate.subnet not in subnets:
            raise Refused(f"plan: gate of {gate.subnet}: the profile has no such subnet; profile with scores")
        for part in subnets[gate.subnet].parts:
            rows = lost.setdefault(part.unit, [[0.0, 0.0] for _ in gate.operations])
            for row, operation in zip(rows, gate.operations, strict=True):
                row[0] += part.share * (operation == SKIP)
                row[1] += part.share * (operation != FULL)
    return {unit: tuple((max(0.0, 1 - f), max(0.0, 1 - b)) for f, b in rows) for unit, rows in lost.items()}


_ROUNDING = 1e-9
"""More than sums of shares are rounded by, and less than any head's share."""


def gated_times(
    left: RemainingShares, profile: Profile, measured: GateTimes | None
) -> dict[str, tuple[tuple[float, float], ...]]:
    """Return the parts of its times that a gated unit takes, per micro-batch: shares of `left`, and what gates cost.

    measured: the device's; None: nothing beyond the shares. Where all heads are full, the unit runs as it is.
    """
    if measured is None:
        return dict(left)
    heads: dict[str, float] = {}
    for part in (part for subnet in profile.subnets for part in subnet.parts):
        heads[part.unit] = heads.get(part.unit, 0.0) + part.share

    def taken(unit: str, forward: float, backward: float) -> tuple[float, float]:
        rest = max(0.0, 1 - heads[unit]) + _ROUNDING
        if min(forward, backward) >= 1 or forward <= rest:
            return forward, backward
        if backward <= rest:  # all that run do so forward only, in one group
            return max(0.0, forward + measured.skipped.forward), backward
        extra = measured.skipped if forward <= backward + _ROUNDING else measured.forward_only
        return max(0.0, forward + extra.forward), max(0.0, backward + extra.backward)

    return {unit: tuple(taken(unit, *row) for row in rows) for unit, rows in left.items()}


def memory_warnings(fleet: Fleet, forecast: Mapping[str, float], peaks: Mapping[str, float]) -> Iterator[str]:
    """Yield a sentence for each device whose peak exceeds its budget, or, where memory is short, its forecast by more
    than FORECAST_MARGIN.

    `forecast` and `peaks` map device names to bytes.
    """
    for device, peak in peaks.items():
        budget, forecast_bytes = fleet.device(device).memory_bytes, forecast.get(device, math.inf)
        beside = "" if math.isinf(forecast_bytes) else f", {megabytes(forecast_bytes)} forecast"
        if peak > budget:
            yield (
                f"device {device} used {megabytes(peak)} of its {megabytes(budget)}{beside}: give it more memory "
                "or lower training.micro_batch_samples"
            )
        elif peak > forecast_bytes * (1 + FORECAST_MARGIN) and peak > budget * MUCH_OF_BUDGET:
            yield (
                f"device {device} used {megabytes(peak)}{beside}: plans that need most of its "
                f"{megabytes(budget)} may not fit"
            )


def device_bytes(plan: Plan, device: str, profile: Profile, passing_bytes: int = 0) -> int:
    """Return the peak bytes of a device, after Asteroid eq. (3).

    The idle runtime, plus for every segment the device runs: weights, buffers, optimizer state, and during a round
    gradients, what a group sends to sum them (`received_bytes`), the activations of the kept micro-batches of its
    share, and the workspace of one unit; where it recomputes them, the inputs of its blocks and the activations of one
    block. `passing_bytes` are those of an average, when gradients and activations are gone; what a collector hands
    out comes before them. With a collector, only the collector holds optimizer state, and groups sum nothing. Frozen
    weights that several segments of the device need are held once. Where the plan has backups, each device holds
    snapshots of what it trains beside them. Error feedback holds what was lost up to the last round and what this one
    loses, which counts once it is committed. Gates and codecs save no memory, because what they leave out differs
    between micro-batches.
    """
    own = [_placed_bytes(plan, device, placed, profile) for placed in segments_on(plan, device)]
    lasting = sum(each.lasting for each in own) - _shared_bytes(plan, device, profile)
    fed = feedback_bytes(plan, device, profile)
    lasting += fed + copied_bytes(plan, device, profile)
    collected = _collected_bytes(plan, profile) if device == plan.collector else 0
    passing_bytes = max(passing_bytes, _pulled_bytes(plan, device, profile))
    in_round = fed + sum(each.in_round for each in own)
    passing = sum(each.activations for each in own)
    passing += max((_workspace_bytes(device, placed, profile) for placed in segments_on(plan, device)), default=0)
    times = profile.times_of(device)
    in_round += round(passing * times.activation_share)
    return times.runtime_bytes + collected + lasting + max(in_round, passing_bytes)


def copied_bytes(plan: Plan, device: str, profile: Profile) -> int:
    """Return the bytes of a device's snapshots, and of the backups that it holds for others; 0 without backups.

    The ones before are held until all devices have the new ones.
    """
    if not plan.backup_every_rounds:
        return 0
    segments = {(lane.name, index): each for lane in plan.lanes for index, each in enumerate(lane.segments)}
    held = [segments[each.lane, each.segment].trained for each in plan.backups if each.holder == device and each.lane]
    if any(each.holder == device and not each.lane for each in plan.backups) or device == plan.collector:
        held.append(tuple(trained_units(plan)))
    if not plan.collector:
        held += [placed.segment.trained for placed in segments_on(plan, device)]
    return HELD_VERSIONS * sum(state_bytes(trained, profile) for trained in held)


def state_bytes(trained: Iterable[str], profile: Profile) -> int:
    """Return the bytes of these units' trained parameters and their optimizer state."""
    return math.ceil(profile.trainable_bytes(trained) * (1 + profile.optimizer_bytes_per_param_byte))


def received_bytes(trained_bytes: int, members: int) -> int:
    """Return the most bytes of messages that a member of a group holds while the group sums its gradients.

    trained_bytes: of the gradients; members: of the group, 1 for a device that sums nothing. benchmarks/memory has what
    groups of two and of three needed.
    """
    return RECEIVED_PER_GRADIENT_BYTE * trained_bytes if members > 1 else 0


class HeldBytes(NamedTuple):
    """Bytes of a segment: between rounds, and what a round adds at its peak, activations aside."""

    lasting: int
    in_round: int
    activations: int


@dataclass(frozen=True, slots=True)
class PlacedSegment:
    """A segment with its place in the plan."""

    lane: str
    index: int
    segment: Segment
    micro_batches: int = 0
    """The lane's; 0 for the plan's."""

    def __str__(self) -> str:
        return f"{self.lane}/{self.index}"


def segments_on(plan: Plan, device: str) -> list[PlacedSegment]:
    """Return the segments that a device runs, in the order of the plan."""
    return [
        PlacedSegment(lane.name, index, segment, lane.micro_batches)
        for lane in plan.lanes
        for index, segment in enumerate(lane.segments)
        if device in segment.devices
    ]


def kept_micro_batches(plan: Plan, device: str, placed: PlacedSegment) -> int:
    """Return the maximum number of micro-batches that a device keeps between forward and backward of one segment.

    min(K, M) in the default 1F1B order; counted from an explicit order otherwise.
    """
    given = next((order.actions for order in plan.order if order.device == device), ())
    kept = most = 0
    for action in map(parse_action, given):
        if (action.lane, action.segment) == (placed.lane, placed.index):
            kept += (action.letter == FORWARD) - (action.letter == BACKWARD)
            most = max(most, kept)
    return most or min(placed.segment.warmup, placed.micro_batches or plan.micro_batches)


def segment_bytes(
    units: Sequence[Unit], *, trained: Sequence[Unit], state_per_param_byte: float, kept_samples: int
) -> int:
    """Return the bytes for running `units`, without the runtime.

    Weights and buffers, `state_per_param_byte` bytes (gradient, optimizer state) per trained byte, and the activations
    of `kept_samples` samples from the first trained unit on.
    """
    fixed = sum(unit.param_bytes + unit.buffer_bytes for unit in units)
    state = math.ceil(sum(unit.trainable_bytes for unit in trained) * state_per_param_byte)
    return fixed + state + kept_samples * sum(unit.activation_bytes for unit in _differentiated(units, trained))


def _differentiated(units: Sequence[Unit], trained: Sequence[Unit]) -> Sequence[Unit]:
    """Return the units that a backward passes through."""
    return units[units.index(trained[0]) :] if trained else ()


def trained_units(plan: Plan) -> Iterable[str]:
    """Return the names of the units that any device trains, without repeats."""
    return dict.fromkeys(name for lane in plan.lanes for segment in lane.segments for name in segment.trained)


def _placed_bytes(plan: Plan, device: str, placed: PlacedSegment, profile: Profile) -> HeldBytes:
    """Return the bytes of one segment on a device of its group, without the runtime."""
    segment = placed.segment
    first, end = segment.span(device)
    units = [profile.unit(name) for name in segment.units]
    trained = [profile.unit(name) for name in segment.trained]
    optimizer = 0.0 if plan.collector else profile.optimizer_bytes_per_param_byte
    twice = profile.repeated_bytes(segment.trained)
    lasting = segment_bytes(units, trained=trained, state_per_param_byte=optimizer, kept_samples=0)
    with_gradients = segment_bytes(units, trained=trained, state_per_param_byte=1 + optimizer, kept_samples=0)
    weights_twice = profile.repeated_weight_bytes(segment.units)
    lasting -= weights_twice + math.floor(twice * optimizer)
    with_gradients -= weights_twice + math.floor(twice * (1 + optimizer)) - profile.awaited_bytes(segment.trained)
    held = activations(profile, _differentiated(units, trained), segment.recompute)
    held_micro_batches = kept_micro_batches(plan, device, placed)
    summing = 1 if plan.collector else len(segment.devices)
    received = received_bytes(profile.trainable_bytes(segment.trained), summing) + _scored_bytes(plan, segment, profile)
    lane = next(lane for lane in plan.lanes if lane.name == placed.lane)
    received += held_micro_batches * mask_bytes(plan, device, lane, placed.index, profile)
    kept = held_micro_batches * held.kept + held.again
    return HeldBytes(lasting, with_gradients - lasting + received, (end - first) * kept)


def _scored_bytes(plan: Plan, segment: Segment, profile: Profile) -> int:
    """Return what a round that scores heads needs beside its gradients; 0 if the plan has none."""
    if not plan.refresh_gates_every_rounds:
        return 0
    scored = {part.unit for subnet in profile.subnets for part in subnet.parts}
    copies = 1 if len(segment.devices) == 1 else MOST_GRADIENTS_ASIDE
    return copies * profile.trainable_bytes(name for name in segment.trained if name in scored)


def workspace_bytes(units: Sequence[Unit], samples: int) -> int:
    """Return what units need at most while one of them runs so many samples, beside all that they hold."""
    return max((unit.workspace_bytes + samples * unit.workspace_sample_bytes for unit in units), default=0)


def _workspace_bytes(device: str, placed: PlacedSegment, profile: Profile) -> int:
    first, end = placed.segment.span(device)
    return workspace_bytes([profile.unit(name) for name in placed.segment.units], end - first)


def _shared_bytes(plan: Plan, device: str, profile: Profile) -> int:
    """Return the bytes of frozen weights that a device holds once and needs in several segments."""
    needed: dict[str, list[int]] = {}
    for placed in segments_on(plan, device):
        for name, size in _frozen_bytes(placed.segment, profile).items():
            needed.setdefault(name, []).append(size)
    return sum(sum(frozen) - max(frozen) for frozen in needed.values())


def _frozen_bytes(segment: Segment, profile: Profile) -> dict[str, int]:
    """Return the frozen weights of a segment: unit -> those of its own, name -> one that it shares with other units.

    A unit's weights are frozen, but for its trained part where the segment trains it; buffers are each segment's own.
    """
    units = [profile.unit(name) for name in segment.units]
    trained = {name for unit in units if unit.name in segment.trained for name in unit.tied}
    found: dict[str, int] = {}
    for unit in units:
        tied = sum(profile.tied_bytes.get(name, 0) for name in unit.tied)
        frozen = {name: profile.shared_bytes.get(name, 0) for name in unit.frozen_tied}
        own_trained = unit.trainable_bytes - tied if unit.name in segment.trained else 0
        found[unit.name] = unit.param_bytes - own_trained - tied - sum(frozen.values())
        found |= {f"weight {name}": size for name, size in frozen.items()}
        found |= {f"weight {name}": profile.tied_bytes.get(name, 0) for name in unit.tied if name not in trained}
    return found


def _collected_bytes(plan: Plan, profile: Profile) -> int:
    """Return the bytes of the collector's parameters, summed gradients and optimizer state, and of the gradients of
    others, which may have arrived before it has run its own."""
    held = profile.trainable_bytes(trained_units(plan)) * (2 + profile.optimizer_bytes_per_param_byte)
    segments = [segment for lane in plan.lanes for segment in lane.segments]
    arrived = sum(
        profile.trainable_bytes(each.trained) for each in segments for name in each.devices if name != plan.collector
    )
    return math.ceil(held) + arrived


def _pulled_bytes(plan: Plan, device: str, profile: Profile) -> int:
    """Return the bytes of the parameters that a collector hands to a device, before a round's passes; its own lie where
    they are."""
    if not plan.collector or device == plan.collector:
        return 0
    trained = set(trained_units(plan))
    return sum(
        profile.trainable_bytes(name for name in placed.segment.units if name in trained)
        for placed in segments_on(plan, device)
    )
