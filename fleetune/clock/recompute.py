"""What recomputed activations cost and save (Chen et al., Training Deep Nets with Sublinear Memory Cost,
arXiv:1604.06174).

Of a block only the inputs are kept between forward and backward; the backward runs the block's forward again, one block
after the other. Units outside blocks (embeddings, head) keep their activations.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fleetune.contracts.profile import Profile, Unit
from fleetune.program.blocks import block_runs


class Activations(NamedTuple):
    """Bytes per sample of a segment's activations."""

    kept: int
    """From a micro-batch's forward to its backward."""
    again: int = 0
    """At most, while a block is computed again."""


def activations(profile: Profile, units: Sequence[Unit], recompute: bool) -> Activations:
    """Return the bytes that neighbouring units of the profile keep, of which all have a backward."""
    if not recompute or not units:
        return Activations(sum(unit.activation_bytes for unit in units))
    start = next(k for k, unit in enumerate(profile.units) if unit.name == units[0].name)
    kept = again = 0
    for run in block_runs([unit.name for unit in units]):
        inside = sum(unit.activation_bytes for unit in units[run.first : run.end])
        kept += min(inside, input_bytes(profile, start + run.first)) if run.block else inside
        again = max(again, inside) if run.block else again
    return Activations(kept, again)


def input_bytes(profile: Profile, place: int) -> int:
    """Return the bytes per sample that enter unit number `place`.

    A model whose first unit is a block reads stored activations, which are as large as those behind it.
    """
    return profile.units[place - 1 if place else 0].output_bytes


def is_recomputed(units: Sequence[str]) -> list[bool]:
    """Return of each unit of a segment that recomputes whether its forward runs again in the backward."""
    return [bool(run.block) for run in block_runs(units) for _ in range(run.first, run.end)]
