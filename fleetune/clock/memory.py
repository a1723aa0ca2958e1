"""What a plan needs on a device, in bytes."""

import math
from collections.abc import Iterable, Sequence

from fleetune.contracts.plan import Plan, Segment
from fleetune.contracts.profile import Profile, Unit


def device_bytes(plan: Plan, device: str, profile: Profile) -> int:
    """Peak bytes of a device, after Asteroid eq. (3): the idle runtime, and of each segment that it runs (a client's
    first and last, a helper's copy for every client) weights, buffers, gradients, optimizer state, and the activations
    of min(K, M) micro-batches of its share. Where a collector steps the optimizer, its state is there and nowhere else.
    """
    seats = [s for lane in plan.lanes for s in lane.segments if device in s.devices]
    collected = _collected_bytes(plan, profile) if device == plan.collector else 0
    return profile.of(device).runtime_bytes + collected + sum(seat_bytes(plan, s, device, profile) for s in seats)


def seat_bytes(plan: Plan, segment: Segment, device: str, profile: Profile) -> int:
    """What one segment needs on a device of its group, without the runtime."""
    first, end = segment.span(device)
    units = [profile.unit(name) for name in segment.units]
    return segment_bytes(
        units,
        trained=[unit for unit in units if unit.name in segment.trains] if segment.trains else units,
        state_per_param_byte=1 + (0.0 if plan.collector else profile.optimizer_bytes_per_param_byte),
        kept_samples=min(segment.warmup, plan.micro_batches) * (end - first),
    )


def segment_bytes(
    units: Sequence[Unit], *, trained: Sequence[Unit], state_per_param_byte: float, kept_samples: int
) -> int:
    """Bytes of running `units`: weights and buffers, what training keeps beside every trained byte (gradient, optimizer
    state), and the activations of `kept_samples` samples of all units from the first trained one on."""
    fixed = sum(unit.param_bytes + unit.buffer_bytes for unit in units)
    state = math.ceil(sum(unit.trainable_bytes for unit in trained) * state_per_param_byte)
    differentiated = units[units.index(trained[0]) :] if trained else ()
    return fixed + state + kept_samples * sum(unit.activation_bytes for unit in differentiated)


def trained_units(plan: Plan) -> Iterable[str]:
    """Names of the units that somebody trains, each once."""
    segments = [segment for lane in plan.lanes for segment in lane.segments]
    return dict.fromkeys(name for segment in segments for name in segment.trains or segment.units)


def _collected_bytes(plan: Plan, profile: Profile) -> int:
    """The collector's parameters, summed gradients and optimizer state."""
    trained = sum(profile.unit(name).trainable_bytes for name in trained_units(plan))
    return math.ceil(trained * (2 + profile.optimizer_bytes_per_param_byte))
