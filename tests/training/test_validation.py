"""Scores beside a training: when it waits for them, what they decide, and that restarts change nothing of it."""

import io
import json
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetune.contracts import json_io
from fleetune.contracts.metrics import RoundScores
from fleetune.contracts.task import StageTask
from fleetune.contracts.training_request import TrainingRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.errors import Refused, TryAgain
from fleetune.evaluation.trained_model import ScoringOptions, load_result
from fleetune.evaluation.trained_model import score as scores_of
from fleetune.training.checkpoints import checkpoint_folder, complete_of, is_whole, mark_complete, trained_tensors
from fleetune.training.validation import SCORES, Answer, Validation, best, is_enough
from stages.entry_point import Channel, StageContext
from stages.scoring import scorer
from tests.support.launching.freezing import WORDS, Freezing
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import final_state, plan, prepared, run_plan

LIMIT_S = 300.0
"""Patience for a process on a busy machine."""
TRAINING = TrainingRequest(rounds=10, evaluate_every_rounds=2, early_stopping_patience=2, keep_best=True)


def scores(*losses: float) -> list[RoundScores]:
    """Scores of every second round."""
    return [RoundScores(rounds=2 * number, values={"loss": loss}) for number, loss in enumerate(losses, start=1)]


@dataclass
class Told:
    """Scores checkpoints by a list of losses; `ready` says whether they are there."""

    losses: dict[int, float]
    ready: bool = True
    begun: list[int] = field(default_factory=list)
    stopped: int = 0

    def __call__(self, folder: Path) -> "Told.Job":
        """Begin."""
        self.begun.append(int(folder.name.removeprefix("round-")))
        return Told.Job(self, self.begun[-1])

    @dataclass
    class Job:
        """One checkpoint's."""

        told: "Told"
        rounds: int

        def result(self) -> dict[str, float] | None:
            """The loss, once it is ready."""
            return {"loss": self.told.losses[self.rounds]} if self.told.ready else None

        def stop(self) -> None:
            """Count it."""
            self.told.stopped += 1


def test_the_best_is_the_lowest_and_patience_counts_from_it() -> None:
    """Of equal losses the first is the best; a training ends once the last `patience` scores were no better."""
    assert best(scores(3.0, 1.0, 1.0, 2.0)).rounds == 4
    for losses, patience, enough in (
        ((3.0, 2.0, 2.5), 1, True),
        ((3.0, 2.0, 2.5), 2, False),
        ((3.0, 2.0, 2.0, 2.0), 2, True),
        ((3.0, 2.0, 1.0), 1, False),
        ((3.0, 4.0), None, False),
        ((), 1, False),
    ):
        assert is_enough(scores(*losses), patience) is enough, (losses, patience)


def test_the_next_rounds_wait_for_the_scores_before_only(tmp_path: Path) -> None:
    """A state's scoring runs beside the next rounds; the one after waits for it, and the last for its own. What is kept
    is what is scored or waits for it, and the best."""
    told, said = Told({2: 3.0, 4: 2.0, 10: 2.5}, ready=False), list[str]()
    validation = Validation(TRAINING, tmp_path, told, said.append)
    assert validation.answer() is None
    validation.ask(2)
    assert validation.answer() == Answer(2, enough=False) and told.begun == [2] and set(validation.kept) == {2}
    validation.ask(4)
    assert validation.answer() is None and set(validation.kept) == {2, 4}
    assert validation.answer() is None and len(said) == 1 and said[0].startswith("round 4 waits for the scores after")
    told.ready = True
    assert validation.answer() == Answer(4, enough=False) and told.begun == [2, 4]
    validation.ask(10)
    told.ready = False
    assert validation.answer() is None
    told.ready = True
    assert validation.answer() is None and told.begun == [2, 4, 10] and not validation.complete  # of its own scores
    assert validation.answer() == Answer(10, enough=False) and validation.complete
    assert set(validation.kept) == {4}
    assert [line.partition(": ")[2] for line in said] == [
        "scoring takes longer than 2 rounds, so that a greater training.evaluate_every_rounds trains faster",
        "loss 3 (lowest loss so far)", "loss 2 (lowest loss so far)", "loss 2.5"
    ]  # fmt: skip


def test_a_restart_decides_as_if_there_had_been_none(tmp_path: Path) -> None:
    """The scores of states up to the checkpoint count, later ones are made again; one that was cut off in the middle
    of its line is none. The training ends where it would have ended."""
    told = Told({2: 1.0, 4: 2.0, 6: 3.0})
    first = Validation(TRAINING, tmp_path, told, lambda text: None)
    for rounds in (2, 4, 6):
        first.ask(rounds)
        assert first.answer() == Answer(rounds, enough=False)
    assert first.answer() is None  # takes the scores of 6
    first.ask(8)
    assert first.answer() == Answer(8, enough=True) and "since round 2" in first.ended_early
    with (tmp_path / SCORES).open("a") as file:
        file.write('{"rounds": 8, "val')
    for resumed, begun in ((8, []), (6, []), (4, [6])):
        again = Told({6: 3.0})
        later = Validation(TRAINING, tmp_path, again, lambda text: None)
        later.resume(resumed, ())
        later.ask(resumed)
        assert later.answer() == Answer(resumed, enough=resumed == 8)
        if resumed < 8:
            later.ask(6)
            later.answer()
            later.answer()
            later.ask(8)
            assert later.answer() == Answer(8, enough=True)
        assert again.begun == begun
        assert later.ended_early == first.ended_early


