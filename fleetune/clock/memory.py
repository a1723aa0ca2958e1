"""What a segment needs on a device, in bytes."""

import math
from collections.abc import Iterable

from fleetune.contracts.profile import Unit


def segment_bytes(
    units: Iterable[Unit], *, runtime_bytes: int, optimizer_bytes_per_param_byte: float, kept_samples: int
) -> int:
    """Peak bytes of a device that runs `units`, after Asteroid eq. (3).

    The idle runtime, weights and buffers, gradients and optimizer state of what is trained, and the activations of
    `kept_samples` samples between their forward and their backward: min(K, M) micro-batches of the device's share.
    """
    fixed, trainable, per_sample = 0, 0, 0
    for unit in units:
        fixed += unit.param_bytes + unit.buffer_bytes
        trainable += unit.trainable_bytes
        per_sample += unit.activation_bytes
    state = math.ceil(trainable * (1 + optimizer_bytes_per_param_byte))
    return runtime_bytes + fixed + state + kept_samples * per_sample
