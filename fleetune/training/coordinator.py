"""Runs a training: starts workers, commits rounds, keeps checkpoints, and writes the trained model and its metrics."""

import errno
import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fleetune.checks import untrainable_features
from fleetune.clock import Clock
from fleetune.clock.costs import memory_warnings
from fleetune.contracts import json_io
from fleetune.contracts.metrics import DeviceAmount, LinkBytes, RoundMetrics, TimelineRow, TrainingMetrics
from fleetune.contracts.plan import AVERAGE, Plan, parse_action
from fleetune.data.prepared_data import PreparedData
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.models.export import copy_tokenizer, export_model
from fleetune.models.init_weights import INIT_WEIGHTS
from fleetune.models.skeleton import saved_configuration
from fleetune.monitoring import EventLog
from fleetune.training.batches import lane_samples, lane_weights
from fleetune.training.checkpoints import (
    COMMITS,
    CheckpointSaver,
    StoredCheckpoint,
    copy_state,
    drop_incomplete,
    trained_tensors,
)
from fleetune.training.gradients import clip_scale, total_norm
from fleetune.training.local_data import check_nothing_raw_leaves
from fleetune.training.measurements import MeasuredRound, ReportedRow, RoundMeasurements, busy_s
from fleetune.training.moves import after_rounds
from fleetune.training.optimizer import learning_rate
from fleetune.training.recovery import EVENTS, CommitLog, adopt_newest, logged_beyond, read_plan_start, resume
from fleetune.training.replanning import Replanner
from fleetune.training.roles import savers_of
from fleetune.training.task import TrainingTask
from fleetune.training.worker_group import StopAsked, WorkerGroup

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def train(task: TrainingTask) -> TrainingMetrics:
    """Train to the last round, resuming from the newest complete checkpoint in `task.work` or of earlier attempts.

    Writes `output/checkpoint` and `output/metrics`. TryAgain if a device is lost or a disk is full: the newest
    checkpoint is kept, and the next call resumes from it. Refused if the plan has features that training does not
    implement.
    """
    validate_supported(task.plan.plan)
    if task.local:
        check_nothing_raw_leaves(task)
    try:
        return _train(task)
    except FleetuneError:
        drop_incomplete(task.work)
        raise
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        drop_incomplete(task.work)
        raise TryAgain(
            f"{task.work}: its disk is full ({error.strerror}); make room and run again to go on from the newest "
            "checkpoint"
        ) from None


def validate_supported(plan: Plan) -> None:
    """Refuse a plan with features that workers do not implement, naming all of them."""
    found = untrainable_features(plan)
    if found:
        raise Refused(
            f"plan: strategy {plan.strategy} made it with {', '.join(found)}; look at this plan with --until plan, or "
            "train with another strategy"
        )


def _train(task: TrainingTask) -> TrainingMetrics:
    started_s = time.monotonic()
    found = adopt_newest(task.work, task.earlier, task.note)
    drop_incomplete(task.work)
    rounds = resume(task, found)
    first_round = len(rounds)
    measured = RoundMeasurements()
    with EventLog(task.work / EVENTS) as events:  # without an `ended` line the next attempt continues the log
        events.started(task.training.rounds)
        if found is None or first_round < task.training.rounds:
            found, rounds = _run_rounds(task, found, rounds, events, measured)
        events.ended()
    metrics = _training_metrics(task, first_round, tuple(rounds), measured, time.monotonic() - started_s)
    clock = Clock(task.fleet, task.profile)
    forecast = {device: float(clock.memory_bytes(task.plan.plan, device)) for device in measured.peaks}
    for sentence in memory_warnings(task.fleet, forecast, measured.peaks):
        task.note(sentence)
    _write_artifacts(task, found, metrics)
    return metrics


