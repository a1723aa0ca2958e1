"""Adds up the events of a training into its course."""

from dataclasses import replace

from fleetune.contracts.course import Course, LostDevice, Progressed, Recovered

MOST_POINTS = 400


class CourseBuilder:
    """Collects commits, losses and recoveries in the order of the log."""

    def __init__(self) -> None:
        self._points: list[Progressed] = []
        self._corners: set[int] = set()
        """Places of points that are kept: those beside recoveries."""
        self._losses: list[LostDevice] = []
        self._recoveries: list[Recovered] = []
        self._broken_s: float | None = None
        self._resumed: Recovered | None = None
        self._begun = False
        """True once a round was committed since the training, or its coordinator, was started."""
        self._back: tuple[str, ...] = ()

    def started(self) -> None:
        """Add a start, with which all devices join."""
        self._begun, self._back = False, ()

    def joined(self, device: str) -> None:
        """Add a device, which has come back if rounds were committed without it."""
        self._back += (device,) if self._begun else ()

    def committed(self, at_s: float, rounds: int) -> None:
        """Add a commit, after which so many rounds are done."""
        if self._resumed is not None:
            self._recoveries.append(replace(self._resumed, until_s=at_s))
            self._corners.add(len(self._points))
        self._broken_s = self._resumed = None
        self._begun = True
        self._points.append(Progressed(at_s=at_s, rounds=rounds))

    def lost(self, at_s: float, device: str, reason: str) -> None:
        """Add a loss."""
        self._losses.append(LostDevice(at_s=at_s, device=device, reason=reason))
        self._break(at_s)

    def resuming(self, at_s: float, from_round: int, again: int, moved_bytes: int) -> None:
        """Add that devices go on from a version; what broke the round off came before, or was a lost message."""
        broken = self._broken_s is not None or again > 0 or not self._back
        begun_s = self._break(at_s)
        before = self._resumed
        self._resumed = Recovered(
            from_s=begun_s,
            until_s=at_s,
            from_round=from_round,
            again=again + (before.again if before else 0),
            moved_bytes=moved_bytes + (before.moved_bytes if before else 0),
            back=(*(before.back if before else ()), *self._back),
            broken=broken or (before is not None and before.broken),
        )
        self._back = ()
        self._corners.add(len(self._points))
        self._points.append(Progressed(at_s=at_s, rounds=from_round))

    def course(self) -> Course | None:
        """Return the course; None if nothing was lost."""
        if not self._losses and not self._recoveries:
            return None
        step = max(1, len(self._points) // MOST_POINTS)
        kept = {*range(0, len(self._points), step), *self._corners, *range(len(self._points))[-1:]}
        return Course(
            progress=tuple(self._points[place] for place in sorted(kept)),
            losses=tuple(self._losses),
            recoveries=tuple(self._recoveries),
        )

    def _break(self, at_s: float) -> float:
        """Note that the round is broken off; return since when no round was committed for that."""
        if self._broken_s is None:
            self._broken_s = at_s
            if self._points:
                self._corners.add(len(self._points) - 1)
        return self._broken_s
