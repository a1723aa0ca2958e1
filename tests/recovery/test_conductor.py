"""The conductor's answers to single events, where the order of others does not matter."""

from dataclasses import replace
from typing import Any

import pytest

from fleetune.errors import Refused
from fleetune.recovery import holdings as h
from fleetune.recovery import protocol as p
from fleetune.recovery.conductor import WAIT_S, Conductor
from fleetune.recovery.membership import AWAY, CALM_ROUNDS, FIRST_S, LOADED, MAX_IN_A_ROW, MAX_S, Device
from fleetune.recovery.state import COLLECTING, EXPECTING, FINISHING, LOGGING, RUNNING, SCORING, State
from tests.support.recovery.conductors import ON, conductor, layout, prepared, running, tell


def live(state: State, device: str, version: h.Version, form: str = h.LIVE) -> h.Holding:
    return h.Holding(device=device, version=version, form=form, items=ON[device])


def reported(state: State, device: str, *holdings: h.Holding) -> p.Held:
    return p.Held(device=device, attempt=state.attempt, holdings=holdings)


def test_a_round_is_sent_once_all_have_prepared_it_and_it_is_on_disk() -> None:
    """The last of two devices leads to the log, and the log to the commit; a device that says it twice does not."""
    rules = conductor()
    state, told = tell(rules, before := running(rules), *prepared(before, "a"), *prepared(before, "a"))
    assert told == []
    state, told = tell(rules, state, *prepared(before, "b"))
    assert told == [p.LogCommit(attempt=state.attempt, round=4)] and state.phase == LOGGING
    state, told = tell(rules, state, p.CommitLogged(attempt=state.attempt, round=4))
    commit = p.SendCommit(
        attempt=state.attempt, round=4, devices=("a", "b"), starts_next=True, checkpoint=False, backup=False
    )
    assert told == [commit] and state.phase == RUNNING and state.history.rounds == 5


def test_what_is_of_another_attempt_round_or_device_is_dropped() -> None:
    """Messages of an older attempt, a round that is over, and devices that are none change nothing."""
    rules = conductor()
    state = running(rules)
    old = h.Attempt(1, 0)
    events = [
        p.Prepared(device="a", attempt=old, round=4),
        p.Prepared(device="a", attempt=state.attempt, round=3),
        p.Held(device="a", attempt=old, holdings=()),
        p.Revised(attempt=old, layout=layout("a")),
        p.NoPlan(attempt=old, reason="old"),
        p.Moved(device="a", attempt=old),
        p.Gap(attempt=old, source="a", target="b", reason="old"),
        p.Ended(device="z", reason="never was here"),
        p.Saved(device="a", version=h.INITIAL),
        p.BackedUp(device="a", version=h.INITIAL),
        p.Heard(device="z"),
        p.Silent(device="z"),
        p.Slow(device="z", reason="is slow"),
    ]
    assert tell(rules, state, *events) == (state, [])


def test_a_lost_device_leads_through_a_backup_to_a_new_plan() -> None:
    """Device b dies in round 5, backed up after 3 rounds: a goes back to its snapshot, the log as well, and then on."""
    rules = conductor()
    state = running(rules, layout("a", "b", backups=True), rounds=5)
    state, told = tell(rules, state, p.Ended(device="b", reason="killed"))
    assert told == [p.Dismiss(device="b"), p.Abort(attempt=h.Attempt(1, 2), devices=("a",))]
    three = state.history.rewound(3).version
    held = [
        live(state, "a", state.history.version),
        live(state, "a", three, h.SNAPSHOT),
        h.Holding(device="a", version=three, form=h.BACKUP, items=ON["b"]),
    ]
    state, told = tell(rules, state, reported(state, "a", *held))
    assert told == [p.Revise(attempt=state.attempt, devices=("a",), cut=())]
    state, told = tell(rules, state, p.Revised(attempt=state.attempt, layout=layout("a")))
    report, move = told
    assert isinstance(report, p.Report) and "main/x" in report.sentence
    assert isinstance(move, p.Move) and move.restoration.version == three and not move.restoration.transfers
    state, told = tell(rules, state, p.Moved(device="a", attempt=state.attempt))
    assert told == [p.RewindLog(rounds=3)]
    state, told = tell(rules, state, p.LogRewound(rounds=3))
    assert told == [
        p.DropOld(attempt=state.attempt, version=three, devices=("a",)),
        p.StartRound(attempt=state.attempt, round=3, devices=("a",)),
    ]


