"""Failure detector: suspects devices whose beats or progress stop. It has no threads, and the clock is an argument."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from fleetune.contracts.record import positive, record
from fleetune.errors import Refused

SILENT, STUCK = "silent", "stuck"
MAX_COUNTED_GAP = 0.25
"""Share of the silence limit that a gap between two polls may count."""


KEPT_GAPS = 600
"""Gaps between beats of which the longest counts."""
LEAST_GAPS = 4
"""Until so many gaps of a device are known, its limit is the highest."""


@record
class SilenceRule:
    """Limit of a device's silence that follows from its own gaps between beats.

    It is `gaps` times the longest of the last KEPT_GAPS, at least `floor_s` and at most `ceiling_s`. It holds in
    `activities`, and only gaps within these count.
    """

    activities: tuple[str, ...]
    gaps: float
    floor_s: float
    ceiling_s: float
    mute_s: float
    """Longest time without a beat of a device that gives other signs of life; then it is stuck."""

    def __post_init__(self) -> None:
        positive("silence", gaps=self.gaps, floor_s=self.floor_s, ceiling_s=self.ceiling_s, mute_s=self.mute_s)


@record
class Suspicion:
    """A device that may have failed, and the reason."""

    device: str
    kind: str
    """`silent`: no beat or other sign of life within the limit. `stuck`: it lives, but makes no progress within its
    activity's limit."""
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

    A device that answers when it is asked gives a sign of life too, which is neither a beat nor progress.

    While this process stands still (frozen, or busy with a disk), beats lie unread. A gap between two polls counts as
    at most a quarter of the least limit of silence.
    """

    def __init__(
        self,
        devices: Iterable[str],
        limit_s: float,
        clock: Callable[[], float],
        stuck_limits_s: Mapping[str, float] | None = None,
        rule: SilenceRule | None = None,
    ) -> None:
        """`limit_s`: longest silence, where `rule` does not hold; `stuck_limits_s`: activity -> longest time without
        progress.

        Devices with other activities are never stuck.
        """
        self._stuck_limits_s = dict(stuck_limits_s or {})
        positive("failure detector", limit_s=limit_s, **self._stuck_limits_s)
        self._limit_s, self._clock, self._rule = limit_s, clock, rule
        self._counted_gap_s = MAX_COUNTED_GAP * (limit_s if rule is None else min(limit_s, rule.floor_s))
        self._polled_s = clock()
        self._stalled_s = 0.0
        self.longest_stall_s = 0.0
        """Longest gap between two polls, in seconds."""
        self._last_beat_s: dict[str, float] = {}
        self._last_sign_s: dict[str, float] = {}
        """Device -> its last beat or other sign of life."""
        self._hinted: set[str] = set()
        """Devices that count as silent until they are heard."""
        self._gaps_s: dict[str, deque[float]] = {}
        self._longest_gap_s: dict[str, float] = {}
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
        self._stalled_s += max(0.0, gap_s - self._counted_gap_s)
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
        self._hear(device, self._last_beat_s[device])
        if self._rule and {doing, self._state.get(device, ("", 0))[0]} <= set(self._rule.activities):
            self._gaps_s[device].append(silence_s)
            self._longest_gap_s[device] = max(self._gaps_s[device])
        if doing not in self._stuck_limits_s or (doing, progress) != self._state.get(device):
            self._last_progress_s[device] = self._last_beat_s[device]
        self._state[device] = (doing, progress)
        return silence_s

    def add(self, device: str) -> None:
        """Monitor a device from now on; its silence counts from now."""
        self._last_beat_s[device] = self._last_progress_s[device] = self._last_sign_s[device] = self.now_s()
        self._gaps_s[device], self._longest_gap_s[device] = deque(maxlen=KEPT_GAPS), 0.0
        self._hinted.discard(device)
        self._state.pop(device, None)

    def remove(self, device: str) -> None:
        """Stop monitoring a device; does nothing for one that is not monitored."""
        self._state.pop(device, None)
        self._gaps_s.pop(device, None)
        self._hinted.discard(device)
        for table in (self._last_beat_s, self._last_progress_s, self._last_sign_s, self._longest_gap_s):
            table.pop(device, None)

    def sign_of_life(self, device: str) -> None:
        """Record that a monitored device lives, though it did not beat."""
        self._hear(device, self.now_s())

    def suspect(self, device: str) -> None:
        """Count a monitored device as silent until it is heard."""
        self._hinted.add(device)

    def last_sign_s(self, device: str) -> float:
        """Return when a monitored device was last heard, in seconds of `now_s`."""
        return self._last_sign_s[device]

    def longest_gap_s(self, device: str) -> float:
        """Return the longest gap between two of a device's last beats; 0 if none is known."""
        return self._longest_gap_s[device]

    def silence_limit_s(self, device: str) -> float:
        """Return the longest silence that a monitored device may keep now."""
        rule = self._rule
        if rule is None or self._state.get(device, ("", 0))[0] not in rule.activities:
            return self._limit_s
        if len(self._gaps_s[device]) < LEAST_GAPS:
            return rule.ceiling_s
        return min(rule.ceiling_s, max(rule.floor_s, rule.gaps * self.longest_gap_s(device)))

    def _hear(self, device: str, at_s: float) -> None:
        self._last_sign_s[device] = max(at_s, self._last_sign_s[device])
        self._hinted.discard(device)

    def suspicions(self) -> tuple[Suspicion, ...]:
        """Return the devices over a limit now, in the order they were added; a silent device is not also stuck."""
        now_s = self.now_s()
        found = []
        for device, last_beat_s in self._last_beat_s.items():
            doing = self._state.get(device, ("", 0))[0]
            idle_s, silence_s = now_s - self._last_progress_s[device], now_s - last_beat_s
            unheard_s = now_s - self._last_sign_s[device]
            if device in self._hinted or unheard_s > self.silence_limit_s(device):
                found.append(Suspicion(device=device, kind=SILENT, since_s=silence_s, doing=doing))
            elif self._rule and silence_s > max(self._rule.mute_s, self._stuck_limits_s.get(doing, 0.0)):
                found.append(Suspicion(device=device, kind=STUCK, since_s=silence_s, doing=doing))
            elif idle_s > self._stuck_limits_s.get(doing, idle_s):
                found.append(Suspicion(device=device, kind=STUCK, since_s=idle_s, doing=doing))
        return tuple(found)
