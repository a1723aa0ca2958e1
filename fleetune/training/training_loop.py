"""The loop of a training: what happens is told to the conductor, and what it says is done.

`recovery.conductor` decides; this carries out: messages to workers, the commit log, checkpoints, another plan.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.fleet import PROCESS
from fleetune.contracts.metrics import RoundMetrics
from fleetune.errors import FleetuneError, Infeasible, Refused, TryAgain, by_exit_code, first_line
from fleetune.filesystem import STORE, disk_error
from fleetune.monitoring import EventLog
from fleetune.program.in_force import after_rounds
from fleetune.recovery import protocol as p
from fleetune.recovery.conductor import Conductor, Step
from fleetune.recovery.holdings import History
from fleetune.recovery.transfers import DISK
from fleetune.training.checkpoint_saver import CheckpointSaver, WrittenShards
from fleetune.training.checkpoints import COMMITS, SAVE, StoredCheckpoint, folder_of
from fleetune.training.commit_log import CommitLog, logged_beyond, read_plan_start
from fleetune.training.decisions import Decisions
from fleetune.training.device_watch import FellSilent, Found, HeardAgain, Lost, MessageLost, NotBack, Said
from fleetune.training.exchange import attempt_of
from fleetune.training.gradients import next_scale, step_scales
from fleetune.training.liveness import Patience
from fleetune.training.measurements import RoundMeasurements, round_metrics
from fleetune.training.migration import Migration, describe_version, parse_holdings, parse_version
from fleetune.training.pace import PaceWatch
from fleetune.training.parcels import FETCH, StoredParcels, parcels_of
from fleetune.training.revisions import Revisions
from fleetune.training.task import TrainingTask
from fleetune.training.validation import Validation
from fleetune.training.worker_group import WorkerGroup


class TrainingLoop:
    """Runs the remaining rounds of a training, each as a transaction."""

    def __init__(
        self,
        task: TrainingTask,
        found: StoredCheckpoint | None,
        rounds: list[RoundMetrics],
        events: EventLog,
        measured: RoundMeasurements,
        validation: Validation,
    ) -> None:
        """found: the checkpoint to resume from. rounds: those in it. measured: receives what devices report."""
        self._events, self._measured = events, measured
        again = logged_beyond(task.work, rounds)
        self._start = read_plan_start(task.work)
        plan = after_rounds(task.plan.plan, rounds, self._start.from_round, self._start.plan_from_round)
        self._task = task = replace(task, plan=replace(task.plan, plan=plan))
        self._decisions = Decisions(task, plan, again)
        self._saver = CheckpointSaver(task.training, task.work, found, plan.average_every_rounds, task.clock)
        self._validation = validation
        self._saver.also_kept = lambda: validation.kept
        self._log = CommitLog(task.work / COMMITS, rounds)
        self._revisions = Revisions(task)
        self._conductor = Conductor(
            rounds=task.training.rounds,
            sizes_bytes=self._revisions.sizes_bytes,
            links={(link.source, link.target): link.bytes_per_s for link in task.fleet.links},
            replans_stragglers=task.training.replan_stragglers and task.around_stragglers is not None,
            scores_every_rounds=validation.every_rounds,
            returns=task.returns,
            waits=bool(plan.collector),
        )
        self._ready: dict[str, Mapping[str, Any]] = {}
        self._commit: dict[str, Any] | None = None
        self._metrics: RoundMetrics | None = None
        self._shards = WrittenShards()
        self._newest_loss: FleetuneError | None = None
        self._stored: StoredParcels | None = None
        """Of the checkpoint that devices are going back to."""
        self._begun = False
        """True once a round was started."""
        self._patience = Patience(lambda: self._workers.now_s())
        self._timers: list[tuple[float, p.StartAgain | p.Wait]] = []
        """What is due at a time."""
        self._end: p.End | None = None
        self._cause: p.Event | None = None
        self._pace = PaceWatch(task)
        self._carries_out: Mapping[type[p.Command], Callable[[Any], Iterable[p.Event]]] = {
            p.Abort: self._abort,
            p.Dismiss: self._dismiss,
            p.StartAgain: self._set_timer,
            p.Wait: self._set_timer,
            p.Blame: self._blame,
            p.Probe: self._probe,
            p.Report: self._report,
            p.Revise: self._revise,
            p.Move: self._move,
            p.RewindLog: self._rewind,
            p.DropOld: self._free,
            p.StartRound: self._start_round,
            p.LogCommit: self._log_commit,
            p.SendCommit: self._send_commit,
            p.Save: self._save,
            p.CompleteCheckpoint: self._complete,
            p.ReleaseBackups: self._free,
            p.Score: self._score,
            p.End: self._note_end,
        }

    def run(self) -> tuple[StoredCheckpoint | None, list[RoundMetrics]]:
        """Return the last checkpoint and the metrics of all rounds.

        TryAgain if the devices that are left cannot go on, a disk is full or the run is told to end; Refused and
        Infeasible for what another attempt would not change.
        """
        newest = self._saver.newest
        history = History.of(len(self._log.rounds))
        on_disk = (history.version,) if newest else ()
        try:
            with WorkerGroup(self._task, newest.folder if newest else None, self._events) as self._workers:
                self._workers.plan_in_force = lambda: self._decisions.plan
                with self._task.stop.deferred():
                    self._follow(
                        self._conductor.start(1, self._workers.living, history, on_disk, self._task.spares), None
                    )
                    while self._end is None:
                        for event in self._events_of(self._workers.receive()):
                            self._tell(event)
                    if self._end.exit_code:
                        raise end_error(self._end, self._cause, self._newest_loss)
        finally:
            self._validation.close()
            self._log.close()
        return self._saver.newest, self._log.rounds

    def _tell(self, event: p.Event) -> None:
        """Tell the conductor of an event, and carry out what follows from it."""
        pending = deque([event])
        while pending and self._end is None:
            event = pending.popleft()
            pending.extendleft(reversed(self._follow(self._conductor.step(self._state, event), event)))

    def _follow(self, step: Step, cause: p.Event | None) -> list[p.Event]:
        """Carry commands out; return what they lead to at once."""
        self._state, commands = step
        self._cause = cause
        return [event for command in commands for event in self._carries_out[type(command)](command)]

    def _events_of(self, found: Iterable[Found]) -> Iterable[p.Event]:
        """Yield what workers say and what was lost, a request to end, and who lets others wait too long."""
        for each in found:
            yield from self._found(each)
        if (answer := self._validation.answer()) is not None and self._state.history.rounds == answer.rounds:
            yield p.Scored(version=self._state.history.version, enough=answer.enough)
        if self._task.stop.asked and not self._state.stop:
            yield p.StopAsked()
        now_s = self._workers.now_s()
        due = [each for at_s, each in self._timers if at_s <= now_s]
        self._timers = [(at_s, each) for at_s, each in self._timers if at_s > now_s]
        for command in due:
            if isinstance(command, p.Wait):
                yield p.Waited(attempt=command.attempt)
            elif self._end is None and not self._state.stop:
                self._workers.start_again(command.device)
        overdue = self._patience.overdue(self._state, *self._revisions.durations_s(self._state.history.rounds))
        if overdue is not None:
            yield overdue

    def _found(self, each: Found) -> Iterable[p.Event]:
        if isinstance(each, Said):
            yield from self._said(each)
        elif isinstance(each, NotBack):
            self._task.note(f"device {each.device} {each.why}")
            yield p.NotBack(device=each.device)
        elif isinstance(each, MessageLost):
            self._newest_loss = TryAgain(f"{each.why}; run again to go on from the newest checkpoint")
            yield p.Gap(attempt=self._state.attempt, source=each.source, target=each.target, reason=each.why)
        elif isinstance(each, FellSilent):
            yield p.Silent(device=each.device)
        elif isinstance(each, HeardAgain):
            yield p.Heard(device=each.device)
        else:
            yield self._lost(each)

    def _said(self, said: Said) -> Iterable[p.Event]:
        device, header = said.device, said.header
        try:
            if said.kind == "hello":
                spare = device in self._task.spares
                self._task.note(f"device {device} {'may help' if spare else 'is back'}")
                yield p.Hello(device=device)
            elif said.kind == "loaded":
                yield p.Loaded(device=device)
            elif said.kind == "aborted":
                yield p.Held(device=device, attempt=attempt_of(header), holdings=parse_holdings(device, header))
            elif said.kind == "moved":
                yield p.Moved(device=device, attempt=attempt_of(header))
            elif said.kind == "ready":
                self._ready[device] = header
                yield p.Prepared(device=device, attempt=attempt_of(header), round=int(header["round"]))
            elif said.kind == FETCH and self._stored is not None and attempt_of(header) == self._state.attempt:
                self._stored.send(self._workers.exchange, device, int(header["parcel"]))
            elif said.kind == "saved":
                version = parse_version(header["version"])
                self._shards.add(device, version, header["shards"])
                yield p.Saved(device=device, version=version)
            elif said.kind == "backed_up":
                yield p.BackedUp(device=device, version=parse_version(header))
        except (LookupError, TypeError, ValueError) as error:
            raise Refused(f"device {device} sent a {said.kind!r} that cannot be read ({error})") from None

    def _lost(self, lost: Lost) -> p.Ended:
        self._newest_loss = lost.error
        self._pace.forget(lost.device)
        if len(self._workers.living) > 1:
            self._task.note(f"device {lost.device} {lost.why}")
        return p.Ended(device=lost.device, reason=lost.why, returns=not isinstance(lost.error, Infeasible))

    def _abort(self, command: p.Abort) -> Iterable[p.Event]:
        self._ready.clear()
        self._shards.clear()
        self._workers.begin_attempt(command.attempt, command.devices)
        return ()

    def _dismiss(self, command: p.Dismiss) -> Iterable[p.Event]:
        if isinstance(self._cause, p.Gap):  # it lives, and nobody has said yet that it is lost
            why = f"is given up: {self._cause.reason}"
            self._events.lost(command.device, why)
            self._task.note(f"device {command.device} {why}")
        self._workers.dismiss(command.device)
        return ()

    def _set_timer(self, command: p.StartAgain | p.Wait) -> Iterable[p.Event]:
        after_s = command.pause_s if isinstance(command, p.StartAgain) else command.longest_s
        self._timers.append((self._workers.now_s() + after_s, command))
        return ()

    def _blame(self, command: p.Blame) -> Iterable[p.Event]:
        yield self._lost(self._workers.give_up(command.device, command.message, command.patience_s))

    def _probe(self, command: p.Probe) -> Iterable[p.Event]:
        self._workers.probe(command.device)
        return ()

    def _report(self, command: p.Report) -> Iterable[p.Event]:
        self._events.recovering(command.sentence)
        self._task.note(command.sentence)
        return ()

    def _revise(self, command: p.Revise) -> Iterable[p.Event]:
        try:
            paces = self._pace.slow if self._conductor.replans_stragglers else {}
            layout = self._revisions.revise(command.devices, paces, command.cut)
            yield p.Revised(attempt=command.attempt, layout=layout)
        except (Infeasible, Refused) as error:
            yield p.NoPlan(attempt=command.attempt, reason=first_line(error))

    def _move(self, command: p.Move) -> Iterable[p.Event]:
        found, plan = command.restoration, self._revisions.result(command.layout.revision).plan
        folder = folder_of(found, self._task.work, [lane.name for lane in plan.lanes] if self._begun else ())
        done = self._log.rounds[: found.version.rounds]
        plan = after_rounds(plan, done, self._start.from_round, self._start.plan_from_round)
        self._decisions.follow(plan)
        away = [device for device in command.devices if self._is_away(device)]
        parcels = parcels_of(found, plan, self._revisions.sizes_bytes, away)
        asked = {each.number: each for each in parcels if each.source == DISK}
        self._stored = StoredParcels(StoredCheckpoint.verified(Path(str(folder))), asked) if asked else None
        for device in command.devices:
            paced, backups = self._revisions.rates(plan, device)
            order = Migration(
                plan=plan,
                version=found.version,
                folder=None if device in away else folder,
                parcels=tuple(each for each in parcels if device in (each.source, each.target)),
                addresses=self._workers.returned,
                gone=self._workers.gone,
                commit=self._commit if device in found.rolls_forward else None,
                paced_bytes_per_s=paced,
                backup_bytes_per_s=backups,
            )
            self._workers.send([device], "move", {"attempt": command.attempt, "order": json_io.dump(order)})
        if self._begun:
            self._tell_recovery(command)
        return ()

    def _is_away(self, device: str) -> bool:
        """Return whether a device may not see this disk, but what was put on its own when it started."""
        started_with_all = not (self._begun or self._workers.returned or self._task.local)
        return not started_with_all and self._task.fleet.device(device).launcher != PROCESS

    def _tell_recovery(self, command: p.Move) -> None:
        told = self._revisions.describe_recovery(command, self._state.history.rounds)
        again, moved_bytes, devices = told.rounds_again, told.moved_bytes, command.layout.devices
        self._events.resuming(told.sentence, command.restoration.version.rounds, again, moved_bytes, devices)
        self._task.note(told.sentence)
        if told.left_out:
            self._report(p.Report(sentence=told.left_out))

    def _rewind(self, command: p.RewindLog) -> Iterable[p.Event]:
        self._decisions.remember(self._log.rounds[command.rounds :])
        self._log.rewind(command.rounds)
        self._validation.rewind(command.rounds)
        return (p.LogRewound(rounds=command.rounds),)

    def _free(self, command: p.DropOld | p.ReleaseBackups) -> Iterable[p.Event]:
        kind = "drop_old" if isinstance(command, p.DropOld) else "release"
        version = describe_version(command.version)
        self._workers.send(command.devices, kind, {"attempt": self._state.attempt, "version": version})
        return ()

    def _start_round(self, command: p.StartRound) -> Iterable[p.Event]:
        self._workers.limit_cpu()
        self._begun = True
        scale = next_scale(self._task.model, self._log.rounds)
        told = {"round": command.round, "loss_scale": scale, "rested": dict(self._log.rested)}
        self._workers.send(command.devices, "start", {"attempt": command.attempt, **told})
        return ()

    def _log_commit(self, command: p.LogCommit) -> Iterable[p.Event]:
        """Write a commit to disk, with what is decided by it."""
        task, round, plan = self._task, command.round, self._revisions.result(self._state.plan.revision).plan
        if plan.revision != task.plan.plan.revision:
            self._measured.revised(round, plan)
        metrics, norms = round_metrics(task, plan, round, self._ready, self._measured)
        ran = self._decisions.plan
        metrics = self._decisions.added_to(metrics, self._ready, self._measured.newest)
        self._measured.moved([metrics])
        self._log.commit(metrics)
        task.logged(round)
        self._metrics = metrics
        decided = {"scales": step_scales(task.training, metrics, norms), "moves": metrics.moves, "gates": metrics.gates}
        following = {"loss_scale": next_scale(task.model, self._log.rounds), "rested": dict(self._log.rested)}
        self._commit = {"round": round, "attempt": command.attempt, **decided, **following}
        self._ready = {}
        due = self._saver.due(round + 1)
        slow = self._pace.observe(ran, round, self._measured.newest)
        return (*slow, p.CommitLogged(attempt=command.attempt, round=round, checkpoint=due))

    def _send_commit(self, command: p.SendCommit) -> Iterable[p.Event]:
        assert self._commit is not None and self._metrics is not None, "a commit that is sent was logged"
        done = command.round + 1
        if command.checkpoint:
            self._saver.prepare(done)
        state = self._state
        saving = {state.saving} if state.saving else set()
        versions = {version.rounds for version in {*state.on_disk, *state.completing, *saving}}
        kept = sorted(versions.union(self._saver.kept))
        told = {"checkpoint": command.checkpoint, "backup": command.backup, "starts_next": command.starts_next}
        self._workers.send(command.devices, "commit", {**self._commit, **told, "kept": kept})
        self._events.committed(command.round)
        self._revisions.get_ready()
        samples, last = self._task.plan.plan.batch_samples, self._conductor.rounds
        detail = f"round {done} of {last}, loss {self._metrics.loss:.4g}"
        self._task.progress("training", done * samples, last * samples, "samples", detail)
        return ()

    def _save(self, command: p.Save) -> Iterable[p.Event]:
        self._saver.prepare(command.version.rounds)
        asked = {"attempt": self._state.attempt, "round": command.version.rounds}
        self._workers.send(command.devices, SAVE, asked)
        return ()

    def _complete(self, command: p.CompleteCheckpoint) -> Iterable[p.Event]:
        """Complete a checkpoint; one whose files cannot be had, or are damaged, costs nothing but itself."""
        version, work, written = command.version, self._task.work, self._shards.take(command.version)
        shards = {name: digest for of_device in written.values() for name, digest in of_device.items()}
        try:
            self._workers.collect(command.devices, written, version.rounds)
            self._saver.complete(version.rounds, shards, self._log.text_of(version.rounds))
        except TryAgain as error:
            if disk_error(error, {STORE: work}) is not None:  # it would take no later one either
                raise
            self._saver.put_off()
            return (p.CheckpointFailed(version=version, reason=f"no checkpoint of round {version.rounds}: {error}"),)
        return (p.CheckpointComplete(version=version),)

    def _score(self, command: p.Score) -> Iterable[p.Event]:
        self._validation.ask(command.version.rounds)
        return ()

    def _note_end(self, command: p.End) -> Iterable[p.Event]:
        self._end = command
        return ()


def end_error(end: p.End, cause: p.Event | None, newest_loss: FleetuneError | None) -> FleetuneError:
    """Return the error; what was lost comes before what follows from it.

    cause: the event that led to the end. newest_loss: what a training ends with that cannot go on without what was lost
    last.
    """
    if newest_loss is not None and isinstance(cause, p.Ended | p.Gap):
        return newest_loss
    if newest_loss is not None and isinstance(cause, p.NoPlan):
        return type(newest_loss)(f"{newest_loss}; the devices that are left cannot go on: {end.reason}")
    return by_exit_code(end.exit_code, end.reason)
