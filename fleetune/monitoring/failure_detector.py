"""Failure detector: suspects devices whose beats or progress stop. It has no threads, and the clock is an argument."""

from collections.abc import Callable, Iterable, Mapping

from fleetune.contracts.record import positive, record
from fleetune.errors import Refused

SILENT, STUCK = "silent", "stuck"
MAX_COUNTED_GAP = 0.25
"""Share of the silence limit that a gap between two polls may count."""


@record
class Suspicion:
    """A device that may have failed, and the reason."""

    device: str
    kind: str
    """`silent`: no beat within the limit. `stuck`: it beats, but makes no progress within its activity's limit."""
    since_s: float
    """Seconds without a beat, or without progress."""
    doing: str = ""
    """The activity of its last beat."""

    def __str__(self) -> str:
        what = "no beat" if self.kind == SILENT else f"beats, but makes no progress in {self.doing}"
        return f"device {self.device}: {what} for {self.since_s:.1f} s"


class FailureDetector:
    """Keeps the last beat and the last progress of every device.

    A beat carries a progress counter of the device's compute thread (any number that grows with each finished action)
    and its activity: an IO thread still beats when the computation hangs, and a device that waits for others makes no
    progress either, but is not stuck.

    While this process stands still (frozen, or busy with a disk), beats lie unread. A gap between two polls counts as
    at most a quarter of `limit_s` of silence.
    """

    def __init__(
        self,
        devices: Iterable[str],
        limit_s: float,
        clock: Callable[[], float],
        stuck_limits_s: Mapping[str, float] | None = None,
    ) -> None:
        """`limit_s`: longest silence; `stuck_limits_s`: activity -> longest time without progress.

        Devices with other activities are never stuck.
        """
        self._stuck_limits_s = dict(stuck_limits_s or {})
        positive("failure detector", limit_s=limit_s, **self._stuck_limits_s)
        self._limit_s, self._clock = limit_s, clock
        self._polled_s = clock()
        self._stalled_s = 0.0
        self.longest_stall_s = 0.0
        """Longest gap between two polls, in seconds."""
        self._last_beat_s: dict[str, float] = {}
        self._last_progress_s: dict[str, float] = {}
        self._state: dict[str, tuple[str, int]] = {}
        for device in devices:
            self.add(device)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the monitored devices."""
        return tuple(self._last_beat_s)

    def now_s(self) -> float:
        """Read the clock; returns its seconds without those that do not count as silence."""
        now_s = self._clock()
        gap_s = now_s - self._polled_s
        self._stalled_s += max(0.0, gap_s - MAX_COUNTED_GAP * self._limit_s)
        self.longest_stall_s = max(self.longest_stall_s, gap_s)
        self._polled_s = now_s
        return now_s - self._stalled_s

    def beat(self, device: str, progress: int, doing: str = "", at_s: float | None = None) -> float:
        """Record a beat that arrived at `at_s` of the clock (default: now); returns the seconds of silence it ended.

        Refused for a device that is not monitored.
        """
        if device not in self._last_beat_s:
            raise Refused(
                f"failure detector: {device!r} is not monitored; monitored are {', '.join(self._last_beat_s) or 'none'}"
            )
        now_s = self.now_s()
        arrived_s = now_s if at_s is None else min(now_s, at_s - self._stalled_s)
        silence_s = max(0.0, arrived_s - self._last_beat_s[device])
        self._last_beat_s[device] += silence_s
        if doing not in self._stuck_limits_s or (doing, progress) != self._state.get(device):
            self._last_progress_s[device] = self._last_beat_s[device]
        self._state[device] = (doing, progress)
        return silence_s

    def add(self, device: str) -> None:
        """Monitor a device from now on; its silence counts from now."""
        self._last_beat_s[device] = self._last_progress_s[device] = self.now_s()
        self._state.pop(device, None)

    def remove(self, device: str) -> None:
        """Stop monitoring a device; does nothing for one that is not monitored."""
        self._state.pop(device, None)
        for table in (self._last_beat_s, self._last_progress_s):
            table.pop(device, None)

    def suspicions(self) -> tuple[Suspicion, ...]:
        """Return the devices over a limit now, in the order they were added; a silent device is not also stuck."""
        now_s = self.now_s()
        found = []
        for device, last_beat_s in self._last_beat_s.items():
            doing = self._state.get(device, ("", 0))[0]
            idle_s = now_s - self._last_progress_s[device]
            if now_s - last_beat_s > self._limit_s:
                found.append(Suspicion(device=device, kind=SILENT, since_s=now_s - last_beat_s, doing=doing))
            elif idle_s > self._stuck_limits_s.get(doing, idle_s):
                found.append(Suspicion(device=device, kind=STUCK, since_s=idle_s, doing=doing))
        return tuple(found)
