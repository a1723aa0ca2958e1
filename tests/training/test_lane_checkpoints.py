"""Checkpoints of clients that are averaged now and then: what another plan may go on from."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.errors import TryAgain
from tests.support.training.lanes import TRAINING, ready_for, split
from tests.support.training.listeners import StopAfter
from tests.support.training.runs import plan, run_plan


def test_another_plan_goes_on_from_an_average_and_not_from_one_clients_model(tmp_path: Path) -> None:
    """Stopped after round 4, with averages and checkpoints every 3 rounds, clients differ. One device goes on from
    round 3, where all had the average, and says why; the same clients go on from round 4.
    """
    ready = ready_for(tmp_path)
    training = replace(TRAINING, rounds=6, checkpoint_every_rounds=3)
    stop = StopAfter(4)
    with pytest.raises(TryAgain, match="^ended after round 4 of 6"):
        run_plan(ready, split(ready, "xy"), training, tmp_path / "cut", stop=stop, progress=stop.listen)
    before = (tmp_path / "cut" / "work",)
    told: list[str] = []
    other = plan(ready.units, [], [[8]])
    found = run_plan(ready, other, training, tmp_path / "single", earlier=before, note=told.append)
    assert found.resumed_from_round == 3
    assert any("round 4 is not used (it holds models of x, y that were not averaged yet" in said for said in told), told
    told.clear()
    told.clear()
    joined = run_plan(ready, split(ready, "xyz"), training, tmp_path / "joined", earlier=before, note=told.append)
    assert joined.resumed_from_round == 3, "a client that the state lacks does not begin with another one's"
    assert any("round 4 is not used (it holds models of x, y that were not averaged yet" in said for said in told), told
    told.clear()
    again = run_plan(ready, split(ready, "yx"), training, tmp_path / "again", earlier=before, note=told.append)
    assert again.resumed_from_round == 4 and not any("not used" in said for said in told)
