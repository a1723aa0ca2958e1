"""What gates leave of a unit's work (D2FT §2)."""

from collections.abc import Iterable, Mapping

from fleetune.contracts.plan import FULL, SKIP, Gate
from fleetune.contracts.profile import Profile
from fleetune.errors import Refused

Parts = Mapping[str, tuple[tuple[float, float], ...]]
"""Unit -> per micro-batch (part of its forward, part of its backward)."""


def parts_left(gates: Iterable[Gate], profile: Profile) -> dict[str, tuple[tuple[float, float], ...]]:
    """Of every unit that a gate touches. A skipped subnet's share runs neither way, a forward-only one's only forward;
    what of a unit belongs to no subnet always runs. Refused: a subnet that the profile does not have."""
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
