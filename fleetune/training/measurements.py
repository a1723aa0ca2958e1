"""Measurements of rounds: the offset between two machines' clocks, and the timeline rows that workers report."""

import bisect
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from typing_extensions import Buffer

from fleetune.contracts.metrics import RoundMetrics, TimelineRow, span_s
from fleetune.contracts.plan import BACKWARD, FORWARD, UPDATE, Plan, parse_action
from fleetune.errors import Refused

DRIFT = 1e-4
"""Seconds per second that two machines' clocks may drift apart: twice the tolerance of a quartz clock."""
MAX_SAMPLES = 64
KEPT_ROUNDS = 16
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    offset_s: float
    error_s: float
    """Bound of the offset's error when it was measured: half of the round trip."""

    def error_bound_s(self, at_s: float) -> float:
        """Return the bound of the offset's error at another time."""
        return self.error_s + DRIFT * abs(at_s - self.at_s)


class ClockOffset:
    """The offset from the local monotonic clock to the coordinator's, measured again with every beat.

    Keeps the round trips with the smallest error bound: as in NTP, half of the round trip plus the drift since then.
    """

    def __init__(self) -> None:
        self._samples: list[_Sample] = []

    def __len__(self) -> int:
        """Return how many round trips are kept."""
        return len(self._samples)

    def add(self, sent_s: float, remote_received_s: float, remote_sent_s: float, received_s: float) -> None:
        """Add one round trip: `sent_s` and `received_s` by the local clock, the others by the remote one."""
        offset_s = ((remote_received_s - sent_s) + (remote_sent_s - received_s)) / 2
        error_s = ((received_s - sent_s) - (remote_sent_s - remote_received_s)) / 2
        if not (math.isfinite(offset_s) and error_s >= 0):
            return  # a round trip cannot take negative time
        new = _Sample((sent_s + received_s) / 2, offset_s, error_s)
        if any(old.error_bound_s(new.at_s) <= new.error_s for old in self._samples):
            return  # an older sample is more accurate
        kept = [old for old in self._samples if new.error_bound_s(old.at_s) > old.error_s]
        self._samples = [*kept, new][-MAX_SAMPLES:]

    def offset_at_s(self, at_s: float) -> float:
        """Return the offset at a time of the local clock; 0 before anything was measured."""
        best = min(self._samples, key=lambda sample: sample.error_bound_s(at_s), default=None)
        return best.offset_s if best else 0.0


class ReportedRow(NamedTuple):
    """A timeline row as a worker sends it; a clock offset that changes may put its end before its start."""

    device: str
    """Name of the device, or `a>b` for a transfer on the link from a to b."""
    action: str
    start_s: float
    """Seconds by the coordinator's clock."""
    end_s: float
    bytes: int


def encode_rows(rows: Sequence[TimelineRow]) -> bytes:
    """Return rows as a message part; with many micro-batches they would not fit into a header."""
    plain = [ReportedRow(r.device, r.action, r.start_s, r.end_s, r.bytes) for r in rows]
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()


def decode_rows(device: str, parts: Sequence[Buffer]) -> list[ReportedRow]:
    """Return the rows that a device sent; Refused if malformed."""
    try:
        (part,) = parts
        rows = [ReportedRow(*row) for row in json.loads(bytes(part))]
        for row in rows:
            times = math.isfinite(row.start_s) and math.isfinite(row.end_s)
            own = row.device == device or row.device.endswith(f">{device}")
            parse_action(row.action)
            if not (times and own and type(row.bytes) is int and row.bytes >= 0):
                raise ValueError(f"{row.device!s:.40} {row.action!s:.40} from {row.start_s} to {row.end_s}")
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, Refused) as error:
        raise Refused(f"device {device} reports a round in rows that cannot be read ({error})") from None
    return rows


def busy_s(rows: Iterable[TimelineRow]) -> dict[str, float]:
    """Return each device's seconds of forwards and backwards."""
    found: dict[str, float] = {}
    for row in rows:
        if not row.is_transfer and parse_action(row.action).letter in (FORWARD, BACKWARD):
            found[row.device] = found.get(row.device, 0.0) + row.end_s - row.start_s
    return found


def upload_s(rows: Iterable[TimelineRow], collector: str | None) -> dict[str, float]:
    """Return each device's seconds of sending gradients to the collector; empty without one."""
    found: dict[str, float] = {}
    for row in rows:
        source, _, target = row.device.partition(">")
        if target and target == collector and parse_action(row.action).letter == UPDATE:
            found[source] = found.get(source, 0.0) + row.end_s - row.start_s
    return found


