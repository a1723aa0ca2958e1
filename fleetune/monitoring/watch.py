"""Beats in, devices to worry about out; no threads, and the clock is an argument."""

from collections.abc import Callable, Iterable

from fleetune.contracts.record import positive, record
from fleetune.errors import Refused

SILENT, STUCK = "silent", "stuck"


@record
class Concern:
    """A device that may have failed, and why one thinks so."""

    device: str
    kind: str
    """`silent`: no beat for the limit. `stuck`: it beats, but its computation has not moved while it had work."""
    since_s: float
    """For how long already."""

    def __str__(self) -> str:
        what = "no beat" if self.kind == SILENT else "beats, but its computation has not moved"
        return f"device {self.device}: {what} for {self.since_s:.1f} s"


class Watch:
    """Keeps the last beat and the last progress of every device.

    A beat carries a progress counter of the device's compute thread (any number that grows with each action it ends)
    and whether that thread has work: an IO thread still answers when the computation hangs, and a device that waits for
    others makes no progress either, but is not stuck.
    """

    def __init__(
        self, devices: Iterable[str], limit_s: float, clock: Callable[[], float], stuck_limit_s: float | None = None
    ) -> None:
        """`limit_s` for silence; `stuck_limit_s` for a computation without progress (default: never a concern)."""
        positive("watch", limit_s=limit_s, stuck_limit_s=stuck_limit_s or limit_s)
        self._limit_s, self._stuck_limit_s, self._clock = limit_s, stuck_limit_s, clock
        now_s = clock()
        self._heard_s = {device: now_s for device in devices}
        self._moved_s = dict(self._heard_s)
        self._progress: dict[str, int] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that are watched."""
        return tuple(self._heard_s)

    def beat(self, device: str, progress: int, working: bool = True) -> float:
        """A sign of life; returns the seconds of silence it ended. Refused from a device that is not watched."""
        if device not in self._heard_s:
            raise Refused(f"watch: {device!r} is not watched; watched are {', '.join(self._heard_s) or 'none'}")
        now_s = self._clock()
        silence_s = now_s - self._heard_s[device]
        self._heard_s[device] = now_s
        if not working or progress != self._progress.get(device):
            self._moved_s[device] = now_s
        self._progress[device] = progress
        return silence_s

    def add(self, device: str) -> None:
        """Watch a device from now on (again); its silence counts from now."""
        self._heard_s[device] = self._moved_s[device] = self._clock()
        self._progress.pop(device, None)

    def remove(self, device: str) -> None:
        """Stop watching a device; one that is not watched is no matter."""
        for table in (self._heard_s, self._moved_s, self._progress):
            table.pop(device, None)

    def concerns(self) -> tuple[Concern, ...]:
        """Devices over a limit at this moment, in the order of their naming; one that is silent is not also stuck."""
        now_s = self._clock()
        found = []
        for device, heard_s in self._heard_s.items():
            idle_s = now_s - self._moved_s[device]
            if now_s - heard_s > self._limit_s:
                found.append(Concern(device=device, kind=SILENT, since_s=now_s - heard_s))
            elif self._stuck_limit_s is not None and idle_s > self._stuck_limit_s:
                found.append(Concern(device=device, kind=STUCK, since_s=idle_s))
        return tuple(found)

    def silent(self) -> tuple[str, ...]:
        """Names of the devices without a beat for longer than the limit."""
        return tuple(concern.device for concern in self.concerns() if concern.kind == SILENT)

    def next_check_s(self) -> float:
        """Seconds until the earliest moment at which a device could become silent; 0 when one is, limit_s for none."""
        now_s = self._clock()
        return max(
            0.0, min((heard_s + self._limit_s - now_s for heard_s in self._heard_s.values()), default=self._limit_s)
        )
