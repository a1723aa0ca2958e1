"""Memory of a plan on a device in bytes, and warnings for measured peaks above budget or forecast."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import BACKWARD, FORWARD, Plan, Segment, parse_action
from fleetune.contracts.profile import Profile, Unit

FORECAST_MARGIN = 0.05
"""Tolerated relative excess: allocator fragmentation changes a plan's peak by a few percent between trainings."""


def memory_warnings(fleet: Fleet, forecast: Mapping[str, float], peaks: Mapping[str, float]) -> Iterator[str]:
    """Yield a sentence for each device whose peak exceeds its budget, or its forecast by more than FORECAST_MARGIN.

    `forecast` and `peaks` map device names to bytes.
    """
    for device, peak in peaks.items():
        budget, promised = fleet.device(device).memory_bytes, forecast.get(device, math.inf)
        foretold = "" if math.isinf(promised) else f", {promised / 1e6:.0f} MB forecast"
        if peak > budget:
            yield (
                f"device {device} used {peak / 1e6:.0f} MB of its {budget / 1e6:.0f} MB{foretold}: give it more memory "
                "or lower training.micro_batch_samples"
            )
        elif peak > promised * (1 + FORECAST_MARGIN):
            yield (
                f"device {device} used {peak / 1e6:.0f} MB{foretold}: plans that need most of its "
                f"{budget / 1e6:.0f} MB may not fit"
            )


def device_bytes(plan: Plan, device: str, profile: Profile) -> int:
    """Peak bytes of a device, after Asteroid eq. (3).

    The idle runtime, plus for every segment the device runs: weights, buffers, gradients, optimizer state, and the
    activations of the kept micro-batches of its share. With a collector, only the collector holds optimizer state.
    Gates and codecs save no memory, because what they leave out differs between micro-batches.
    """
    seats = [
        _seat_bytes(plan, device, (lane.name, index), segment, profile)
        for lane in plan.lanes
        for index, segment in enumerate(lane.segments)
        if device in segment.devices
    ]
    collected = _collected_bytes(plan, profile) if device == plan.collector else 0
    return profile.times_of(device).runtime_bytes + collected + sum(seats)


def kept_micro_batches(plan: Plan, device: str, seat: tuple[str, int], warmup: int) -> int:
    """Maximum number of micro-batches between forward and backward at once on `seat`, a (lane, segment).

    min(K, M) in the default 1F1B order; counted from an explicit order otherwise.
    """
    given = next((order.actions for order in plan.order if order.device == device), ())
    kept = most = 0
    for action in map(parse_action, given):
        if (action.lane, action.segment) == seat:
            kept += (action.letter == FORWARD) - (action.letter == BACKWARD)
            most = max(most, kept)
    return most or min(warmup, plan.micro_batches)


def segment_bytes(
    units: Sequence[Unit], *, trained: Sequence[Unit], state_per_param_byte: float, kept_samples: int
) -> int:
    """Bytes for running `units`, without the runtime.

    Weights and buffers, `state_per_param_byte` bytes (gradient, optimizer state) per trained byte, and the activations
    of `kept_samples` samples from the first trained unit on.
    """
    fixed = sum(unit.param_bytes + unit.buffer_bytes for unit in units)
    state = math.ceil(sum(unit.trainable_bytes for unit in trained) * state_per_param_byte)
    differentiated = units[units.index(trained[0]) :] if trained else ()
    return fixed + state + kept_samples * sum(unit.activation_bytes for unit in differentiated)


def trained_units(plan: Plan) -> Iterable[str]:
    """Names of the units that any device trains, without repeats."""
    return dict.fromkeys(name for lane in plan.lanes for segment in lane.segments for name in segment.trained)


def _seat_bytes(plan: Plan, device: str, seat: tuple[str, int], segment: Segment, profile: Profile) -> int:
    """Bytes of one segment on a device of its group, without the runtime."""
    first, end = segment.span(device)
    return segment_bytes(
        [profile.unit(name) for name in segment.units],
        trained=[profile.unit(name) for name in segment.trained],
        state_per_param_byte=1 + (0.0 if plan.collector else profile.optimizer_bytes_per_param_byte),
        kept_samples=kept_micro_batches(plan, device, seat, segment.warmup) * (end - first),
    )


def _collected_bytes(plan: Plan, profile: Profile) -> int:
    """Bytes of the collector's parameters, summed gradients and optimizer state."""
    trained = sum(profile.unit(name).trainable_bytes for name in trained_units(plan))
    return math.ceil(trained * (2 + profile.optimizer_bytes_per_param_byte))