@dataclass(frozen=True, slots=True)
class MeasuredRound:
    """Measurements of one round on all devices."""

    round_s: float
    rows: list[TimelineRow]
    sent_bytes: Mapping[tuple[str, str], int]
    """(source, target) -> bytes."""


class NearMedian(Generic[T]):
    """The KEPT_ROUNDS of all values whose durations are nearest to the median so far."""

    def __init__(self) -> None:
        self._ordered_s: list[float] = []
        self._kept: dict[int, tuple[float, T]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, number: int, duration_s: float, value: T) -> None:
        """Add a value; if too many are kept, drop the one that is farthest from the median so far."""
        bisect.insort(self._ordered_s, duration_s)
        self._kept[number] = (duration_s, value)
        if len(self._kept) > KEPT_ROUNDS:
            del self._kept[max(self._kept, key=lambda n: self._distance(n, self.median_s))]

    @property
    def median_s(self) -> float:
        """The median of all durations, the greater one of two."""
        return self._ordered_s[len(self._ordered_s) // 2]

    def nearest(self, duration_s: float) -> T | None:
        """Return the kept value that is nearest to a duration; None if there is none."""
        number = min(self._kept, key=lambda n: self._distance(n, duration_s), default=None)
        return None if number is None else self._kept[number][1]

    def _distance(self, number: int, duration_s: float) -> tuple[float, int]:
        return abs(self._kept[number][0] - duration_s), number


class RoundMeasurements:
    """Memory peaks, and the rows and sent bytes of the rounds that are nearest to the median, and of averages."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        """device -> peak in bytes."""
        self.peaks_of_first: dict[str, int] = {}
        """The same in the rounds of the first plan."""
        self.plans: dict[int, Plan] = {}
        """Those that followed the first one, by their revision."""
        self._averages, self._averaged = NearMedian[list[TimelineRow]](), 0
        """Rows of averages over lanes, and how many averages there were."""
        self.newest: list[TimelineRow] = []
        """Rows of the round that was added last."""
        self.revised_from_round: int | None = None
        """First round of a plan that followed the first one, or whose blocks had moved; rows of those are not kept."""
        self.replanned_from_round: int | None = None
        """First round of a plan that followed the first one."""
        self._rounds, self._partial = NearMedian[MeasuredRound](), NearMedian[MeasuredRound]()
        self._moved = NearMedian[MeasuredRound]()
        """Rounds after blocks had moved, for attempts that began after the first move."""

    def revised(self, round: int, plan: Plan) -> None:
        """Note that another plan than the first one trains this round."""
        self.plans[plan.revision] = plan
        self._revised_from(round)
        self.replanned_from_round = _earlier(self.replanned_from_round, round)

    def moved(self, rounds: Iterable[RoundMetrics]) -> None:
        """Note the blocks that moved after these rounds of the first plan."""
        for each in rounds:
            if each.moves:
                self._revised_from(each.round + 1)

    def _revised_from(self, round: int) -> None:
        self.revised_from_round = _earlier(self.revised_from_round, round)

    def add_peak(self, device: str, peak_bytes: int) -> None:
        """Add a device's peak up to now."""
        self.peaks[device] = max(self.peaks.get(device, 0), peak_bytes)
        if self.revised_from_round is None:
            self.peaks_of_first[device] = self.peaks[device]

    def add(self, round: int, measured: MeasuredRound, whole: bool = True) -> None:
        """Add a round. whole: whether it is like the one that is forecast: no lane rests, no head runs to be scored."""
        self.newest = measured.rows
        if self.revised_from_round is None:
            (self._rounds if whole else self._partial).add(round, measured.round_s, measured)
        elif not self.plans:
            self._moved.add(round, measured.round_s, measured)

    def add_average(self, rows: list[TimelineRow]) -> None:
        """Add an average over lanes, unless it is of another plan than the first one."""
        if self.revised_from_round is not None:
            return
        self._averages.add(self._averaged, span_s(rows), rows)
        self._averaged += 1

    def median_average(self) -> list[TimelineRow]:
        """Return the rows of the average of median duration, or of one that is near; empty without any."""
        return (self._averages.nearest(self._averages.median_s) or []) if self._averaged else []

    def median_round(self, median_s: float) -> MeasuredRound | None:
        """Return the kept round that is nearest to the median, of those in which no lane rests and nothing had moved if
        there are any; None if there is none."""
        kept = (self._rounds, self._partial, self._moved)
        return next((found for some in kept if (found := some.nearest(median_s))), None)


def _earlier(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