def test_a_gap_is_run_again_under_the_same_plan() -> None:
    """All live and nothing of the version is lost: no plan is asked for, nothing moves, and the round starts again."""
    rules = conductor()
    state = running(rules)
    gap = p.Gap(attempt=state.attempt, source="a", target="b", reason="a message was lost")
    state, told = tell(rules, state, gap)
    assert [type(each) for each in told] == [p.Report, p.Abort]
    held = [reported(state, device, live(state, device, state.history.version)) for device in "ab"]
    state, told = tell(rules, state, *held, *[p.Moved(device=device, attempt=state.attempt) for device in "ab"])
    assert [type(each) for each in told] == [p.Move, p.DropOld, p.StartRound]
    assert isinstance(told[0], p.Move) and told[0].restoration.transfers == ()


def again(rules: Conductor, state: State, source: str, target: str) -> tuple[State, list[p.Command]]:
    """Lose a message on a link, and again, until the conductor does something else than run the round again; only the
    first loss is reported.
    """
    told: list[p.Command] = []
    for number in range(rules.most_gaps):
        gap = p.Gap(attempt=state.attempt, source=source, target=target, reason="a message was lost")
        state, told = tell(rules, state, gap)
        assert (p.Report(sentence="a message was lost") in told) == (number == 0)
    return state, told


def test_a_link_that_always_loses_is_given_up_and_then_the_device_behind_it() -> None:
    """Three losses on a link and no commit: the plan is to do without it. If it cannot, one more costs the receiver."""
    rules = conductor()
    state, _ = again(rules, running(rules), "a", "b")
    assert state.cut == {("a", "b")} and state.members == {"a", "b"}
    held = [reported(state, device, live(state, device, state.history.version)) for device in "ab"]
    state, told = tell(rules, state, *held)
    assert isinstance(told[-1], p.Revise) and told[-1].cut == (("a", "b"),)
    state, told = tell(rules, state, p.NoPlan(attempt=state.attempt, reason="no other way"))
    assert [type(each) for each in told] == [p.Report, p.Move] and state.layout == layout("a", "b")
    state, told = tell(rules, state, p.Gap(attempt=state.attempt, source="a", target="b", reason="lost"))
    assert told[0] == p.Dismiss(device="b") and state.members == {"a"}


def test_a_device_that_does_not_reach_the_coordinator_is_left_out() -> None:
    """A link to the coordinator cannot be planned around: after three losses its device counts as lost."""
    rules = conductor()
    state, told = again(rules, running(rules), "coordinator", "a")
    assert told[0] == p.Dismiss(device="a") and state.members == {"b"}


def test_a_commit_forgives_the_gaps_before_it() -> None:
    """Only losses without any progress between them count."""
    rules = conductor()
    state = replace(running(rules), gaps=(("a", "b"),) * 2)
    state, _ = tell(rules, state, *prepared(state, "a", "b"), p.CommitLogged(attempt=state.attempt, round=4))
    state, _ = tell(rules, state, p.Gap(attempt=state.attempt, source="a", target="b", reason="lost"))
    assert state.cut == frozenset() and state.members == {"a", "b"}