def complete(work: Path, *rounds: int) -> None:
    """Write complete checkpoints of these rounds."""
    for done in rounds:
        checkpoint_folder(work, done).mkdir(parents=True)
        mark_complete(work, done, {}, "", range(100))


def test_states_whose_scoring_was_interrupted_are_scored_first(tmp_path: Path) -> None:
    """Bug: killed while the state after round 4 was being scored, and resumed from round 8, a training never had its
    scores, and ended in another round. What two earlier attempts have scored counts together, the best checkpoint and
    the unscored one come from whichever has them, and nothing is decided before all scores are there."""
    losses = {2: 1.0, 4: 2.0, 6: 3.0}
    first, second, own = (tmp_path / name for name in ("first", "second", "own"))
    complete(first, 2)
    complete(second, 4, 8)
    for work, each in ((first, scores(1.0)[0]), (second, replace(scores(1.0)[0], rounds=6, values={"loss": 3.0}))):
        (work / SCORES).write_text(json.dumps(json_io.dump(each)) + "\n")
    told, said = Told(losses, ready=False), list[str]()
    later = Validation(TRAINING, own, told, said.append)
    later.resume(8, (second, first))
    assert told.begun == [4] and set(later.kept) == {2, 4} and is_whole(own, 2) and is_whole(own, 4)
    later.ask(8)
    assert later.answer() is None, "it waits for the scores after round 4"
    told.ready = True
    assert later.answer() == Answer(8, enough=True) and "since round 2" in later.ended_early
    assert [each.rounds for each in later.scores] == [2, 4, 6]
    again = Validation(TRAINING, own, told, said.append)
    again.resume(8, ())
    assert again.scores == later.scores and told.begun == [4]
    (own / SCORES).unlink()
    shutil.rmtree(checkpoint_folder(own, 4))
    lost = Validation(TRAINING, own, told, said.append)
    lost.resume(6, ())
    assert told.begun == [4, 2] and said[-1].startswith("the state after round 4 has no scores: its checkpoint")


def test_what_scoring_ends_with_ends_the_training(tmp_path: Path) -> None:
    """A loss that is not finite is refused, as `evaluate` would."""

    def refuses(folder: Path) -> Any:
        def result() -> None:
            raise Refused("evaluation: the loss of the trained model is nan")

        return type("Job", (), {"result": staticmethod(result), "stop": lambda self: None})()

    validation = Validation(TRAINING, tmp_path, refuses, lambda text: None)
    validation.ask(2)
    validation.answer()
    with pytest.raises(Refused, match="is nan"):
        validation.answer()


def test_settings_that_miss_each_other_are_refused() -> None:
    """Patience and the best state need scores; scores need a state that all lanes share."""
    for given in ({"keep_best": True}, {"early_stopping_patience": 2}):
        with pytest.raises(Refused, match="needs scores while it trains; set training.evaluate_every_rounds, too"):
            TrainingRequest(rounds=4, **given)
    for name in ("evaluate_every_rounds", "early_stopping_patience"):
        with pytest.raises(Refused, match=f"{name} must be a number above 0"):
            TrainingRequest(**{"rounds": 4, "evaluate_every_rounds": 2, name: 0})
    with pytest.raises(Refused, match="nothing is there that scores a checkpoint"):
        Validation(TRAINING, Path(), None, lambda text: None)
    with pytest.raises(Refused, match="evaluate_every_rounds 2 is no multiple of the 4 rounds between two averages"):
        TRAINING.check_scored_rounds(4, "split-learning")
    replace(TRAINING, evaluate_every_rounds=8).check_scored_rounds(4, "split-learning")
    TRAINING.check_scored_rounds(0, "asteroid")


