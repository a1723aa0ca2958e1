"""Beats in, devices to worry about out; no threads, and the clock is an argument."""

from collections.abc import Callable, Iterable, Mapping

from fleetune.contracts.record import positive, record
from fleetune.errors import Refused

SILENT, STUCK = "silent", "stuck"
LONGEST_LOOK = 0.25


@record
class Concern:
    """A device that may have failed, and why one thinks so."""

    device: str
    kind: str
    """`silent`: no beat for the limit. `stuck`: it beats, but what it does has not got on for the limit of that."""
    since_s: float
    """For how long already."""
    doing: str = ""
    """What it said last that it does."""

    def __str__(self) -> str:
        what = "no beat" if self.kind == SILENT else f"beats, but has not got on with {self.doing}"
        return f"device {self.device}: {what} for {self.since_s:.1f} s"


class Watch:
    """Keeps the last beat and the last progress of every device.

    A beat carries a progress counter of the device's compute thread (any number that grows with each action it ends)
    and what that thread does: an IO thread still answers when the computation hangs, and a device that waits for
    others makes no progress either, but is not stuck.

    Time in which nobody looked is nobody's silence: when the watcher itself stood still (frozen, or busy with a disk),
    beats may lie unread. Of a gap between two looks only a quarter of `limit_s` counts.
    """

    def __init__(
        self,
        devices: Iterable[str],
        limit_s: float,
        clock: Callable[[], float],
        stuck_limits_s: Mapping[str, float] | None = None,
    ) -> None:
        """`limit_s` for silence; `stuck_limits_s`: what a device does -> how long without progress is too long.

        What is not named there is never stuck.
        """
        self._stuck_limits_s = dict(stuck_limits_s or {})
        positive("watch", limit_s=limit_s, **self._stuck_limits_s)
        self._limit_s, self._clock = limit_s, clock
        self._looked_s = clock()
        self._stalled_s = 0.0
        self.longest_stall_s = 0.0
        """The longest time in which nobody looked."""
        self._heard_s: dict[str, float] = {}
        self._moved_s: dict[str, float] = {}
        self._state: dict[str, tuple[str, int]] = {}
        for device in devices:
            self.add(device)

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that are watched."""
        return tuple(self._heard_s)

    def now_s(self) -> float:
        """Look at the clock: its seconds, without those in which nobody looked."""
        now_s = self._clock()
        gap_s = now_s - self._looked_s
        self._stalled_s += max(0.0, gap_s - LONGEST_LOOK * self._limit_s)
        self.longest_stall_s = max(self.longest_stall_s, gap_s)
        self._looked_s = now_s
        return now_s - self._stalled_s

    def beat(self, device: str, progress: int, doing: str = "", at_s: float | None = None) -> float:
        """A sign of life that came at `at_s` of the clock (default: now); returns the seconds of silence it ended.

        Refused from a device that is not watched.
        """
        if device not in self._heard_s:
            raise Refused(f"watch: {device!r} is not watched; watched are {', '.join(self._heard_s) or 'none'}")
        now_s = self.now_s()
        came_s = now_s if at_s is None else min(now_s, at_s - self._stalled_s)
        silence_s = max(0.0, came_s - self._heard_s[device])
        self._heard_s[device] += silence_s
        if doing not in self._stuck_limits_s or (doing, progress) != self._state.get(device):
            self._moved_s[device] = self._heard_s[device]
        self._state[device] = (doing, progress)
        return silence_s

    def add(self, device: str) -> None:
        """Watch a device from now on (again); its silence counts from now."""
        self._heard_s[device] = self._moved_s[device] = self.now_s()
        self._state.pop(device, None)

    def remove(self, device: str) -> None:
        """Stop watching a device; one that is not watched is no matter."""
        self._state.pop(device, None)
        for table in (self._heard_s, self._moved_s):
            table.pop(device, None)

    def concerns(self) -> tuple[Concern, ...]:
        """Devices over a limit at this moment, in the order of their naming; one that is silent is not also stuck."""
        now_s = self.now_s()
        found = []
        for device, heard_s in self._heard_s.items():
            doing = self._state.get(device, ("", 0))[0]
            idle_s = now_s - self._moved_s[device]
            if now_s - heard_s > self._limit_s:
                found.append(Concern(device=device, kind=SILENT, since_s=now_s - heard_s, doing=doing))
            elif idle_s > self._stuck_limits_s.get(doing, idle_s):
                found.append(Concern(device=device, kind=STUCK, since_s=idle_s, doing=doing))
        return tuple(found)
