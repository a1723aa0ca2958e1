"""The conductor of a training: a pure state machine that commits rounds and leads devices out of every loss.

A start, of a training or of its coordinator, is a recovery too: devices that hold nothing go to the newest checkpoint,
devices that outlived their coordinator to the newest version that is whole. Every loss begins a new attempt from
COLLECTING, whatever the phase; only what is on disk and what devices report counts then. A round is applied by devices
only once its commit is on disk. Old copies are freed only after all devices have what the plan wants on them.

It reads no clock: who is silent, slow or late is told to it, and so is whether a checkpoint is due; how long a pause
or a wait is to be, it says.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fleetune.errors import Infeasible, Refused, TryAgain
from fleetune.program.in_force import averages_after
from fleetune.recovery import protocol as p
from fleetune.recovery.holdings import INITIAL, Attempt, History, Version, restoration
from fleetune.recovery.membership import DUE, HERE, LOADED, LOADING, MEMBER, SPARE, WAITING, Device
from fleetune.recovery.state import (
    COLLECTING,
    COMMIT,
    ENDED,
    EXPECTING,
    FINISHING,
    LOGGING,
    MOVING,
    OWED,
    REVISING,
    REWIND,
    REWINDING,
    RUNNING,
    SCORING,
    State,
    kept_versions,
)
from fleetune.recovery.transfers import Item, Links

_HELD = (RUNNING, LOGGING, FINISHING, SCORING)
"""Phases in which the holders of the plan have all that it needs."""
WAIT_S = 10.0
"""Longest time for which a plan with a collector waits for a lost device, before its blocks go to the others."""
Step = tuple[State, tuple[p.Command, ...]]
"""The state after an event, and what is to be done, in this order."""


@dataclass(frozen=True, kw_only=True)
class Conductor:
    """The rules of one training."""

    rounds: int
    sizes_bytes: Mapping[Item, int]
    """Of everything that training changes; a parameter's with its optimizer state."""
    links: Links
    most_gaps: int = 3
    """Losses of messages on one link without a commit in between, after which plans do without the link."""
    replans_stragglers: bool = False
    scores_every_rounds: int = 0
    """Rounds between two versions that are saved and scored before the next round begins; 0: none is scored."""
    returns: bool = False
    """True if lost devices are started again."""
    waits: bool = False
    """True if a lost device costs nothing but time, so that all wait a while for one that is started again."""

    def start(
        self,
        coordinator: int,
        members: Iterable[str],
        history: History,
        on_disk: Iterable[Version],
        spares: Iterable[str] = (),
    ) -> Step:
        """Return the first state of a coordinator.

        coordinator: number of its starts, greater than that of all before. history, on_disk: what its disk holds.
        spares: devices that were not started.
        """
        found = {**dict.fromkeys(spares, SPARE), **dict.fromkeys(members, WAITING)}
        return self._freeze(
            State(
                phase=COLLECTING,
                attempt=Attempt(coordinator, 0),
                history=history,
                on_disk=kept_versions({INITIAL, *on_disk}, history),
                devices=tuple(Device(name=name, status=found[name]) for name in sorted(found)),
            )
        )

    def step(self, state: State, event: p.Event) -> Step:
        """Return the state after an event, and the commands to carry out."""
        return (state, ()) if state.phase == ENDED else _HANDLERS[type(event)](self, state, event)

    def _freeze(self, state: State, *before: p.Command) -> Step:
        """Begin a new attempt: all members end their round and report what they hold."""
        members = state.members | state.waiting
        if not members:
            return self._end(state, "no device is left; run again to go on from the newest checkpoint", *before)
        state = replace(
            state,
            phase=COLLECTING,
            attempt=Attempt(state.attempt.coordinator, state.attempt.number + 1),
            devices=_with_status(state, state.waiting, MEMBER),
            replan=state.replan or bool(state.waiting),
            answered=frozenset(),
            holdings=(),
            saving=None,
            backing=None,
        )
        return state, (*before, p.Abort(attempt=state.attempt, devices=_sorted(members)))

    def _held(self, state: State, event: p.Held) -> Step:
        if (
            state.phase != COLLECTING
            or event.attempt != state.attempt
            or event.device not in state.members - state.answered
        ):
            return state, ()
        held = (*state.holdings, *event.holdings)
        return self._collected(replace(state, answered=state.answered | {event.device}, holdings=held))

    def _collected(self, state: State) -> Step:
        """Go on once all have reported and no write is under way, since the decision needs its outcome."""
        if state.phase != COLLECTING or state.owing or state.writing or state.completing:
            return state, ()
        if state.layout is not None and not state.replan:
            return self._move(state, state.layout)
        return self._expect(replace(state, phase=EXPECTING), p.Wait(attempt=state.attempt, longest_s=WAIT_S))

    def _expect(self, state: State, *wait: p.Command) -> Step:
        """Wait for a lost device whose pause is short, if that costs nothing else; ask for a plan if there is none."""
        soon = any(each.status == LOADING or (each.status == DUE and each.pause_s <= WAIT_S) for each in state.devices)
        return (state, wait) if soon and self.waits else self._revise(state)

    def _waited(self, state: State, event: p.Waited) -> Step:
        return self._revise(state) if (state.phase, state.attempt) == (EXPECTING, event.attempt) else (state, ())

    def _revise(self, state: State) -> Step:
        cut, members = tuple(sorted(state.cut)), _sorted(state.members)
        return replace(state, phase=REVISING), (p.Revise(attempt=state.attempt, devices=members, cut=cut),)

    def _revised(self, state: State, event: p.Revised) -> Step:
        if state.phase != REVISING or event.attempt != state.attempt:
            return state, ()
        return self._move(state, event.layout)

    def _no_plan(self, state: State, event: p.NoPlan) -> Step:
        """Keep the plan if its devices are left; else there is none."""
        if state.phase != REVISING or event.attempt != state.attempt:
            return state, ()
        if state.layout is None or not state.layout.holders <= state.members:
            return self._end(state, event.reason, exit_code=Infeasible.exit_code)
        state, commands = self._move(state, state.layout)
        return state, (p.Report(sentence=f"the plan is kept: {event.reason}"), *commands)

    def _move(self, state: State, layout: p.Layout) -> Step:
        """Choose the version to go on from, and have everything moved that the plan wants elsewhere."""
        strangers = layout.holders - state.members
        if strangers:
            raise Refused(
                f"recovery: the plan names {', '.join(sorted(strangers))}, which are not among the devices left"
            )
        links = {link: rate for link, rate in self.links.items() if link not in state.cut}
        found = restoration(state.holdings, layout.needs, state.history, state.on_disk, self.sizes_bytes, links)
        state = replace(
            state,
            phase=MOVING,
            layout=layout,
            replan=False,
            answered=frozenset(),
            holdings=(),
            target=found.version,
        )
        move = p.Move(attempt=state.attempt, layout=layout, restoration=found, devices=_sorted(state.members))
        place = f"{'the checkpoint' if found.reads_checkpoint else 'their copies'} of round {found.version.rounds}"
        place = "the initial weights" if found.version == INITIAL else place
        said = (p.Report(sentence=f"{found.reason}: all devices go back to {place}"),) if found.reason else ()
        return state, (*said, move)

    def _moved(self, state: State, event: p.Moved) -> Step:
        if state.phase != MOVING or event.attempt != state.attempt:
            return state, ()
        state = replace(state, answered=state.answered | {event.device})
        if state.owing:
            return state, ()
        if state.history.rounds == state.target.rounds:
            return self._resume(state)
        rewind = p.RewindLog(rounds=state.target.rounds)
        return replace(state, phase=REWINDING, writing=state.writing | {REWIND}), (rewind,)

    def _rewound(self, state: State, event: p.LogRewound) -> Step:
        history = state.history.rewound(event.rounds)
        on_disk, writing = kept_versions(state.on_disk, history), state.writing - {REWIND}
        state = replace(state, history=history, on_disk=on_disk, writing=writing)
        return self._resume(state) if state.phase == REWINDING else self._collected(state)

    def _resume(self, state: State) -> Step:
        """Free what was there before, as every device has what it needs, and run."""
        version = state.history.version
        drop = p.DropOld(attempt=state.attempt, version=version, devices=_sorted(state.members))
        state = replace(state, backup=version)
        return self._finish(state, drop) if self._is_border(state.history) else self._run(state, drop)

    def _run(self, state: State, *before: p.Command) -> Step:
        """Let devices that are at the newest version run the next round."""
        start = p.StartRound(attempt=state.attempt, round=state.history.rounds, devices=state.plan.devices)
        return replace(state, phase=RUNNING, answered=frozenset()), (*before, start)

    def _is_border(self, history: History) -> bool:
        """Return whether the newest version is saved before anything else: it is the last one, or is to be scored."""
        every = self.scores_every_rounds
        return history.rounds == self.rounds or bool(every and history.rounds and history.rounds % every == 0)

    def _prepared(self, state: State, event: p.Prepared) -> Step:
        due = (state.attempt, state.history.rounds)
        if state.phase != RUNNING or (event.attempt, event.round) != due:
            return state, ()
        state = replace(state, answered=state.answered | {event.device})
        if state.owing:
            return state, ()
        done, came = state.history.rounds, state.of(LOADED)
        if came and done and averages_after(state.plan.average_every_rounds, done - 1, self.rounds):
            return self._freeze(replace(state, devices=_with_status(state, came, WAITING)))  # lanes are alike now
        log = p.LogCommit(attempt=state.attempt, round=state.history.rounds)
        return replace(state, phase=LOGGING, writing=state.writing | {COMMIT}), (log,)

    def _commit_logged(self, state: State, event: p.CommitLogged) -> Step:
        """Send a commit, now that it is on disk; after a loss, `restoration` rolls devices forward instead."""
        history = state.history.committed(event.round, event.attempt)
        state = replace(state, history=history, writing=state.writing - {COMMIT}, gaps=())
        if state.phase != LOGGING:
            return self._collected(state)
        last = self._is_border(history) or state.stop
        averages = averages_after(state.plan.average_every_rounds, event.round, self.rounds)
        border = last or bool(state.waiting) or (state.replan and not averages)  # which an abort would break
        checkpoint = event.checkpoint and not border and state.saving is None and not state.completing
        overdue = history.rounds - state.backup.rounds >= state.plan.backup_every_rounds > 0
        backup = overdue and not border and state.backing is None and state.plan.has_backups
        commit = p.SendCommit(
            attempt=event.attempt,
            round=event.round,
            devices=state.plan.devices,
            starts_next=not border,
            checkpoint=checkpoint,
            backup=backup,
        )
        if checkpoint:
            state = replace(state, saving=history.version, saved=frozenset())
        if backup:
            state = replace(state, backing=history.version, backed=frozenset())
        if not border:
            return replace(state, phase=RUNNING, answered=frozenset()), (commit,)
        return self._finish(state, commit) if last else self._freeze(state, commit)

    def _backed_up(self, state: State, event: p.BackedUp) -> Step:
        if state.backing is None or event.version != state.backing:
            return state, ()
        state = replace(state, backed=state.backed | {event.device})
        if not state.plan.holders <= state.backed:
            return state, ()
        release = p.ReleaseBackups(version=event.version, devices=_sorted(state.members))
        return replace(state, backing=None, backup=event.version), (release,)

    def _saved(self, state: State, event: p.Saved) -> Step:
        if state.saving is None or event.version != state.saving:
            return state, ()
        state = replace(state, saved=state.saved | {event.device})
        if not state.saved >= set(state.plan.savers):
            return state, ()
        complete = p.CompleteCheckpoint(version=event.version, devices=state.plan.savers)
        return replace(state, saving=None, completing=state.completing | {event.version}), (complete,)

    def _checkpoint_complete(self, state: State, event: p.CheckpointComplete) -> Step:
        on_disk = kept_versions({*state.on_disk, event.version}, state.history)
        state = replace(state, on_disk=on_disk, completing=state.completing - {event.version})
        return self._finish(state) if state.phase == FINISHING else self._collected(state)

    def _checkpoint_failed(self, state: State, event: p.CheckpointFailed) -> Step:
        """Go on without it; one that the run waits for is tried once more, since all that is in it is still there."""
        state, report = replace(state, completing=state.completing - {event.version}), p.Report(sentence=event.reason)
        if state.phase != FINISHING or event.version != state.history.version:
            state, commands = self._collected(state)
        elif event.version == state.failed:
            return self._end(state, event.reason)
        else:
            state, commands = self._finish(replace(state, failed=event.version))
        return state, (report, *commands)

    def _finish(self, state: State, *before: p.Command) -> Step:
        """Save the newest version, unless that is done or under way; once it is on disk, have it scored, or end."""
        state, version = replace(state, phase=FINISHING), state.history.version
        if version in state.on_disk and self.scores_every_rounds and not state.stop and version != INITIAL:
            return replace(state, phase=SCORING), (*before, p.Score(version=version))
        if version in state.on_disk:
            done = version.rounds == self.rounds and not self.scores_every_rounds  # a stop leaves scores for later
            where = (
                f"ended after round {version.rounds} of {self.rounds}, with a checkpoint of it; run it again to go on"
            )
            begun = "ended in its first round; run it again to begin again" if version == INITIAL else where
            said = "done" if done else begun
            return self._end(state, "done" if done else said, *before, exit_code=0 if done else TryAgain.exit_code)
        if version == state.saving or version in state.completing:
            return state, before
        save = p.Save(version=version, devices=state.plan.savers)
        return replace(state, saving=version, saved=frozenset()), (*before, save)

    def _scored(self, state: State, event: p.Scored) -> Step:
        """Go on with the next round, for other devices where some wait, unless this was the last one."""
        if state.phase != SCORING or event.version != state.history.version:
            return state, ()
        if event.enough or event.version.rounds == self.rounds:
            return self._end(state, "done", exit_code=0)
        return self._freeze(state) if state.waiting or state.replan else self._run(state)

    def _hello(self, state: State, event: p.Hello) -> Step:
        """Let a device load, unless all wait for it; a member that says hello again has forgotten everything."""
        device = state.device(event.device) or Device(name=event.device, status=LOADING)
        if device.status == MEMBER or state.phase == EXPECTING:
            return self._freeze(state.with_device(device.came(state.history.rounds, WAITING)))
        return state.with_device(replace(device, status=LOADING)), ()

    def _loaded(self, state: State, event: p.Loaded) -> Step:
        """Let a device wait for the border of a round, or for an average of the lanes where they have one; not where a
        plan is being looked for."""
        device = state.device(event.device)
        if device is None or device.status != LOADING:
            return state, ()
        averages = state.layout is not None and state.layout.average_every_rounds
        state = state.with_device(device.came(state.history.rounds, LOADED if averages else WAITING))
        return self._freeze(state) if state.phase in (EXPECTING, REVISING) and state.waiting else (state, ())

    def _not_back(self, state: State, event: p.NotBack) -> Step:
        device = state.device(event.device)
        if device is None or device.status != DUE:
            return state, ()
        state, starts = self._without(state, device, returns=True)
        state, commands = self._expect(state) if state.phase == EXPECTING else (state, ())
        return state, (*starts, *commands)

    def _without(self, state: State, device: Device, returns: bool) -> Step:
        """Return the state in which a device is gone, and what is started then: it, if it returns, and all spares."""
        returns = self.returns and returns and not state.stop
        state, spares = state.with_device(device.lost(state.history.rounds, returns)), state.of(SPARE)
        state = replace(state, devices=_with_status(state, spares, DUE))
        due = [each for each in state.devices if each.status == DUE and each.name in {device.name, *spares}]
        return state, tuple(p.StartAgain(device=each.name, pause_s=each.pause_s) for each in due)

    def _ended(self, state: State, event: p.Ended) -> Step:
        """Go on without a device; one that the plan does not use leaves the round as it is."""
        device, dismiss = state.device(event.device), p.Dismiss(device=event.device)
        if device is None or device.status not in HERE:
            return state, ()
        was_member, is_saved = device.status == MEMBER, state.phase == SCORING and state.history.rounds == self.rounds
        state, starts = self._without(state, device, event.returns)
        if is_saved:
            return state, (dismiss,)  # everything is done
        if not was_member:
            state, commands = self._expect(state) if state.phase == EXPECTING else (state, ())
            return state, (dismiss, *starts, *commands)
        cut = frozenset(link for link in state.cut if device.name not in link)  # it would come back by another one
        state = replace(state, cut=cut)
        if state.stop:
            return self._end(state, f"ended as was asked, but {device.name} was lost: {event.reason}", dismiss)
        if state.phase in _HELD and state.layout and device.name not in state.layout.holders:
            return state, (dismiss, *starts)
        return self._freeze(replace(state, replan=True), dismiss, *starts)

    def _gap(self, state: State, event: p.Gap) -> Step:
        """Run the round again; a link that loses messages again and again is given up, or the device behind it. It is
        reported once until a round is committed.
        """
        if event.attempt != state.attempt:
            return state, ()
        if state.phase == SCORING and state.history.rounds == self.rounds:
            return state, ()
        link = (event.source, event.target)
        if outsiders := state.of(LOADING, LOADED, WAITING).intersection(link):  # no round fails with it
            return self._ended(state, p.Ended(device=min(outsiders), reason=event.reason))
        said = () if link in state.gaps else (p.Report(sentence=event.reason),)
        state = replace(state, gaps=(*state.gaps, link))
        if state.gaps.count(link) < self.most_gaps:
            return self._freeze(state, *said)
        ends = [device for device in link if device in state.members]
        if len(ends) < 2 or link in state.cut:
            return self._ended(state, p.Ended(device=ends[-1], reason=event.reason)) if ends else (state, ())
        return self._freeze(replace(state, cut=state.cut | {link}, replan=True), *said)

    def _silent(self, state: State, event: p.Silent) -> Step:
        device = state.device(event.device)
        if device is None or device.status not in HERE or device.suspected:
            return state, ()
        return state.with_device(replace(device, suspected=True)), (p.Probe(device=device.name),)

    def _heard(self, state: State, event: p.Heard) -> Step:
        device = state.device(event.device)
        return (state, ()) if device is None else (state.with_device(replace(device, suspected=False)), ())

    def _overdue(self, state: State, event: p.Overdue) -> Step:
        """Have it found out for whom the first device waits that owes an answer; at a stop nobody waits longer."""
        if (event.phase, event.attempt, event.round) != (state.phase, state.attempt, state.history.rounds):
            return state, ()
        if not state.owing:
            return state, ()
        device, message = state.owing[0], OWED[state.phase]
        if state.stop and state.phase == FINISHING:
            return self._end(
                state,
                f"ended after round {state.history.rounds} of {self.rounds}, but a checkpoint was not possible within "
                f"{event.patience_s:.0f} s: {device} has not written its part; run it again to go on",
            )
        return state, (p.Blame(device=device, message=message, patience_s=event.patience_s),)

    def _slow(self, state: State, event: p.Slow) -> Step:
        """Report a straggler; with `replans_stragglers` the plan is found anew at the border of a round."""
        if event.device not in state.members:
            return state, ()
        replan = state.replan or self.replans_stragglers
        return replace(state, replan=replan), (p.Report(sentence=f"device {event.device} {event.reason}"),)

    def _stop_asked(self, state: State, event: p.StopAsked) -> Step:
        """End with a checkpoint; where devices are not at a whole version yet, with the newest one on disk."""
        if state.phase in (LOGGING, FINISHING):
            return replace(state, stop=True), ()
        if state.phase in (RUNNING, SCORING):
            return self._finish(replace(state, stop=True))
        return self._end(state, "ended as was asked, during a recovery; run it again to go on")

    def _end(self, state: State, reason: str, *before: p.Command, exit_code: int = TryAgain.exit_code) -> Step:
        return replace(state, phase=ENDED), (*before, p.End(reason=reason, exit_code=exit_code))