def test_a_straggler_is_reported_and_replanned_around_only_if_that_is_wanted() -> None:
    """By default a slow device is a sentence in the log; else a plan is asked for at the border of the round."""
    rules = conductor()
    state, told = tell(rules, running(rules), p.Slow(device="b", reason="takes twice its time"))
    assert told == [p.Report(sentence="device b takes twice its time")]
    done = [*prepared(state, "a", "b"), p.CommitLogged(attempt=state.attempt, round=4)]
    assert tell(rules, state, *done)[0].phase == RUNNING
    rules = conductor(replans_stragglers=True)
    state, _ = tell(rules, running(rules), p.Slow(device="b", reason="takes twice its time"))
    assert state.phase == RUNNING
    state, told = tell(rules, state, *done)
    assert state.phase == COLLECTING and [type(each) for each in told] == [p.LogCommit, p.SendCommit, p.Abort]
    held = [reported(state, device, live(state, device, state.history.version)) for device in "ab"]
    assert isinstance(tell(rules, state, *held)[1][-1], p.Revise)


def test_a_straggler_is_not_replanned_around_while_lanes_are_averaged() -> None:
    """Bug: the abort met devices in the middle of the average, so that all went back to the newest checkpoint."""
    rules = conductor(replans_stragglers=True)
    made = replace(layout("a", "b"), average_every_rounds=5)
    state, _ = tell(rules, running(rules, made), p.Slow(device="b", reason="takes twice its time"))
    averaging = p.CommitLogged(attempt=state.attempt, round=4)
    state, told = tell(rules, state, *prepared(state, "a", "b"), averaging)
    assert state.phase == RUNNING and isinstance(told[-1], p.SendCommit) and told[-1].starts_next
    state, told = tell(rules, state, *prepared(state, "a", "b"), p.CommitLogged(attempt=state.attempt, round=5))
    assert state.phase == COLLECTING and isinstance(told[-1], p.Abort)


def test_a_device_joins_at_the_border_of_a_round_and_is_told_of_nothing_before() -> None:
    """The running round ends undisturbed; then all are asked what they hold, the newcomer too."""
    rules = conductor()
    state, told = tell(rules, running(rules), p.Hello(device="c"), p.Loaded(device="c"))
    assert told == [] and state.phase == RUNNING and "c" not in state.members
    done = [*prepared(state, "a", "b"), p.CommitLogged(attempt=state.attempt, round=4)]
    state, told = tell(rules, state, *done)
    assert isinstance(told[1], p.SendCommit) and not told[1].starts_next
    assert told[2] == p.Abort(attempt=h.Attempt(1, 2), devices=("a", "b", "c"))


def test_a_device_joins_at_once_where_a_plan_is_being_looked_for() -> None:
    """No round runs then, and the plan that is found for the others only comes too late."""
    rules = conductor()
    state, told = tell(rules, running(rules), p.Ended(device="b", reason="killed"))
    state, (revise,) = tell(rules, state, reported(state, "a", live(state, "a", state.history.version)))
    assert isinstance(revise, p.Revise) and revise.devices == ("a",)
    late = p.Revised(attempt=state.attempt, layout=layout("a"))
    state, told = tell(rules, state, p.Hello(device="b"), p.Loaded(device="b"), late)
    assert told == [p.Abort(attempt=h.Attempt(1, 3), devices=("a", "b"))]


def test_a_silent_device_is_probed_once_and_the_round_goes_on() -> None:
    """Silence alone interrupts nothing; being heard ends the suspicion, so that a later silence is probed again."""
    rules = conductor()
    silent = p.Silent(device="a")
    state, told = tell(rules, running(rules), silent, silent, p.Heard(device="a"), silent)
    assert told == [p.Probe(device="a")] * 2 and state.phase == RUNNING


def test_a_device_that_the_plan_does_not_use_leaves_without_a_stop() -> None:
    """The end of a spare device does not cost the round that runs."""
    rules = conductor()
    state, told = tell(rules, running(rules, spare="c"), p.Ended(device="c", reason="killed"))
    assert told == [p.Dismiss(device="c")] and state.phase == RUNNING


