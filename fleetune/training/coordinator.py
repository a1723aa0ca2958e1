"""Runs a training: starts the crew, commits rounds, keeps checkpoints, and leaves the trained model and its metrics."""

import errno
import json
import shutil
import statistics
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from fleetune.clock import Clock
from fleetune.clock.memory import memory_warnings
from fleetune.contracts import wire
from fleetune.contracts.metrics import DeviceAmount, LinkBytes, RoundMetrics, TimelineRow, TrainingMetrics
from fleetune.data import PreparedData
from fleetune.errors import Refused, TryAgain
from fleetune.models.export import copy_tokenizer, export_model
from fleetune.models.skeleton import saved_configuration
from fleetune.models.start import START
from fleetune.monitoring import EventLog
from fleetune.training.able import prove_able
from fleetune.training.checkpoints import Found, copy_state, trained_tensors
from fleetune.training.clipping import clip_scale, total_norm
from fleetune.training.commits import COMMITS, CommitLog, read_commits
from fleetune.training.crew import Crew
from fleetune.training.earlier import EVENTS, plan_start, take_up
from fleetune.training.measurements import Measurements
from fleetune.training.saving import Saving
from fleetune.training.task import TrainingTask
from fleetune.training.updates import learning_rate

FULL = (errno.ENOSPC, errno.EDQUOT)


def train(task: TrainingTask) -> TrainingMetrics:
    """Train to the last round, going on from the newest whole checkpoint in `task.work` or of earlier attempts.

    Writes `output/checkpoint` and `output/metrics`. TryAgain when a device is lost or a disk is full: what was
    committed up to the newest checkpoint is kept, and the next call goes on from there.
    """
    prove_able(task.plan.plan)
    try:
        return _train(task)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise TryAgain(
            f"{task.work}: its disk is full ({error.strerror}); make room and run again to go on from the newest "
            "checkpoint"
        ) from None


def _train(task: TrainingTask) -> TrainingMetrics:
    started_s = time.monotonic()
    found = take_up(task.work, task.earlier, task.note)
    rounds = _known(task, found)
    first_round = len(rounds)
    seen = Measurements()
    with EventLog(task.work / EVENTS) as events:  # without an `ended` line the next attempt continues the log
        events.started(task.training.rounds)
        if found is None or first_round < task.training.rounds:
            found, rounds = _run_rounds(task, found, rounds, events, seen)
        events.ended()
    metrics = _metrics(task, first_round, tuple(rounds), seen, time.monotonic() - started_s)
    clock = Clock(task.fleet, task.profile)
    forecast = {device: float(clock.memory_bytes(task.plan.plan, device)) for device in seen.peaks}
    for sentence in memory_warnings(task.fleet, forecast, seen.peaks):
        task.note(sentence)
    _leave(task, found, metrics)
    return metrics


def _known(task: TrainingTask, found: Found | None) -> list[RoundMetrics]:
    """Metrics of the rounds that are in the checkpoint, by its own copy of the commit log."""
    if found is None:
        if task.work.joinpath(COMMITS).exists():
            task.note(f"no checkpoint can be used: training begins anew, with round 0 of {task.training.rounds}")
        return []
    folder, mark = found
    rounds = read_commits(folder / COMMITS)
    if [r.round for r in rounds] != list(range(mark.round)):
        raise Refused(f"{folder / COMMITS}: does not list rounds 0 to {mark.round - 1}; delete {folder} and run again")
    left = f"goes on from round {mark.round} of {task.training.rounds}"
    whose = "another plan's" if plan_start(task.work) == mark.round else "an earlier attempt's"
    (task.resumed or task.note)(
        f"{left if mark.round < task.training.rounds else 'all rounds are done'}, by {whose} checkpoint"
    )
    if not task.work.joinpath(COMMITS).exists() and plan_start(task.work) == mark.round:
        return rounds  # the other plan's log is in the checkpoint
    try:
        logged = read_commits(task.work / COMMITS)[: mark.round]
    except (Refused, OSError):
        logged = []
    if logged != rounds:
        task.note(f"{task.work / COMMITS} has lost some of {mark.round} rounds: they are taken from the checkpoint")
    return rounds