def _with_status(state: State, names: Collection[str], status: str) -> tuple[Device, ...]:
    """Return the records of all devices, in which some have another status."""
    return tuple(replace(each, status=status) if each.name in names else each for each in state.devices)


def _sorted(devices: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(devices))


_HANDLERS: Mapping[type[p.Event], Callable[[Conductor, State, Any], Step]] = {
    p.Hello: Conductor._hello,
    p.Loaded: Conductor._loaded,
    p.NotBack: Conductor._not_back,
    p.Ended: Conductor._ended,
    p.Waited: Conductor._waited,
    p.Overdue: Conductor._overdue,
    p.Silent: Conductor._silent,
    p.Heard: Conductor._heard,
    p.Slow: Conductor._slow,
    p.Gap: Conductor._gap,
    p.Held: Conductor._held,
    p.Revised: Conductor._revised,
    p.NoPlan: Conductor._no_plan,
    p.Moved: Conductor._moved,
    p.Prepared: Conductor._prepared,
    p.CommitLogged: Conductor._commit_logged,
    p.LogRewound: Conductor._rewound,
    p.Saved: Conductor._saved,
    p.CheckpointComplete: Conductor._checkpoint_complete,
    p.CheckpointFailed: Conductor._checkpoint_failed,
    p.BackedUp: Conductor._backed_up,
    p.Scored: Conductor._scored,
    p.StopAsked: Conductor._stop_asked,
}
