"""Runs a training: starts the crew, commits rounds, keeps checkpoints, and leaves the trained model and its metrics."""

import json
import shutil
import statistics
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetune.contracts import wire
from fleetune.contracts.metrics import RoundMetrics, TrainingMetrics
from fleetune.contracts.timeline import DeviceAmount, LinkBytes, Row
from fleetune.data import PreparedData
from fleetune.errors import TryAgain
from fleetune.models.export import copy_tokenizer, export_model
from fleetune.models.skeleton import saved_configuration
from fleetune.models.start import START
from fleetune.monitoring import EventLog
from fleetune.training.able import prove_able
from fleetune.training.checkpoints import folder_of, mark_whole, newest_whole, trained_tensors
from fleetune.training.commits import CommitLog, read_commits
from fleetune.training.crew import Crew
from fleetune.training.task import TrainingTask
from fleetune.training.updates import clip_scale, learning_rate

COMMITS, EVENTS = "commits.jsonl", "events.jsonl"
SAVING_S = 600.0


@dataclass(slots=True)
class _Seen:
    """What this attempt measured."""

    timelines: dict[int, list[Row]] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    sent_bytes: dict[int, dict[tuple[str, str], int]] = field(default_factory=dict)


def train(task: TrainingTask) -> TrainingMetrics:
    """Train to the last round, going on from the newest whole checkpoint in `task.work`.

    Writes `output/checkpoint` and `output/metrics`. TryAgain when a device is lost: what was committed up to the
    newest checkpoint is kept, and the next call goes on from there.
    """
    started_s = time.monotonic()
    prove_able(task.plan.plan)
    found = newest_whole(task.work)
    first_round = found[1].round if found else 0
    seen = _Seen()
    with EventLog(task.work / EVENTS) as events:  # without an `ended` line the next attempt continues the log
        events.started(task.training.rounds)
        if first_round < task.training.rounds:
            _run_rounds(task, first_round, events, seen)
        events.ended()
    metrics = _metrics(task, first_round, seen, time.monotonic() - started_s)
    _leave(task, metrics)
    return metrics


def _run_rounds(task: TrainingTask, first_round: int, events: EventLog, seen: _Seen) -> None:
    """Rounds from `first_round` to the last, each a transaction."""
    patience_s = max(120.0, 50.0 * task.plan.objective)
    leaders = tuple(s.devices[0] for lane in task.plan.plan.lanes for s in lane.segments)
    with closing(CommitLog(task.work / COMMITS, first_round)) as log, Crew(task, first_round, events) as crew:
        for round in range(first_round, task.training.rounds):
            ready = crew.gather("ready", crew.devices, patience_s)
            metrics = _measured(task, round, ready, seen)
            log.commit(metrics)
            last = round + 1 == task.training.rounds
            checkpoint = last or (round + 1) % task.training.checkpoint_every_rounds == 0
            scale = clip_scale(task.training, metrics.gradient_norm)
            crew.tell("commit", {"round": round, "scale": scale, "checkpoint": checkpoint})
            events.committed(round)
            if checkpoint:
                saved = crew.gather("saved", leaders, SAVING_S)
                crew.collect(leaders, folder_of(task.work, round + 1))
                mark_whole(task.work, round + 1, tuple(str(h["file"]) for h in saved.values()))
            samples = task.plan.plan.batch_samples
            task.progress("training", (round + 1) * samples, task.training.rounds * samples, "samples")


def _measured(task: TrainingTask, round: int, ready: dict[str, dict[str, Any]], seen: _Seen) -> RoundMetrics:
    """Put together what the devices report of a round."""
    odd = [device for device, header in ready.items() if header["round"] != round]
    if odd:
        raise TryAgain(f"device {odd[0]} reports round {ready[odd[0]]['round']} while {round} is due")
    raw = [row for header in ready.values() for row in header["rows"]]
    begin_s = min(row[2] for row in raw)
    rows = [
        Row(device=d, lane=a.split("/")[0], action=a, start_s=s - begin_s, end_s=max(s, e) - begin_s, bytes=n)
        for d, a, s, e, n in raw
    ]
    seen.timelines[round] = rows
    for device, header in ready.items():
        seen.peaks[device] = max(seen.peaks.get(device, 0), int(header["peak_memory_bytes"]))
        for peer, size in header["sent_bytes"].items():
            seen.sent_bytes.setdefault(round, {})[device, peer] = int(size)
    clipped = task.training.clip_norm is not None
    return RoundMetrics(
        round=round,
        loss=sum(float(header["loss"]) for header in ready.values()),
        gradient_norm=sum(float(h["square_norm"]) for h in ready.values()) ** 0.5 if clipped else None,
        learning_rate=learning_rate(task.training, round),
        round_s=max(row.end_s for row in rows),
    )


def _metrics(task: TrainingTask, first_round: int, seen: _Seen, wall_s: float) -> TrainingMetrics:
    """What the train stage reports; of an attempt that had no round left, the earlier attempts' rounds only."""
    rounds = tuple(read_commits(task.work / COMMITS))
    median_s = statistics.median(r.round_s for r in rounds)
    typical = min(seen.timelines, key=lambda r: (abs(rounds[r].round_s - median_s), r), default=None)
    timeline = sorted(
        seen.timelines.get(typical, []) if typical is not None else [], key=lambda r: (r.start_s, r.device)
    )
    busy = {d: sum(r.end_s - r.start_s for r in timeline if r.device == d and "R" not in r.action.split("/")[1])
            for d in task.plan.plan.devices}  # fmt: skip
    sent = seen.sent_bytes.get(typical, {}) if typical is not None else {}
    return TrainingMetrics(
        rounds=rounds,
        timeline=tuple(timeline),
        peak_memory_bytes=_amounts(seen.peaks.items()),
        busy_s=_amounts(busy.items()),
        link_bytes=tuple(LinkBytes(source=a, target=b, bytes=n) for (a, b), n in sorted(sent.items())),
        median_round_s=median_s,
        wall_s=wall_s,
        resumed_from_round=first_round,
    )


def _amounts(pairs: Iterable[tuple[str, float]]) -> tuple[DeviceAmount, ...]:
    return tuple(DeviceAmount(device=device, amount=float(amount)) for device, amount in pairs)


def _leave(task: TrainingTask, metrics: TrainingMetrics) -> None:
    """Write the checkpoint and metrics artifacts."""
    found = newest_whole(task.work)
    if found is None:
        raise TryAgain(f"{task.work}: no whole checkpoint was left; run again")
    folder, mark = found
    checkpoint = task.output / "checkpoint"
    checkpoint.mkdir(parents=True, exist_ok=True)
    config = saved_configuration(task.profile_folder / "model")
    model = export_model(config, task.model, task.profile_folder / START, trained_tensors(folder), checkpoint)
    tokenizer = PreparedData(task.data_folder).tokenizer
    if tokenizer is not None:
        copy_tokenizer(tokenizer, model)
    shutil.copytree(folder, checkpoint / "state", dirs_exist_ok=True)
    (checkpoint / "round.json").write_text(json.dumps({"round": mark.round}) + "\n", encoding="utf-8")
    wire.write(metrics, task.output / "metrics" / "training.json")
    shutil.copyfile(task.work / EVENTS, _made(task.output / "metrics") / EVENTS)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
