"""How long the coordinator waits: for rounds by their forecast, and for the averages that come before them."""

from dataclasses import replace

import pytest

from fleetune.recovery.state import COLLECTING, FINISHING, RUNNING, State
from fleetune.training.checkpoints import SAVING_AT_STOP_S, SAVING_S
from fleetune.training.liveness import MIN_PATIENCE_S, PATIENCE_AVERAGES, PATIENCE_ROUNDS, Patience
from tests.support.recovery.conductors import conductor, running


@pytest.fixture
def state() -> State:
    """Devices a and b run a round, and neither is ready."""
    return running(conductor())


@pytest.mark.parametrize(
    ("round_s", "average_s", "patience_s"),
    [
        (1.0, 0.0, MIN_PATIENCE_S),
        (10.0, 0.0, 10.0 * PATIENCE_ROUNDS),
        (2.0, 183.0, MIN_PATIENCE_S + 183.0 * PATIENCE_AVERAGES),
    ],
)
def test_a_round_after_an_average_has_more_time(
    round_s: float, average_s: float, patience_s: float, state: State
) -> None:
    """Bug: an average of three minutes before a round of two seconds ended the training at every attempt."""
    now = [0.0]
    patience = Patience(lambda: now[0])
    for at_s, late in ((0.0, False), (patience_s, False), (patience_s + 0.1, True)):
        now[0] = at_s
        found = patience.overdue(state, round_s, average_s)
        assert (found is not None) == late
    due = (state.attempt, RUNNING, state.history.rounds, patience_s)
    assert found is not None and (found.attempt, found.phase, found.round, found.patience_s) == due


@pytest.mark.parametrize("beside", [True, False])
def test_a_checkpoint_that_takes_long_costs_no_device(beside: bool, state: State) -> None:
    """Bug: a device that wrote its part of a checkpoint for longer than 120 s beside a round of a second was taken for
    the one that all wait for, and lost; as was one that ended it after another one's loss."""
    waits = replace(state, saving=state.history.version) if beside else replace(state, phase=COLLECTING)
    now = [0.0]
    patience = Patience(lambda: now[0])
    for at_s, late in ((0.0, False), (MIN_PATIENCE_S + SAVING_S, False), (MIN_PATIENCE_S + SAVING_S + 0.1, True)):
        now[0] = at_s
        assert (patience.overdue(waits, 1.0) is not None) == late


def test_a_checkpoint_after_an_average_has_more_time_but_not_at_a_stop(state: State) -> None:
    """Who asked for the end waits no longer than ever."""
    now = [0.0]
    for stop, limit_s in ((False, SAVING_S + 10 * PATIENCE_AVERAGES), (True, SAVING_AT_STOP_S)):
        asked = replace(state, phase=FINISHING, stop=stop)
        patience = Patience(lambda: now[0])
        now[0] = 0.0
        assert patience.overdue(asked, 1.0, 10.0) is None
        now[0] = limit_s
        assert patience.overdue(asked, 1.0, 10.0) is None
        now[0] = limit_s + 0.1
        assert patience.overdue(asked, 1.0, 10.0) is not None


def test_each_round_has_its_own_time(state: State) -> None:
    """The wait begins anew with every commit."""
    now = [0.0]
    patience = Patience(lambda: now[0])
    assert state.phase == RUNNING and patience.overdue(state, 1.0) is None
    now[0] = MIN_PATIENCE_S
    later = replace(state, history=state.history.committed(state.history.rounds, state.attempt))
    assert patience.overdue(later, 1.0) is None
    now[0] = 2 * MIN_PATIENCE_S
    assert patience.overdue(later, 1.0) is None