def test_a_training_ends_early_with_its_best_state(tmp_path: Path) -> None:
    """Ten rounds are asked for, the third score is no better, so eight are run, and the result is the state after four,
    bit by bit that of a training of four rounds. One that is cut off at its second score and is run again comes to the
    same result."""
    family = BY_NAME["bert"]
    ready = prepared(model_request(family, dropout=True), data_request(family, tmp_path), tmp_path)
    training = replace(TRAINING, batch_samples=24, early_stopping_patience=1, learning_rate=1e-3)
    made = plan(ready.units, [3], [[8], [8]])
    notes: list[str] = []
    metrics = run_plan(
        ready,
        made,
        training,
        tmp_path / "early",
        score=Told({2: 3.0, 4: 1.0, 6: 2.0}),
        note=notes.append,
    )
    assert len(metrics.rounds) == 8 and metrics.result_rounds == 4 and "ends after round 8 of 10" in metrics.ended_early
    assert metrics.chosen
    assert [(each.rounds, each.values["loss"]) for each in metrics.scores] == [(2, 3.0), (4, 1.0), (6, 2.0)]
    run_plan(ready, made, four_rounds(), tmp_path / "four")
    early, wanted = final_state(tmp_path / "early"), final_state(tmp_path / "four")
    assert early.keys() == wanted.keys() and all(torch.equal(early[name], wanted[name]) for name in wanted)

    class Cut(Told):
        def __call__(self, folder: Path) -> Told.Job:
            if folder.name.endswith("04"):
                raise TryAgain("cut off")
            return super().__call__(folder)

    again = {2: 3.0, 4: 1.0, 6: 2.0}
    with pytest.raises(TryAgain, match="cut off"):
        run_plan(ready, made, training, tmp_path / "cut", score=Cut(again))
    assert complete_of(tmp_path / "cut" / "work", 4).mark.round == 4
    resumed = run_plan(ready, made, training, tmp_path / "cut", score=Told(again))
    assert len(resumed.rounds) == 8 and resumed.result_rounds == 4 and resumed.scores == metrics.scores
    cut = final_state(tmp_path / "cut")
    assert all(torch.equal(cut[name], wanted[name]) for name in wanted)
    kept = trained_tensors(checkpoint_folder(tmp_path / "cut" / "work", 4))
    assert kept and not (checkpoint_folder(tmp_path / "cut" / "work", 2)).exists()


def test_scores_beside_a_training_are_those_of_evaluation(tmp_path: Path) -> None:
    """The process that scores a checkpoint of two segments says what `evaluate` says of the model exported from it, and
    its error is the training's. Bug: it scored the test split where there is a validation split beside it."""
    family = BY_NAME["bert"]
    ready = prepared(model_request(family, dropout=True), data_request(family, tmp_path), tmp_path)
    training = replace(four_rounds(), evaluate_every_rounds=2)
    inputs = {"model": str(ready.folders.model), "data": str(ready.folders.data)}
    config = {"model": json_io.dump(ready.model)}
    work = tmp_path / "trained" / "work"
    task = StageTask(
        stage="train", run="r", seed=1, config=config, inputs=inputs, output=str(tmp_path / "o"), work=str(work)
    )
    made, notes = plan(ready.units, [3], [[8], [8]]), list[str]()
    score = scorer(StageContext(task=task, channel=Channel(io.StringIO())))
    metrics = run_plan(ready, made, training, tmp_path / "trained", score=score, note=notes.append)
    assert [each.rounds for each in metrics.scores] == [2, 4] and metrics.result_rounds is None and not metrics.chosen
    model = load_result(tmp_path / "trained" / "output" / "checkpoint", ready.folders.model, ready.model, pytest.fail)
    wanted = scores_of(model, PreparedData(ready.folders.data), ScoringOptions()).values
    assert metrics.scores[-1].values == wanted and metrics.scores[0].values != wanted
    assert sum(note.startswith("held-out samples after round") for note in notes) == 2
    both = with_validation(ready.folders.data, tmp_path / "both")
    found = waited(replace(task, inputs={**inputs, "data": str(both)}), checkpoint_folder(work, 4))
    assert found == scores_of(model, PreparedData(both), ScoringOptions(split="validation")).values != wanted
    with pytest.raises(Refused, match=r"none/data.json"):
        waited(replace(task, inputs={**inputs, "data": str(tmp_path / "none")}), checkpoint_folder(work, 4))


def waited(task: StageTask, checkpoint: Path) -> dict[str, float]:
    """The scores of a checkpoint."""
    job = scorer(StageContext(task=task, channel=Channel(io.StringIO())))(checkpoint)
    until_s = time.monotonic() + LIMIT_S
    while (found := job.result()) is None:
        assert time.monotonic() < until_s
    return found


def with_validation(data: Path, folder: Path) -> Path:
    """A copy of prepared data whose training rows are a validation split, too."""
    shutil.copytree(data, folder)
    shutil.copytree(folder / "train", folder / "validation")
    info = PreparedData(data).info
    more = replace(next(each for each in info.splits if each.name == "train"), name="validation")
    json_io.write(replace(info, splits=(*info.splits, more)), folder / "data.json")
    return folder


def test_a_process_that_scores_and_freezes_has_died(tmp_path: Path) -> None:
    """Bug: a training whose scorer was stopped waited for its scores for ever. It ends with an error to try again."""
    task = StageTask(stage="train", run="r", seed=1, config={}, inputs={}, output="", work=str(tmp_path))
    job = scorer(StageContext(task=task, channel=Channel(io.StringIO())), Freezing())(tmp_path / "round-2")
    until_s = time.monotonic() + LIMIT_S
    with pytest.raises(TryAgain, match=f"^scoring a checkpoint {WORDS}.*; run again$"):
        while job.result() is None:
            assert time.monotonic() < until_s


def four_rounds() -> TrainingRequest:
    """Short, and without scores."""
    return TrainingRequest(rounds=4, batch_samples=24, learning_rate=1e-3)