def test_a_logged_round_is_rolled_forward_by_those_that_only_prepared_it() -> None:
    """A device dies while the commit is being written: the decision waits for the disk, and then takes the round in."""
    rules = conductor()
    state, _ = tell(rules, before := running(rules), *prepared(before, "a", "b"))
    state, _ = tell(rules, state, p.Gap(attempt=state.attempt, source="a", target="b", reason="lost"))
    reached = before.history.committed(4, before.attempt).version
    held = [
        reported(state, d, live(state, d, before.history.version), live(state, d, reached, h.PREPARED)) for d in "ab"
    ]
    state, told = tell(rules, state, *held)
    assert told == []
    state, told = tell(rules, state, p.CommitLogged(attempt=before.attempt, round=4))
    (move,) = told
    assert isinstance(move, p.Move)
    assert (move.restoration.version, move.restoration.rolls_forward) == (reached, ("a", "b"))


def test_backups_are_taken_every_so_many_rounds_and_old_ones_freed_once_all_are_there() -> None:
    """With a backup every two rounds: none after the first, one after the second, and release after both devices."""
    rules = conductor()
    state = replace(running(rules, layout("a", "b", backups=True)))
    state = replace(state, backup=state.history.version)
    backups = []
    for round in (4, 5):
        done = [*prepared(state, "a", "b"), p.CommitLogged(attempt=state.attempt, round=round)]
        state, told = tell(rules, state, *done)
        backups += [each.backup for each in told if isinstance(each, p.SendCommit)]
    assert backups == [False, True]
    version = state.history.version
    state, told = tell(rules, state, p.BackedUp(device="a", version=version))
    assert told == []
    state, told = tell(rules, state, p.BackedUp(device="b", version=version))
    assert told == [p.ReleaseBackups(version=version, devices=("a", "b"))] and state.backup == version


def test_a_stop_saves_the_newest_version_and_tries_a_failed_checkpoint_once_more() -> None:
    """A stop asks for a checkpoint of the last committed round, again if it fails, and ends the run if that fails."""
    rules = conductor()
    state, told = tell(rules, running(rules), p.StopAsked())
    version = state.history.version
    assert told == [p.Save(version=version, devices=("a", "b"))] and state.phase == FINISHING
    state, told = tell(rules, state, *[p.Saved(device=device, version=version) for device in "ab"])
    assert told == [p.CompleteCheckpoint(version=version, devices=("a", "b"))]
    _, complete = tell(rules, state, p.CheckpointComplete(version=version))
    assert [(type(each), each.exit_code) for each in complete if isinstance(each, p.End)] == [(p.End, 75)]
    failed = p.CheckpointFailed(version=version, reason="a file is damaged")
    state, told = tell(rules, state, failed)
    assert told == [p.Report(sentence="a file is damaged"), p.Save(version=version, devices=("a", "b"))]
    state, _ = tell(rules, state, *[p.Saved(device=device, version=version) for device in "ab"])
    _, told = tell(rules, state, failed)
    assert told == [p.End(reason="a file is damaged")]


def test_a_loss_while_the_last_version_is_scored_changes_nothing() -> None:
    """Bug: all is trained and saved, and the others planned anew, moved everything, or ended for lack of memory."""
    rules = conductor(scores_every_rounds=5)
    state = replace(running(rules, rounds=10), phase=SCORING)
    lost = p.Gap(attempt=state.attempt, source="a", target="b", reason="lost")
    state, told = tell(rules, state, lost, p.Ended(device="b", reason="killed"))
    assert told == [p.Dismiss(device="b")] and state.phase == SCORING
    _, told = tell(rules, state, p.Scored(version=state.history.version, enough=False))
    assert told == [p.End(reason="done", exit_code=0)]


def test_a_device_that_comes_back_has_its_links_again() -> None:
    """Bug: a link that was given up stayed so for the next worker of the device behind it, which no plan could use."""
    rules = conductor()
    state = replace(running(rules), cut=frozenset({("a", "b"), ("c", "a")}))
    state, _ = tell(rules, state, p.Ended(device="b", reason="killed"))
    assert state.cut == {("c", "a")}


def test_a_failed_checkpoint_is_reported_and_training_goes_on() -> None:
    """While rounds run, a checkpoint that was not possible costs nothing but itself."""
    rules = conductor()
    state = running(rules)
    state = replace(state, completing=frozenset({state.history.version}))
    failed = p.CheckpointFailed(version=state.history.version, reason="a device was lost")
    state, told = tell(rules, state, failed)
    assert told == [p.Report(sentence="a device was lost")] and not state.completing and state.phase == RUNNING


