"""Importance scores of attention heads (D2FT), as devices report them."""

from collections.abc import Iterable

from fleetune.contracts.record import finite, not_negative, record
from fleetune.errors import Refused


@record
class HeadScores:
    """Scores of one attention head, or of the part of it that a device holds (see contracts.profile.Subnet)."""

    name: str
    weight_magnitude: float
    gradient_magnitude: float
    fisher: tuple[float, ...]
    """[micro-batch]."""


@record
class ReportedScores:
    """Scores that a device has taken, as a part of its report of a round."""

    heads: tuple[HeadScores, ...]


def summed_scores(reported: Iterable[HeadScores]) -> tuple[HeadScores, ...]:
    """Return each head's scores, in the order of first mention: all of them are sums over weights, so that parts on
    several devices add up. Refused: parts of other numbers of micro-batches, or scores that are no numbers.
    """
    found: dict[str, HeadScores] = {}
    for part in reported:
        before = found.get(part.name)
        if before is not None and len(before.fisher) != len(part.fisher):
            raise Refused(
                f"scores of {part.name}: one device has {len(before.fisher)} micro-batches, another {len(part.fisher)}"
            )
        fisher = before.fisher if before else (0.0,) * len(part.fisher)
        found[part.name] = HeadScores(
            name=part.name,
            weight_magnitude=part.weight_magnitude + (before.weight_magnitude if before else 0.0),
            gradient_magnitude=part.gradient_magnitude + (before.gradient_magnitude if before else 0.0),
            fisher=tuple(a + b for a, b in zip(fisher, part.fisher, strict=True)),
        )
    for name, scores in found.items():
        for value in (scores.weight_magnitude, scores.gradient_magnitude, *scores.fisher):
            finite(f"scores of {name}", score=value)
            not_negative(f"scores of {name}", score=value)
    return tuple(found.values())
