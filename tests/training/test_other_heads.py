"""Heads for numbers and for several labels train partitioned as the unsplit model does in plain PyTorch."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.run_config import DataRequest, Lora
from fleetune.contracts.training_request import TrainingRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.data.unlabelled import asked_texts
from fleetune.evaluation.prediction import Predictor
from fleetune.evaluation.trained_model import ScoringOptions, load_result, score
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model
from fleetune.models.skeleton import saved_configuration
from tests.support.training.control_comparison import FP32, beside_control
from tests.support.training.model_families import BY_NAME, model_request
from tests.support.training.runs import Prepared, final_state, plan, prepared, run_plan
from tests.support.training.unsplit_training import Control

TRAINING = TrainingRequest(rounds=12, batch_samples=24, learning_rate=2e-3)
NUMBERS, LABELS = "sequence-regression", "sequence-multi-label-classification"
SEVERAL = ("long", "even", "third")


def rows(task: str) -> list[dict[str, Any]]:
    """Texts of one to eleven words, with their length, or with what can be said of it."""
    lengths = [1 + 7 * number % 11 for number in range(120)]
    of = [[n > 6, n % 2 == 0, n % 3 == 0] for n in lengths]
    return [
        {
            "text": f"{number} " + "alpha " * length,
            "label": length / 11 if task == NUMBERS else [name for name, has in zip(SEVERAL, said, strict=True) if has],
        }
        for number, (length, said) in enumerate(zip(lengths, of, strict=True))
    ]


def ready_for(task: str, folder: Path, **changes: Any) -> Prepared:
    """A small BERT without dropout and its data."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(task)))
    model = replace(model_request(BY_NAME["bert"], dropout=False, **changes), task=task)
    return prepared(model, DataRequest(source=str(folder / "rows.jsonl"), max_length=24), folder)


@pytest.mark.parametrize("task", [NUMBERS, LABELS])
def test_other_heads_train_as_in_plain_pytorch(task: str, tmp_path: Path) -> None:
    """Two segments bit by bit, two shards within rounding: the losses of each round and all weights."""
    ready = ready_for(task, tmp_path)
    for cuts, shares, exact in (([3], [[8], [8]], True), ([3], [[3, 5], [8]], False)):
        folder = tmp_path / f"{len(shares[0])}"
        metrics = run_plan(ready, plan(ready.units, cuts, shares), TRAINING, folder)
        run = Control(losses=[each.loss for each in metrics.rounds], state=final_state(folder))
        compared = beside_control(ready, run, TRAINING, [(0, 8)])
        assert compared.bitwise if exact else compared.within(FP32)


@pytest.mark.parametrize("adapter", [False, True], ids=["whole", "adapter"])
@pytest.mark.parametrize("task", [NUMBERS, LABELS])
def test_they_are_scored_asked_and_loaded_by_transformers(task: str, adapter: bool, tmp_path: Path) -> None:
    """Its loss falls, its scores are those of the task, and a prediction is what transformers' own class,
    which needs no word about the task, says."""
    lora = Lora(r=4, targets=("query", "value")) if adapter else None
    ready = ready_for(task, tmp_path, lora=lora)
    training = replace(TRAINING, rounds=30, learning_rate=1e-2 if adapter else 2e-3)
    run_plan(ready, plan(ready.units, [3], [[8], [8]]), training, tmp_path)
    data = PreparedData(ready.folders.data)
    model = load_result(tmp_path / "output" / "checkpoint", ready.folders.model, ready.model, pytest.fail)
    found = score(model, data, ScoringOptions()).values
    assert set(found) == ({"r2", "mae", "loss"} if task == NUMBERS else {"accuracy", "micro_f1", "macro_f1", "loss"})
    config = saved_configuration(ready.folders.model / "model")
    untrained = initial_model(config, ready.model, ready.folders.model / INIT_WEIGHTS)
    assert found["loss"] < 0.95 * score(untrained, data, ScoringOptions()).values["loss"]
    (said,) = Predictor(model=model, data=data).predictions(asked_texts(["7 " + "alpha " * 9], chats=False))
    if task == NUMBERS:
        assert said.value is not None and 0 < said.value < 1.5 and not said.label
    else:
        assert set(said.probabilities) == set(SEVERAL)
        assert set(filter(None, said.label.split(", "))) == {n for n, p in said.probabilities.items() if p > 0.5}
    if not adapter:
        from transformers import AutoModelForSequenceClassification

        plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "output" / "checkpoint" / "model")
        wanted = "regression" if task == NUMBERS else "multi_label_classification"
        assert plain.config.problem_type == wanted
        assert list(plain.config.id2label.values()) == (["label"] if task == NUMBERS else list(data.labels))
