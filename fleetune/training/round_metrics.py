"""Metrics of a round, merged from what its devices report."""

from collections.abc import Mapping
from typing import Any

import torch

from fleetune.contracts.metrics import RoundMetrics, TimelineRow
from fleetune.contracts.mixed_precision import FP16
from fleetune.contracts.plan import AVERAGE, Plan, parse_action
from fleetune.errors import Refused
from fleetune.training.batches import lane_samples, lane_weights
from fleetune.training.energy import total_j
from fleetune.training.gradients import total_norm
from fleetune.training.loss_scale import UNSCALED
from fleetune.training.measurements import MeasuredRound, ReportedRow, RoundMeasurements
from fleetune.training.optimizer import learning_rate
from fleetune.training.task import TrainingTask

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
