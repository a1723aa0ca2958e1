"""The points of a run, while it trains and when it has ended."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.contracts.metrics import RoundScores
from flows.trackers.run_points import RunPoints
from flows.trackers.tensorboard_files import TensorBoardFiles
from tests.support.flows.trackers.event_file import scalars, served
from tests.support.flows.trackers.runs import ENDED, LENGTHS, STARTED_S, TrainingRun

ROUND_SAMPLES = 24


def test_rounds_are_told_as_they_are_committed(tmp_path: Path) -> None:
    """A round is told once its commit is in the event log, with rates from the commit before it to its own."""
    run = TrainingRun(tmp_path / "store")
    points = RunPoints(run.store, lambda: run.record)
    assert points.read(over=False) == []
    rounds = list(run.made.training.rounds)
    run.commit(rounds[:3])
    run.log({0: 1.0, 1: 3.0})
    first, second = points.read(over=False)
    assert (first.step, first.at_s, second.step, second.at_s) == (0, STARTED_S + 1, 1, STARTED_S + 3)
    assert first.values == {
        "train/loss": rounds[0].loss,
        "train/learning_rate": 5e-4,
        "train/round_s": 0.2,
        "train/gradient_norm": 1.0,
    }
    assert second.values["train/samples_per_s"] == ROUND_SAMPLES / 2
    run.log({2: 4.0})
    again = points.read(over=False)
    assert [point.step for point in again] == [0, 1, 2]
    assert again[0] is first


@pytest.mark.parametrize("packed", [False, True])
def test_padding_is_no_token(tmp_path: Path, packed: bool) -> None:
    """Tokens a second count what samples have: 24 samples are each of three eight times, or 24 packed rows."""
    run = TrainingRun(tmp_path / "store", packed=packed)
    run.commit(list(run.made.training.rounds[:2]))
    run.log({0: 1.0, 1: 3.0})
    tokens = sum(LENGTHS) * ROUND_SAMPLES / (1 if packed else len(LENGTHS))
    assert RunPoints(run.store, lambda: run.record).read(over=False)[1].values["train/tokens_per_s"] == tokens / 2


def test_the_scale_of_the_loss_is_a_curve_in_fp16_alone(tmp_path: Path) -> None:
    """It shows when gradients overflow; in other precisions there is none, and no curve of ones."""
    run = TrainingRun(tmp_path / "store")
    one, other = run.made.training.rounds[:2]
    run.commit([replace(one, loss_scale=65536.0), other])
    run.log({0: 1.0, 1: 2.0})
    first, second = RunPoints(run.store, lambda: run.record).read(over=False)
    assert first.values["train/loss_scale"] == 65536.0
    assert "train/loss_scale" not in second.values


def test_samples_of_lanes_that_rest_do_not_count(tmp_path: Path) -> None:
    """Bug: rates in rounds in which clients rest were those of rounds with all of them."""
    run = TrainingRun(tmp_path / "store")
    one, other = run.made.training.rounds[:2]
    (lane,) = {each.lane for each in run.made.training.timeline}
    run.commit([one, replace(other, resting=(lane,))])
    run.log({0: 1.0, 1: 3.0})
    assert RunPoints(run.store, lambda: run.record).read(over=False)[1].values["train/samples_per_s"] == 0.0


def test_rounds_that_are_run_again_replace_those_of_before(tmp_path: Path) -> None:
    """After a recovery, or in another attempt, the points are those of the rounds that count."""
    run = TrainingRun(tmp_path / "store")
    points = RunPoints(run.store, lambda: run.record)
    rounds = list(run.made.training.rounds)
    run.commit(rounds[:3])
    run.log({0: 1.0, 1: 2.0, 2: 3.0})
    assert len(points.read(over=False)) == 3
    run.commit(rounds[:1])
    assert [point.step for point in points.read(over=False)] == [0]
    run.commit(rounds[:2])
    run.log({1: 9.0})
    assert [point.at_s for point in points.read(over=False)] == [STARTED_S + 1, STARTED_S + 9]


def test_the_end_of_a_run_adds_its_scores(tmp_path: Path) -> None:
    """The points of a run that is done are those of its training, with the scores from before it at their beginning and
    those from after it at their end, also when it was reused from another run."""
    run = TrainingRun(tmp_path / "store")
    points = RunPoints(run.store, lambda: run.record)
    run.commit(list(run.made.training.rounds))
    run.log({round: 1.0 + round for round in range(60)})
    live = points.read(over=False)
    run.end()
    whole = points.read(over=True)
    assert whole[1:61] == live
    before, peaks, after = whole[0], *whole[61:]
    assert set(peaks.values) == {"memory_peak_bytes/a", "memory_peak_bytes/b", "memory_peak_bytes/c"}
    assert (before.step, before.values) == (0, {"test/accuracy": 0.1, "test/loss": 2.31})
    assert (after.step, after.values) == (60, {"test/accuracy": 0.86, "test/loss": 0.41})
    assert RunPoints(run.store, lambda: run.record).read(over=True) == whole
    assert ENDED.endswith("04+00:00") and (before.at_s, after.at_s) == (STARTED_S, STARTED_S + 4)


def test_scores_of_a_validation_split_are_a_curve_of_their_own(tmp_path: Path) -> None:
    """Losses of two splits on one curve would fall or rise where only the split has changed."""
    run = TrainingRun(tmp_path / "store", validation=True)
    scores = (RoundScores(rounds=60, values={"loss": 0.5}),)
    run.made = replace(run.made, training=replace(run.made.training, scores=scores))
    run.commit(list(run.made.training.rounds))
    run.log({round: 1.0 + round for round in range(60)})
    run.end()
    whole = RunPoints(run.store, lambda: run.record).read(over=True)
    losses = [(each.step, name, each.values[name]) for each in whole for name in each.values if "/loss" in name]
    assert [each for each in losses if not each[1].startswith("train")] == [
        *((0, "test/loss", 2.31), (60, "validation/loss", 0.5), (60, "test/loss", 0.41)),
    ]


def test_a_run_that_broke_off_keeps_its_last_round(tmp_path: Path) -> None:
    """A round that was committed and of which the event log says nothing is told when the run has ended."""
    run = TrainingRun(tmp_path / "store")
    run.commit(list(run.made.training.rounds[:1]))
    points = RunPoints(run.store, lambda: run.record)
    assert points.read(over=False) == []
    assert [(point.step, point.at_s) for point in points.read(over=True)] == [(0, STARTED_S)]


def test_scores_stay_where_they_were_first_seen(tmp_path: Path) -> None:
    """The scores of a state come some rounds later; what was told before stays in its place, so that nothing is written
    anew, and the scores carry their own rounds as step. At the end the last of them are not told twice."""
    run = TrainingRun(tmp_path / "store")
    points = RunPoints(run.store, lambda: run.record)
    rounds = list(run.made.training.rounds)
    run.commit(rounds[:4])
    run.log({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0})
    before = points.read(over=False)
    line = '{"rounds": 2, "values": {"loss": 2.0}}\n'
    (run.work / "scores.jsonl").write_text(line)
    scored = points.read(over=False)
    assert scored[:4] == before and (scored[4].step, scored[4].values) == (2, {"test/loss": 2.0})
    run.commit(rounds[:5])
    run.log({4: 5.0})
    later = points.read(over=False)
    assert later[:5] == scored and [point.step for point in later] == [0, 1, 2, 3, 2, 4]
    run.made = replace(
        run.made,
        training=replace(run.made.training, scores=(RoundScores(rounds=60, values={"loss": 0.41}),)),
    )
    run.commit(rounds)
    run.log({round: 10.0 + round for round in range(5, 60)})
    run.end()
    whole = RunPoints(run.store, lambda: run.record).read(over=True)
    assert [point.values for point in whole if point.step == 60 and "test/loss" in point.values] == [
        {"test/loss": 0.41}
    ]


def test_tensorboards_server_shows_the_whole_curve_of_a_score(tmp_path: Path) -> None:
    """TensorBoard's server, asked by HTTP as its page asks, forgets later steps of a name when an earlier one follows:
    the score from before the training, which is known last, is written first, and all trackers get that order."""
    run = TrainingRun(tmp_path / "store")
    scores = tuple(RoundScores(rounds=rounds, values={"loss": 2.0 - rounds / 64}) for rounds in (16, 32))
    run.made = replace(run.made, training=replace(run.made.training, scores=scores))
    run.commit(list(run.made.training.rounds))
    run.log({round: 1.0 + round for round in range(60)})
    points, files = RunPoints(run.store, lambda: run.record), TensorBoardFiles(tmp_path / "logs" / "demo-1")
    files.update(points.read(over=False))
    run.end()
    whole = points.read(over=True)
    files.update(whole)
    files.close("done")
    curve = [(0, 2.31), (16, 1.75), (32, 1.5), (60, 0.41)]
    assert [(one.step, one.values["test/loss"]) for one in whole if "test/loss" in one.values] == curve
    found = served(tmp_path / "logs" / "demo-1", "test/loss", len(curve))
    assert [step for step, _ in found] == [0, 16, 32, 60]
    assert [value for _, value in found] == pytest.approx([value for _, value in curve])
    assert scalars(tmp_path / "logs" / "demo-1")["test/loss"] == found