def _run_rounds(
    task: TrainingTask, found: Found | None, rounds: list[RoundMetrics], events: EventLog, seen: Measurements
) -> tuple[Found | None, list[RoundMetrics]]:
    """Rounds from the checkpoint's to the last, each a transaction; the last checkpoint and metrics of all rounds."""
    patience_s = max(120.0, 50.0 * task.plan.objective)
    leaders = tuple(s.devices[0] for lane in task.plan.plan.lanes for s in lane.segments)
    saving = Saving(task.training, task.work, found, task.clock)
    with closing(CommitLog(task.work / COMMITS, rounds)) as log, Crew(task, found, events) as crew:
        for round in range(len(rounds), task.training.rounds):
            ready = crew.gather("ready", crew.devices, patience_s)
            norm = total_norm(header["norms"] for header in ready.values())
            metrics = _measured(task, round, ready, seen, norm)
            log.commit(metrics)
            checkpoint = saving.due(round + 1)
            if checkpoint:
                saving.prepare(round + 1)
            scale = clip_scale(task.training, norm)
            crew.tell("commit", {"round": round, "scale": scale, "checkpoint": checkpoint})
            events.committed(round)
            if checkpoint:
                saving.save(round + 1, crew, leaders, log.text)
            samples = task.plan.plan.batch_samples
            last = task.training.rounds
            detail = f"round {round + 1} of {last}, loss {metrics.loss:.4g}"
            task.progress("training", (round + 1) * samples, last * samples, "samples", detail)
    return saving.newest, log.rounds


def _measured(
    task: TrainingTask, round: int, ready: dict[str, dict[str, Any]], seen: Measurements, norm: torch.Tensor
) -> RoundMetrics:
    """Put together what the devices report of a round."""
    odd = [device for device, header in ready.items() if header["round"] != round]
    if odd:
        raise TryAgain(f"device {odd[0]} reports round {ready[odd[0]]['round']} while {round} is due")
    raw = [row for header in ready.values() for row in header["rows"]]
    begin_s = min(row[2] for row in raw)
    rows = [
        TimelineRow(device=d, lane=a.split("/")[0], action=a, start_s=s - begin_s, end_s=max(s, e) - begin_s, bytes=n)
        for d, a, s, e, n in raw
    ]
    sent_bytes: dict[tuple[str, str], int] = {}
    for device, header in ready.items():
        seen.peaks[device] = max(seen.peaks.get(device, 0), int(header["peak_memory_bytes"]))
        for peer, size in header["sent_bytes"].items():
            sent_bytes[device, peer] = int(size)
    round_s = max(row.end_s for row in rows)
    seen.add(round, round_s, rows, sent_bytes)
    clipped = task.training.clip_norm is not None
    if clipped and not bool(norm.isfinite()):
        raise Refused(
            f"training: the gradients of round {round} have a norm of {float(norm)}; choose a smaller learning_rate"
        )
    return RoundMetrics(
        round=round,
        loss=sum(float(header["loss"]) for header in ready.values()),
        gradient_norm=float(norm) if clipped else None,
        learning_rate=learning_rate(task.training, round),
        round_s=round_s,
    )


def _metrics(
    task: TrainingTask, first_round: int, rounds: tuple[RoundMetrics, ...], seen: Measurements, wall_s: float
) -> TrainingMetrics:
    """What the train stage reports; of an attempt that had no round left, the earlier attempts' rounds only."""
    by_plan = plan_start(task.work)
    median_s = statistics.median(r.round_s for r in rounds[by_plan:] or rounds)
    rows, sent = seen.typical(median_s)
    timeline = sorted(rows, key=lambda r: (r.start_s, r.device))
    busy = {d: sum(r.end_s - r.start_s for r in timeline if r.device == d and "R" not in r.action.split("/")[1])
            for d in task.plan.plan.devices}  # fmt: skip
    return TrainingMetrics(
        rounds=rounds,
        timeline=tuple(timeline),
        peak_memory_bytes=_amounts(seen.peaks.items()),
        busy_s=_amounts(busy.items()),
        link_bytes=tuple(LinkBytes(source=a, target=b, bytes=n) for (a, b), n in sorted(sent.items())),
        median_round_s=median_s,
        wall_s=wall_s,
        resumed_from_round=first_round,
        plan_from_round=by_plan,
    )


def _amounts(pairs: Iterable[tuple[str, float]]) -> tuple[DeviceAmount, ...]:
    return tuple(DeviceAmount(device=device, amount=float(amount)) for device, amount in pairs)


def _leave(task: TrainingTask, found: Found | None, metrics: TrainingMetrics) -> None:
    """Write the checkpoint and metrics artifacts; the model is made of the very files that are left beside it."""
    assert found is not None, "the last round is always kept"
    checkpoint = task.output / "checkpoint"
    state = copy_state(found, checkpoint / "state")
    config = saved_configuration(task.profile_folder / "model")
    model = export_model(config, task.model, task.profile_folder / START, trained_tensors(state), checkpoint)
    processing = PreparedData(task.data_folder).processing
    if processing is not None:
        copy_tokenizer(processing, model)
    (checkpoint / "round.json").write_text(json.dumps({"round": found[1].round}) + "\n", encoding="utf-8")
    wire.write(metrics, task.output / "metrics" / "training.json")
    shutil.copyfile(task.work / EVENTS, _made(task.output / "metrics") / EVENTS)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
