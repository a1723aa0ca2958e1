"""Placements found on the way: the fastest that fit, told apart."""

from fleetune.solving.opfence.case import Case, Place


class Drafts:
    """The fastest placements that fit their memories, at most `most` of them, the fastest first."""

    def __init__(self, case: Case, most: int = 8) -> None:
        self._case, self._most = case, most
        self._kept: list[tuple[float, bytes, Place]] = []
        self._seen: set[bytes] = set()

    def offer(self, place: Place) -> bool:
        """Whether it is the fastest so far."""
        key = place.tobytes()
        if key in self._seen:
            return False
        self._seen.add(key)
        cost_s = self._case.cost_s(place)
        if len(self._kept) == self._most and cost_s >= self._kept[-1][0]:
            return False
        if not self._case.fits(place):
            return False
        self._kept = sorted([*self._kept, (cost_s, key, place)], key=lambda kept: kept[:2])[: self._most]
        return self._kept[0][1] == key

    @property
    def places(self) -> list[Place]:
        """The fastest first."""
        return [place for _, _, place in self._kept]

    @property
    def best_s(self) -> float:
        """Of the fastest; infinite where nothing was kept."""
        return self._kept[0][0] if self._kept else float("inf")
