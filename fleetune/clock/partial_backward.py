"""Shares of backwards that are computed where a device trains some units of what it runs.

A backward ends at the lowest trained unit, and passes through units above it that are not trained.
"""

from collections.abc import Collection, Sequence

from fleetune.contracts.profile import PartialBackward


def backward_shares(
    places: Sequence[int], trained: Collection[int], measured: PartialBackward | None
) -> tuple[float, ...]:
    """Return the share of each unit's backward that a segment computes: 0 below the lowest trained unit.

    places: positions in the profile of the segment's units, in order. trained: those of the units that it trains; none
    for all of them. measured: the device's; None: whatever is computed counts as the whole.
    """
    if not trained:
        return (1.0,) * len(places)
    lowest = next(at for at, place in enumerate(places) if place in trained)

    def share(at: int, place: int) -> float:
        if at < lowest:
            return 0.0
        if measured is None:
            return 1.0
        if place not in trained:
            return measured.passed[place]
        return measured.lowest[place] if at == lowest and at > 0 else 1.0  # a segment's inputs may need gradients

    return tuple(share(at, place) for at, place in enumerate(places))
