"""Runs a training: starts workers, commits rounds, keeps checkpoints, and writes the trained model and its metrics."""

import errno
import functools
import json
import shutil
import statistics
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fleetune.checks import too_few_samples, untrainable_features
from fleetune.clock import Clock
from fleetune.clock.costs import memory_warnings
from fleetune.contracts import json_io
from fleetune.contracts.metrics import DeviceAmount, LinkBytes, RoundMetrics, TrainingMetrics
from fleetune.contracts.plan import Plan
from fleetune.data.answer_ends import folder_ends
from fleetune.data.prepared_data import PreparedData
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.models.export import copy_tokenizer, export_model
from fleetune.models.init_weights import INIT_WEIGHTS
from fleetune.models.skeleton import saved_configuration
from fleetune.monitoring import EventLog
from fleetune.training.checkpoints import (
    StoredCheckpoint,
    copy_state,
    drop_incomplete,
    trained_tensors,
)
from fleetune.training.commit_log import EVENTS, adopt_newest, read_plan_start, resume
from fleetune.training.local_data import check_nothing_raw_leaves
from fleetune.training.measurements import MeasuredRound, RoundMeasurements, busy_s
from fleetune.training.task import TrainingTask
from fleetune.training.training_loop import TrainingLoop
from fleetune.training.validation import Validation

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def train(task: TrainingTask) -> TrainingMetrics:
    """Train to the last round, resuming from the newest complete checkpoint in `task.work` or of earlier attempts.

    Writes `output/checkpoint` and `output/metrics`. TryAgain if a disk is full, or a device is lost that the others
    cannot do without: the newest checkpoint is kept, and the next call resumes from it. Refused if the plan has
    features that training does not implement, or gives a device too few samples for its units.
    """
    validate_supported(task.plan.plan)
    for fault in too_few_samples(task.plan.plan, task.profile):
        raise Refused(f"plan: {fault}")
    task.training.check_scored_rounds(task.plan.plan.average_every_rounds, task.plan.plan.strategy)
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
    lanes = [lane.name for lane in task.plan.plan.lanes]
    found = adopt_newest(task.work, task.earlier, task.note, lanes, owned=bool(task.local))
    drop_incomplete(task.work)
    rounds = resume(task, found)
    task = replace(task, dealt=read_plan_start(task.work).dealt)
    first_round = len(rounds)
    validation = Validation(task.training, task.work, task.score, task.note)
    validation.resume(first_round, task.earlier)
    measured = RoundMeasurements()
    measured.moved(rounds[read_plan_start(task.work).from_round :])
    with EventLog(task.work / EVENTS) as events:  # without an `ended` line the next attempt continues the log
        events.started(task.training.rounds)
        if found is None or first_round < task.training.rounds or not validation.complete:
            found, rounds = TrainingLoop(task, found, rounds, events, measured, validation).run()
        events.ended()
    assert found is not None, "the last round is always saved"
    result = validation.result(found)
    metrics = replace(
        _training_metrics(task, first_round, tuple(rounds), measured, time.monotonic() - started_s),
        scores=tuple(validation.scores),
        result_rounds=result.mark.round if result is not found else None,
        chosen=validation.chooses,
        ended_early=validation.ended_early,
    )
    for sentence in memory_warnings(task.fleet, _forecast_bytes(task, measured), measured.peaks):
        task.note(sentence)
    _write_artifacts(task, result, metrics, measured.plans.values())
    return metrics


def _forecast_bytes(task: TrainingTask, measured: RoundMeasurements) -> dict[str, float]:
    """Return the most bytes that each device was to need under one of the plans."""
    clock, plans = Clock(task.fleet, task.profile), (task.plan.plan, *measured.plans.values())
    return {device: float(max(clock.memory_bytes(plan, device) for plan in plans)) for device in measured.peaks}


def _training_metrics(
    task: TrainingTask, first_round: int, rounds: tuple[RoundMetrics, ...], measured: RoundMeasurements, wall_s: float
) -> TrainingMetrics:
    """Return the metrics of the whole training; without a new round they hold the earlier attempts' rounds only."""
    start = read_plan_start(task.work)
    by_plan = start.from_round
    of_plan = rounds[by_plan : measured.revised_from_round]
    whole = [each for each in of_plan if each.is_whole]
    median_s = statistics.median(each.round_s for each in whole or of_plan or rounds)
    typical = measured.median_round(median_s) or MeasuredRound(median_s, [], {})
    timeline = sorted(typical.rows, key=lambda r: (r.start_s, r.device))
    busy = busy_s(timeline)
    return TrainingMetrics(
        rounds=rounds,
        timeline=tuple(timeline),
        peak_memory_bytes=_amounts((measured.peaks_of_first or measured.peaks).items()),
        busy_s=_amounts((device, busy.get(device, 0.0)) for device in task.plan.plan.devices),
        link_bytes=tuple(LinkBytes(source=a, target=b, bytes=n) for (a, b), n in sorted(typical.sent_bytes.items())),
        median_round_s=median_s,
        wall_s=wall_s,
        resumed_from_round=first_round,
        plan_from_round=by_plan,
        average=tuple(measured.median_average()),
        revised_from_round=measured.revised_from_round,
        replanned_from_round=measured.replanned_from_round,
        gates_from_round=start.plan_from_round,
    )


def _amounts(pairs: Iterable[tuple[str, float]]) -> tuple[DeviceAmount, ...]:
    return tuple(DeviceAmount(device=device, amount=float(amount)) for device, amount in pairs)


def _write_artifacts(
    task: TrainingTask, found: StoredCheckpoint, metrics: TrainingMetrics, later: Iterable[Plan]
) -> None:
    """Write the checkpoint and metrics artifacts; the model is exported from the state files that lie beside it.

    later: plans that followed the first one in this attempt.
    """
    checkpoint = task.output / "checkpoint"
    state = copy_state(found, checkpoint / "state")
    config = saved_configuration(task.model_folder / "model")
    model = export_model(config, task.model, task.model_folder / INIT_WEIGHTS, trained_tensors(state), checkpoint)
    processing = PreparedData(task.data_folder).processing
    if processing is not None:
        copy_tokenizer(processing, model, functools.partial(folder_ends, note=task.note))
    (checkpoint / "round.json").write_text(json.dumps({"round": found.mark.round}) + "\n", encoding="utf-8")
    json_io.write(metrics, task.output / "metrics" / "training.json")
    if plans := [json_io.dump(plan) for plan in later]:
        (task.output / "metrics" / "plans.json").write_text(json.dumps(plans, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(task.work / EVENTS, _created(task.output / "metrics") / EVENTS)


def _created(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
