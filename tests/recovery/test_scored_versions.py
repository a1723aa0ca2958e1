"""Versions that are due are saved and scored between two rounds."""

from fleetune.recovery import protocol as p
from fleetune.recovery.conductor import Conductor
from fleetune.recovery.holdings import Version
from fleetune.recovery.membership import WAITING, Device
from fleetune.recovery.state import ENDED, FINISHING, RUNNING, SCORING, State
from tests.support.recovery.conductors import conductor, prepared, running, tell


def scored(rules: Conductor) -> tuple[State, list[p.Command], Version]:
    """A training of a and b that has committed round 4 and saved it, the commands of that, and the version."""
    state = running(rules)
    logged = p.CommitLogged(attempt=state.attempt, round=4, checkpoint=True)
    state, told = tell(rules, state, *prepared(state, "a", "b"), logged)
    version = state.history.version
    assert state.phase == FINISHING
    saved = [p.Saved(device=device, version=version) for device in "ab"]
    state, more = tell(rules, state, *saved, p.CheckpointComplete(version=version))
    return state, told + more, version


def test_a_due_version_is_saved_and_scored_before_the_next_round() -> None:
    """The commit starts no round; the next one starts once the scores are answered, and not for another version."""
    rules = conductor(scores_every_rounds=5)
    state, told, version = scored(rules)
    assert [each.starts_next for each in told if isinstance(each, p.SendCommit)] == [False]
    assert told[-1] == p.Score(version=version) and state.phase == SCORING
    same, nothing = tell(rules, state, p.Scored(version=Version(4, version.attempt)))
    assert (same, nothing) == (state, [])
    state, told = tell(rules, state, p.Scored(version=version))
    assert told == [p.StartRound(attempt=state.attempt, round=5, devices=("a", "b"))] and state.phase == RUNNING


def test_scores_can_end_a_training() -> None:
    """It is done then, although rounds are left."""
    rules = conductor(scores_every_rounds=5)
    state, _, version = scored(rules)
    state, told = tell(rules, state, p.Scored(version=version, enough=True))
    assert told == [p.End(reason="done", exit_code=0)] and state.phase == ENDED


def test_a_stop_does_not_wait_for_scores() -> None:
    """The version is on disk, so that the run ends at once, to go on later."""
    rules = conductor(scores_every_rounds=5)
    state, _, _ = scored(rules)
    _, told = tell(rules, state, p.StopAsked())
    assert [(type(each), each.exit_code) for each in told if isinstance(each, p.End)] == [(p.End, 75)]


def test_devices_that_wait_join_before_the_next_round() -> None:
    """A device that came while scores were waited for is taken in at once."""
    rules = conductor(scores_every_rounds=5)
    state, _, version = scored(rules)
    state = state.with_device(Device(name="c", status=WAITING))
    _, told = tell(rules, state, p.Scored(version=version))
    assert [type(each) for each in told] == [p.Abort]


def test_other_rounds_are_not_held_up() -> None:
    """Between two due versions rounds follow each other at once."""
    rules = conductor(scores_every_rounds=4)
    state = running(rules)
    logged = p.CommitLogged(attempt=state.attempt, round=4, checkpoint=False)
    _, told = tell(rules, state, *prepared(state, "a", "b"), logged)
    assert [each.starts_next for each in told if isinstance(each, p.SendCommit)] == [True]