def test_no_memory_for_the_model_is_infeasible() -> None:
    """Where the devices that are left cannot hold the model, the planner's reason ends the run with 65; events after
    the end are dropped.
    """
    rules = conductor()
    state, _ = tell(rules, running(rules), p.Ended(device="b", reason="killed"))
    state, _ = tell(rules, state, reported(state, "a"))
    no_plan, ended = p.NoPlan(attempt=state.attempt, reason="a lacks 5 bytes"), p.Ended(device="a", reason="killed")
    _, told = tell(rules, state, no_plan, ended)
    assert told == [p.End(reason="a lacks 5 bytes", exit_code=65)]


def test_a_plan_for_a_device_that_is_gone_is_refused() -> None:
    """A planner that names another device than it was given is wrong, and is told so."""
    rules = conductor()
    state, _ = tell(rules, running(rules), p.Ended(device="b", reason="killed"))
    state, _ = tell(rules, state, reported(state, "a"))
    with pytest.raises(Refused, match="the plan names b"):
        tell(rules, state, p.Revised(attempt=state.attempt, layout=layout("a", "b")))


def returning(**settings: Any) -> Conductor:
    """A conductor that starts lost devices again."""
    return conductor(returns=True, **settings)


def pauses_s(told: list[p.Command]) -> dict[str, float]:
    return {each.device: each.pause_s for each in told if isinstance(each, p.StartAgain)}


def test_a_device_that_is_lost_again_and_again_is_started_less_often_and_then_no_more() -> None:
    """Each pause is twice as long as the one before, up to a limit; calm rounds in between begin anew."""
    rules, waits = returning(), list[float]()
    state = running(rules, spare="c")
    for _ in range(MAX_IN_A_ROW):
        state, told = tell(rules, state, p.Ended(device="c", reason="killed"))
        waits += pauses_s(told).values()
        state, told = tell(rules, state, p.Hello(device="c"), p.Loaded(device="c"))
        assert told == [] and state.waiting == {"c"}, "it waits for a border only"
    assert waits == [min(MAX_S, FIRST_S * 2**number) for number in range(MAX_IN_A_ROW)]
    gone, told = tell(rules, state, p.Ended(device="c", reason="killed"))
    assert told == [p.Dismiss(device="c")] and gone.device("c") == Device(name="c", status=AWAY, losses=7)
    history = h.History(rounds=state.history.rounds + CALM_ROUNDS, spans=state.history.spans)
    _, told = tell(rules, replace(state, history=history), p.Ended(device="c", reason="killed"))
    assert pauses_s(told) == {"c": FIRST_S}


def test_a_worker_that_does_not_come_counts_as_a_loss() -> None:
    """It is started again after a longer pause; where lost devices do not return, it is not."""
    rules = returning()
    state, told = tell(rules, running(rules), p.Ended(device="b", reason="killed"))
    assert pauses_s(told) == {"b": FIRST_S}
    state, told = tell(rules, state, p.NotBack(device="b"), p.NotBack(device="a"))
    assert told == [p.StartAgain(device="b", pause_s=2 * FIRST_S)]
    rules = conductor()
    state, told = tell(rules, running(rules), p.Ended(device="b", reason="killed"))
    assert pauses_s(told) == {} and state.of(AWAY) == {"b"}
    rules = returning()
    _, told = tell(rules, running(rules), p.Ended(device="b", reason="ran out of its memory", returns=False))
    assert pauses_s(told) == {}


def test_spares_are_started_with_the_first_loss() -> None:
    """Once, whatever is lost later."""
    rules = returning()
    state, _ = rules.start(1, ("a", "b"), h.History(), (), spares=("c", "d"))
    assert state.members == {"a", "b"}
    state, told = tell(rules, state, p.Ended(device="b", reason="killed"))
    assert pauses_s(told) == {"b": FIRST_S, "c": 0.0, "d": 0.0}
    _, told = tell(rules, state, p.Hello(device="c"), p.Ended(device="c", reason="killed"))
    assert pauses_s(told) == {"c": FIRST_S}


