"""Shares of passes that are computed where a device trains some units of what it runs.

A backward ends at the lowest trained unit, below which forwards keep nothing for it, and passes through units above
that are not trained. Units are taken for a chain: where several read one value that needs no gradient, as the three
projections of an attention do, each of them may compute less than this counts.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from fleetune.contracts.profile import DeviceTimes, PartialPasses, Profile

Rows = tuple[tuple[float, ...], ...]
"""[unit][batch size] seconds."""


def backward_shares(
    places: Sequence[int], trained: Collection[int], measured: PartialPasses | None
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


def forward_shares(
    places: Sequence[int], trained: Collection[int], measured: PartialPasses | None
) -> tuple[float, ...]:
    """Return the share of each unit's forward, by the same arguments: a part below the lowest trained unit."""
    if not trained or measured is None:
        return (1.0,) * len(places)
    lowest = next(at for at, place in enumerate(places) if place in trained)
    return tuple(measured.below[place] if at < lowest else 1.0 for at, place in enumerate(places))


def with_whole_rests(measured: PartialPasses, backward_s: Rows, longer_s: Rows) -> PartialPasses:
    """Return the shares of backwards that take longer by something of which no part is left out."""

    def share(unit: int, value: float) -> float:
        whole_s, all_s = backward_s[unit][-1], longer_s[unit][-1]
        return min(1.0, (value * whole_s + all_s - whole_s) / all_s) if all_s > whole_s else value

    passed, lowest = (tuple(share(k, v) for k, v in enumerate(each)) for each in (measured.passed, measured.lowest))
    return replace(measured, passed=passed, lowest=lowest)


def with_least_passes(profile: Profile) -> Profile:
    """Return the profile with the least that a device may compute of each unit's passes, if it computes any of them."""

    def least(rows: Rows, shares: Iterable[float]) -> Rows:
        return tuple(tuple(share * seconds for seconds in row) for share, row in zip(shares, rows, strict=True))

    def of(times: DeviceTimes) -> DeviceTimes:
        if times.partial is None:
            return times
        trained = [unit.trainable_bytes > 0 for unit in profile.units]
        above = [any(trained[:place]) for place in range(len(trained))]
        backward = [
            min(passed if is_above else 1.0, lowest if is_trained else 1.0)
            for passed, lowest, is_above, is_trained in zip(
                times.partial.passed, times.partial.lowest, above, trained, strict=True
            )
        ]
        return replace(
            times,
            forward_s=least(times.forward_s, times.partial.below),
            backward_s=least(times.backward_s, backward),
        )

    return replace(profile, times=tuple(map(of, profile.times)))
