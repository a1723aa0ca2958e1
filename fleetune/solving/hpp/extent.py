"""How large a problem may be: what is computed with it must fit into whole nanoseconds, whole bytes and this machine.

A time or size beyond these limits is a slip of units; refusing it here keeps every method free of overflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetune.errors import Refused
from fleetune.solving.proofs import Floats

if TYPE_CHECKING:
    from fleetune.solving.hpp.problem import Problem

MOST_S = 4e9
"""Of all work and traffic of a round one after another, in seconds; 64 bits hold 9.2e9 s in nanoseconds."""
MOST_BYTES = 2**62
"""Of everything a round keeps or moves."""
MOST_TIMES = 50_000_000
"""Times of every layer on every device for every number of samples: 0.4 GB a table."""
MOST_MICRO_BATCHES = 1_000_000


def prove_extent(problem: Problem, forward: Floats, backward: Floats, bandwidth: Floats, latency: Floats) -> None:
    """Refuse what cannot be computed with, naming the largest part of it.

    forward, backward: [device, layer, samples], the largest number of samples among them; links: [from, to].
    """
    if problem.micro_batches > MOST_MICRO_BATCHES:
        raise Refused(f"micro_batches: {problem.micro_batches} is above {MOST_MICRO_BATCHES}; give fewer, larger ones")
    layers, devices = len(problem.layers), len(problem.devices)
    if layers * devices * problem.micro_batch > MOST_TIMES:
        raise Refused(
            f"micro_batch: {layers} layers on {devices} devices for up to {problem.micro_batch} samples are more than "
            f"{MOST_TIMES} times to tell apart; give at most {MOST_TIMES // (layers * devices)} samples"
        )
    samples, rounds = problem.micro_batch * problem.micro_batches, problem.micro_batches
    state = (1 + problem.optimizer_bytes_per_param_byte) * 2 + 1
    kept = {
        "param_bytes": state * sum(layer.param_bytes for layer in problem.layers),
        "activation_bytes": 1.0 * samples * sum(layer.activation_bytes for layer in problem.layers),
    }
    crossing = sorted(layer.output_bytes + (layer.gradient_bytes or layer.output_bytes) for layer in problem.layers)
    moved = 1.0 * samples * sum(crossing[1 - min(layers, devices) :]) if min(layers, devices) > 1 else 0.0
    _below(MOST_BYTES, "bytes", kept | {"output_bytes": moved})
    pairs = bandwidth[bandwidth > 0]
    one_after_another = {
        "forward_s": float(forward.max(axis=(0, 2)).sum()) * rounds,
        "backward_s": float(backward.max(axis=(0, 2)).sum()) * rounds,
        "bandwidth_bytes_per_s": (moved + kept["param_bytes"]) / float(pairs.min()) if pairs.size else 0.0,
        "latency_s": float(latency.max()) * 2 * (rounds + 1) * devices**2,
    }
    _below(MOST_S, "s", one_after_another)


def _below(most: float, unit: str, parts: dict[str, float]) -> None:
    if not sum(parts.values()) <= most:
        field = max(parts, key=lambda name: parts[name])
        raise Refused(
            f"{field}: a round could come to {parts[field]:.3g} {unit} by it, more than can be counted "
            f"({most:.3g}); check its unit"
        )