def _run_rounds(
    task: TrainingTask,
    found: StoredCheckpoint | None,
    rounds: list[RoundMetrics],
    events: EventLog,
    measured: RoundMeasurements,
) -> tuple[StoredCheckpoint | None, list[RoundMetrics]]:
    """Run the remaining rounds, each as a transaction; return the last checkpoint and the metrics of all rounds."""
    patience_s = max(120.0, 50.0 * task.plan.objective)
    savers = savers_of(task.plan.plan)
    saver = CheckpointSaver(task.training, task.work, found, task.clock)
    logged = {metrics.round: metrics.moves for metrics in logged_beyond(task.work, rounds)}
    own_rounds = rounds[read_plan_start(task.work).from_round :]
    task = replace(task, plan=replace(task.plan, plan=after_rounds(task.plan.plan, own_rounds)))
    replanner = Replanner(task.plan.plan, task.fleet, task.profile, logged)
    log = CommitLog(task.work / COMMITS, rounds)
    with closing(log), WorkerGroup(task, found, events) as workers, task.stop.deferred():
        for round in range(len(rounds), task.training.rounds):
            try:
                ready = workers.gather("ready", workers.devices, patience_s, lambda: task.stop.asked)
            except StopAsked:
                raise _stopped(task, round, lambda done: saver.save_now(done, workers, savers, log.text)) from None
            norms = _norms_by_lane(task.plan.plan, ready)
            metrics = _round_metrics(task, round, ready, measured, norms)
            if replanner.plan.replan_every_rounds:
                replanner.observe(task.measured_busy(round, busy_s(measured.newest)))
                metrics = replace(metrics, moves=dict(replanner.after(round)))
            log.commit(metrics)
            checkpoint = saver.due(round + 1)
            if checkpoint:
                saver.prepare(round + 1)
            scales = {lane: clip_scale(task.training, norm) for lane, norm in norms.items()}
            answer = {"round": round, "scales": scales, "checkpoint": checkpoint, "moves": metrics.moves}
            workers.broadcast("commit", answer)
            events.committed(round)
            if checkpoint:
                saver.save(round + 1, workers, savers, log.text)
            samples = task.plan.plan.batch_samples
            last = task.training.rounds
            detail = f"round {round + 1} of {last}, loss {metrics.loss:.4g}"
            task.progress("training", (round + 1) * samples, last * samples, "samples", detail)
    return saver.newest, log.rounds


def _stopped(task: TrainingTask, done: int, save: Callable[[int], None]) -> TryAgain:
    """Save the state after `done` committed rounds; return the error that ends the training."""
    if done == 0:
        return TryAgain("ended in its first round; run it again to begin again")
    where = f"ended after round {done} of {task.training.rounds}"
    try:
        save(done)
    except FleetuneError as error:
        return TryAgain(f"{where}, but a checkpoint was not possible ({error})")
    return TryAgain(f"{where}, with a checkpoint of it; run it again to go on")


