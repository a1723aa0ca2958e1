"""Measurements of rounds: what workers report, and the metrics made of it."""

import bisect
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from typing_extensions import Buffer

from fleetune.contracts.metrics import RoundMetrics, TimelineRow, span_s
from fleetune.contracts.mixed_precision import FP16
from fleetune.contracts.plan import AVERAGE, BACKWARD, FORWARD, UPDATE, Plan, parse_action
from fleetune.errors import Refused
from fleetune.training.batches import lane_samples, lane_weights
from fleetune.training.energy import total_j
from fleetune.training.gradients import UNSCALED, total_norm
from fleetune.training.optimizer import learning_rate
from fleetune.training.task import TrainingTask

KEPT_ROUNDS = 16
T = TypeVar("T")


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


Reports = Mapping[str, Mapping[str, Any]]
"""Device -> header of its `ready`."""


def norms_by_lane(plan: Plan, round: int, ready: Reports) -> dict[str, torch.Tensor]:
    """Return the norm of the gradients of each lane that takes a step; with a collector all have that of their sum."""
    if plan.collector:
        norm = total_norm(packed for header in ready.values() for packed in header["norms"].values())
        return dict.fromkeys((lane.name for lane in plan.lanes), norm)
    reports = {
        lane.name: [header["norms"][lane.name] for header in ready.values() if lane.name in header["norms"]]
        for lane in plan.lanes
        if lane.name not in plan.resting_in(round)
    }
    return {lane: total_norm(packed) for lane, packed in reports.items()}


def _mean_loss(task: TrainingTask, plan: Plan, ready: Reports) -> float:
    """Return the mean of the losses of the lanes that took part, weighted by their samples."""
    losses = [ready[device]["losses"] for device in sorted(ready)]  # whoever reports first, sums have the same bits
    if len(plan.lanes) == 1:
        return sum(float(loss) for by_lane in losses for loss in by_lane.values())
    local = {device: data.samples for device, data in task.local.items()}
    weights = lane_weights(plan, lane_samples(task.dealing, task.data_folder, local))
    total = sum(weights[lane] * float(loss) for by_lane in losses for lane, loss in by_lane.items())
    took_part = {lane for by_lane in losses for lane in by_lane}
    if took_part >= weights.keys():
        return total
    return total / sum(weight for lane, weight in weights.items() if lane in took_part)


def round_metrics(
    task: TrainingTask, plan: Plan, round: int, ready: Reports, measured: RoundMeasurements
) -> tuple[RoundMetrics, dict[str, torch.Tensor]]:
    """Merge the devices' reports of a round into `measured`; return the round's metrics, and the norm of each lane's
    gradients, of which the largest is reported, without the scale of the loss.

    Refused if clipping is on and the norm is not finite, or if gradients overflow though the loss is not scaled.
    """
    scale = next(float(header.get("loss_scale", UNSCALED)) for header in ready.values())
    norms = {lane: norm / scale for lane, norm in norms_by_lane(plan, round, ready).items()}
    overflowed = _overflowed(task, plan, round, ready, scale)
    reported: list[ReportedRow] = [row for header in ready.values() for row in header["rows"]]
    averaged, of_round = list[ReportedRow](), list[ReportedRow]()
    for row in reported:
        (averaged if parse_action(row.action).letter == AVERAGE else of_round).append(row)
    if averaged:
        measured.add_average(timeline(averaged))  # they followed the round before
    rows = timeline(of_round)
    sent_bytes: dict[tuple[str, str], int] = {}
    for device, header in ready.items():
        measured.add_peak(device, int(header["peak_memory_bytes"]))
        for peer, size in header["sent_bytes"].items():
            sent_bytes[device, peer] = int(size)
    round_s = max(row.end_s for row in rows)
    resting = plan.resting_in(round)
    as_forecast = not resting and not plan.refreshes_gates_in(round)
    measured.add(round, MeasuredRound(round_s, rows, sent_bytes), whole=as_forecast)
    stepped = [norm for lane, norm in norms.items() if lane not in overflowed]
    clipped = task.training.clip_norm is not None and bool(stepped)
    norm = torch.stack(stepped).max() if clipped else torch.tensor(0.0)
    if not bool(norm.isfinite()):
        raise Refused(
            f"training: the gradients of round {round} have a norm of {float(norm)}; choose a smaller learning_rate"
        )
    metrics = RoundMetrics(
        round=round,
        loss=_mean_loss(task, plan, ready),
        gradient_norm=float(norm) if clipped else None,
        learning_rate=learning_rate(task.training, round),
        round_s=round_s,
        energy_j=total_j(header.get("energy_j") for header in ready.values()),
        loss_scale=scale if task.model.mixed_precision == FP16 else None,
        overflowed=overflowed,
        resting=resting,
    )
    return metrics, norms


def _overflowed(task: TrainingTask, plan: Plan, round: int, ready: Reports, scale: float) -> tuple[str, ...]:
    """Return the lanes that take no step, and tell of them; a collector's are all or none."""
    told = {str(lane) for header in ready.values() for lane in header.get("overflowed", ())}
    lanes = tuple(lane.name for lane in plan.lanes if lane.name in told or (told and plan.collector))
    if lanes and scale <= UNSCALED:
        raise Refused(
            f"training: the gradients of round {round} are not finite in fp16, and the loss is not scaled any more; "
            "give model.mixed_precision bf16, or choose a smaller learning_rate"
        )
    if lanes:
        of = f" of {', '.join(lanes)}" if len(plan.lanes) > 1 else ""
        task.note(
            f"round {round}: the gradients{of} overflow in fp16, so no step is taken; the loss scale was {scale:g}"
        )
    return lanes


def timeline(reported: list[ReportedRow]) -> list[TimelineRow]:
    """Return rows from the start of the first one."""
    begin_s = min(row.start_s for row in reported)
    return [
        TimelineRow(
            device=row.device,
            lane=row.action.split("/")[0],
            action=row.action,
            start_s=row.start_s - begin_s,
            end_s=max(row.start_s, row.end_s) - begin_s,
            bytes=row.bytes,
        )
        for row in reported
    ]