def test_a_device_that_is_lost_while_it_loads_is_let_go_and_started_again() -> None:
    """No attempt knows it, so that its loss, its silence and its lost messages concern nobody else."""
    rules = returning()
    at = tell(rules, running(rules), p.Hello(device="c"))[0]
    gap = p.Gap(attempt=at.attempt, source="coordinator", target="c", reason="lost")
    for event in (p.Ended(device="c", reason="killed"), gap):
        state, told = tell(rules, at, event)
        assert told == [p.Dismiss(device="c"), p.StartAgain(device="c", pause_s=FIRST_S)]
        assert state.phase == RUNNING and state.attempt == at.attempt
    assert tell(rules, at, p.Silent(device="c"))[1] == [p.Probe(device="c")]


def test_all_wait_a_while_for_a_device_where_nothing_else_is_lost() -> None:
    """It is taken in as soon as it says hello; if it does not come, or not in time, the others go on without it."""
    rules = returning(waits=True)
    state, _ = tell(rules, running(rules), p.Ended(device="b", reason="killed"))
    state, told = tell(rules, state, reported(state, "a", live(state, "a", state.history.version)))
    assert told == [p.Wait(attempt=state.attempt, longest_s=WAIT_S)] and state.phase == EXPECTING
    revise = p.Revise(attempt=state.attempt, devices=("a",), cut=())
    assert tell(rules, state, p.Waited(attempt=h.Attempt(1, 1)))[1] == []
    assert tell(rules, state, p.Waited(attempt=state.attempt))[1] == [revise]
    _, told = tell(rules, state, p.Hello(device="b"))
    assert told == [p.Abort(attempt=h.Attempt(1, 3), devices=("a", "b"))]
    for number in (1, 2, 3):
        state, told = tell(rules, state, p.NotBack(device="b"))
        assert told == [p.StartAgain(device="b", pause_s=FIRST_S * 2**number), *([revise] if number == 3 else [])]


def test_a_lane_begins_again_right_after_an_average() -> None:
    """Only then it has a state: who is back waits until all have prepared the round that follows an average, which is
    run again with it."""
    rules = returning()
    state = running(rules, replace(layout("a", "b"), average_every_rounds=3), rounds=4)
    state, told = tell(rules, state, p.Hello(device="c"), p.Loaded(device="c"))
    assert told == [] and state.of(LOADED) == {"c"}
    for round in (4, 5):
        committed = p.CommitLogged(attempt=state.attempt, round=round)
        state, told = tell(rules, state, *prepared(state, "a", "b"), committed)
        assert not any(isinstance(each, p.Abort) for each in told)
    state, told = tell(rules, state, *prepared(state, "a", "b"))
    assert told == [p.Abort(attempt=h.Attempt(1, 2), devices=("a", "b", "c"))]


def test_answers_that_take_too_long_have_somebody_to_blame() -> None:
    """The first device that owes one is looked into, if the wait is still the same; nobody is while none owes one, and
    at a stop the run ends."""
    rules = conductor()
    state, _ = tell(rules, at := running(rules), *prepared(at, "a"))
    late = p.Overdue(attempt=state.attempt, phase=RUNNING, round=4, patience_s=120.0)
    _, told = tell(rules, state, late)
    assert told == [p.Blame(device="b", message="ready", patience_s=120.0)]
    for other in (replace(late, round=3), replace(late, attempt=h.Attempt(1, 0)), replace(late, phase=COLLECTING)):
        assert tell(rules, state, other)[1] == []
    writing = replace(state, phase=COLLECTING, answered=state.members, writing=frozenset({"commit"}))
    assert tell(rules, writing, replace(late, phase=COLLECTING))[1] == []
    stopped, _ = tell(rules, state, p.StopAsked())
    _, told = tell(rules, stopped, replace(late, phase=FINISHING))
    assert isinstance(told[0], p.End) and "not possible within 120 s: a has not written" in told[0].reason
