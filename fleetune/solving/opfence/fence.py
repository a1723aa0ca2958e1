"""Whether each cluster's part of the graph hangs together, and how to mend it where it does not."""

import numpy as np

from fleetune.solving.opfence.case import Case, Ints, Place, added
from fleetune.solving.opfence.graph import components
from fleetune.solving.opfence.watch import ENDLESS, Watch


def disconnected(case: Case, place: Place, fence: Ints) -> int:
    """How many parts too many the clusters have; fence: [device] of its cluster."""
    cluster = fence[place]
    return sum(
        len(components(np.flatnonzero(cluster == number).tolist(), case.parents)) - 1
        for number in np.unique(cluster).tolist()
    )


def joined(case: Case, place: Place, fence: Ints, watch: Watch = ENDLESS) -> Place:
    """The placement with the smaller parts of each torn cluster moved to the cluster that they talk to most, where
    there is room; every move leaves one part fewer, or several. As far as it came where the watch ended it."""
    found = place.copy()
    stuck: set[tuple[int, ...]] = set()
    while not watch.over:
        part = _smaller_part(case, found, fence, stuck)
        if part is None:
            return found
        device = _neighbour(case, found, fence, part)
        if device is None:
            stuck.add(tuple(part))
        else:
            found[part] = device
    return found


def _smaller_part(case: Case, place: Place, fence: Ints, stuck: set[tuple[int, ...]]) -> list[int] | None:
    """The smallest part of a torn cluster that may still be moved."""
    cluster = fence[place]
    torn = [
        part
        for number in np.unique(cluster).tolist()
        for part in components(np.flatnonzero(cluster == number).tolist(), case.parents)[1:]
        if tuple(part) not in stuck
    ]
    return min(torn, key=lambda part: (len(part), part)) if torn else None


def _neighbour(case: Case, place: Place, fence: Ints, part: list[int]) -> int | None:
    """A device outside the cluster that most edges of the part lead to and that has room for it; else None."""
    own = fence[place[part[0]]]
    talks: dict[int, int] = {}
    for operator in part:
        for other in case.parents[operator] + case.users[operator]:
            device = int(place[other])
            if fence[device] != own:
                talks[device] = talks.get(device, 0) + 1
    held = added(case.memory_bytes, place, case.devices)
    need = float(case.memory_bytes[part].sum())
    able = [device for device in talks if held[device] + need <= case.budget_bytes[device]]
    return min(able, key=lambda device: (-talks[device], device)) if able else None