def _norms_by_lane(plan: Plan, ready: dict[str, dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Return the norm of each lane's gradients; with a collector all have the norm of their sum."""
    if plan.collector:
        norm = total_norm(packed for header in ready.values() for packed in header["norms"].values())
        return dict.fromkeys((lane.name for lane in plan.lanes), norm)
    reports = {
        lane.name: [header["norms"][lane.name] for header in ready.values() if lane.name in header["norms"]]
        for lane in plan.lanes
    }
    return {lane: total_norm(packed) for lane, packed in reports.items()}


def _mean_loss(task: TrainingTask, ready: dict[str, dict[str, Any]]) -> float:
    """Return the mean of the lanes' losses, weighted by their samples."""
    plan, losses = task.plan.plan, [header["losses"] for header in ready.values()]
    if len(plan.lanes) == 1:
        return sum(float(loss) for by_lane in losses for loss in by_lane.values())
    local = {device: data.samples for device, data in task.local.items()}
    weights = lane_weights(lane_samples(plan, task.data_folder, local))
    return sum(weights[lane] * float(loss) for by_lane in losses for lane, loss in by_lane.items())


def _round_metrics(
    task: TrainingTask,
    round: int,
    ready: dict[str, dict[str, Any]],
    measured: RoundMeasurements,
    norms: dict[str, torch.Tensor],
) -> RoundMetrics:
    """Merge the devices' reports of a round into `measured` and the round's metrics.

    norms: of each lane's gradients; the largest is reported.

    TryAgain if a device reports another round; Refused if clipping is on and the norm is not finite.
    """
    odd = [device for device, header in ready.items() if header["round"] != round]
    if odd:
        raise TryAgain(f"device {odd[0]} reports round {ready[odd[0]]['round']} while {round} is due")
    reported: list[ReportedRow] = [row for header in ready.values() for row in header["rows"]]
    averaged, of_round = list[ReportedRow](), list[ReportedRow]()
    for row in reported:
        (averaged if parse_action(row.action).letter == AVERAGE else of_round).append(row)
    if averaged:
        measured.averages.append(_timeline(averaged))  # they followed the round before
    rows = _timeline(of_round)
    sent_bytes: dict[tuple[str, str], int] = {}
    for device, header in ready.items():
        measured.peaks[device] = max(measured.peaks.get(device, 0), int(header["peak_memory_bytes"]))
        for peer, size in header["sent_bytes"].items():
            sent_bytes[device, peer] = int(size)
    round_s = max(row.end_s for row in rows)
    measured.add(round, MeasuredRound(round_s, rows, sent_bytes))
    clipped, norm = task.training.clip_norm is not None, torch.stack(list(norms.values())).max()
    if clipped and not bool(norm.isfinite()):
        raise Refused(
            f"training: the gradients of round {round} have a norm of {float(norm)}; choose a smaller learning_rate"
        )
    return RoundMetrics(
        round=round,
        loss=_mean_loss(task, ready),
        gradient_norm=float(norm) if clipped else None,
        learning_rate=learning_rate(task.training, round),
        round_s=round_s,
    )


def _timeline(reported: list[ReportedRow]) -> list[TimelineRow]:
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


def _training_metrics(
    task: TrainingTask, first_round: int, rounds: tuple[RoundMetrics, ...], measured: RoundMeasurements, wall_s: float
) -> TrainingMetrics:
    """Return the metrics of the whole training; without a new round they hold the earlier attempts' rounds only."""
    by_plan = read_plan_start(task.work).from_round
    median_s = statistics.median(r.round_s for r in rounds[by_plan:] or rounds)
    typical = measured.median_round(median_s) or MeasuredRound(median_s, [], {})
    timeline = sorted(typical.rows, key=lambda r: (r.start_s, r.device))
    busy = busy_s(timeline)
    return TrainingMetrics(
        rounds=rounds,
        timeline=tuple(timeline),
        peak_memory_bytes=_amounts(measured.peaks.items()),
        busy_s=_amounts((device, busy.get(device, 0.0)) for device in task.plan.plan.devices),
        link_bytes=tuple(LinkBytes(source=a, target=b, bytes=n) for (a, b), n in sorted(typical.sent_bytes.items())),
        median_round_s=median_s,
        wall_s=wall_s,
        resumed_from_round=first_round,
        plan_from_round=by_plan,
        average=tuple(measured.median_average()),
    )


def _amounts(pairs: Iterable[tuple[str, float]]) -> tuple[DeviceAmount, ...]:
    return tuple(DeviceAmount(device=device, amount=float(amount)) for device, amount in pairs)


def _write_artifacts(task: TrainingTask, found: StoredCheckpoint | None, metrics: TrainingMetrics) -> None:
    """Write the checkpoint and metrics artifacts; the model is exported from the state files that lie beside it."""
    assert found is not None, "the last round is always saved"
    checkpoint = task.output / "checkpoint"
    state = copy_state(found, checkpoint / "state")
    config = saved_configuration(task.model_folder / "model")
    model = export_model(config, task.model, task.model_folder / INIT_WEIGHTS, trained_tensors(state), checkpoint)
    processing = PreparedData(task.data_folder).processing
    if processing is not None:
        copy_tokenizer(processing, model)
    (checkpoint / "round.json").write_text(json.dumps({"round": found.mark.round}) + "\n", encoding="utf-8")
    json_io.write(metrics, task.output / "metrics" / "training.json")
    shutil.copyfile(task.work / EVENTS, _created(task.output / "metrics") / EVENTS)


def _created(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
