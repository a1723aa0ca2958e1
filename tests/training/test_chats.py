"""Chats: the loss of a round is the mean over all tokens with loss of its batch, whoever computes which of them."""

from pathlib import Path

import pytest
import torch

from fleetune.contracts.run_config import DataRequest, ModelRequest
from fleetune.contracts.training_request import TrainingRequest
from fleetune.data.prepared_data import PreparedData, batch_indices
from fleetune.models.loss import count_targets, loss_sum
from tests.support.data.chat_samples import CHATML, chats
from tests.support.data.samples import json_lines
from tests.support.training.control_comparison import FP64, beside_control, whole_model
from tests.support.training.control_runs import WHOLE, cut_run
from tests.support.training.model_families import QWEN3
from tests.support.training.runs import MICRO_BATCH, MICRO_BATCHES, Prepared, plan, prepared


def micro_batch_means(ready: Prepared) -> list[float]:
    """Mean loss of each micro-batch of the first round, of the model before training."""
    data, model = PreparedData(ready.folders.data), whole_model(ready).eval()
    drawn = batch_indices(data.size("train"), MICRO_BATCH * MICRO_BATCHES, ready.seed, 0)
    found = []
    for rows in drawn.reshape(MICRO_BATCHES, MICRO_BATCH):
        given = data.rows("train", rows)
        labels = given.pop("labels")
        with torch.no_grad():
            logits = model(**{name: torch.from_numpy(array) for name, array in given.items()}).logits
        summed = loss_sum(logits, torch.from_numpy(labels), "causal-lm")
        found.append(float(summed) / count_targets(labels, "causal-lm"))
    return found


@pytest.mark.parametrize("packing", [False, True], ids=["one per row", "packed"])
def test_every_token_with_loss_weighs_the_same(packing: bool, tmp_path: Path) -> None:
    """3 + 5 samples on two devices, then 8 on one, train as a plain loop whose loss is the mean over the whole batch.

    A mean of the micro-batches' means, which holds other numbers of tokens with loss, would be another loss.
    """
    (tmp_path / "chat.jinja").write_text(CHATML)
    rows = [chat for number, chat in enumerate(chats(300)) if number % 3]
    source = json_lines(tmp_path / "chats.jsonl", rows)
    data = DataRequest(source=str(source), max_length=128, chat_template=str(tmp_path / "chat.jinja"), packing=packing)
    ready = prepared(ModelRequest(task="causal-lm", config=QWEN3, precision="float64"), data, tmp_path)
    training = TrainingRequest(
        rounds=3, batch_samples=MICRO_BATCH * MICRO_BATCHES, micro_batch_samples=MICRO_BATCH, learning_rate=1e-2
    )
    run = cut_run(ready, plan(ready.units, [len(ready.units) // 2], [[3, 5], [8]]), training, tmp_path)
    found = beside_control(ready, run, training, WHOLE)
    assert found.within(FP64), (found.found, found.floor())
    means = micro_batch_means(ready)
    assert abs(sum(means) / len(means) - run.losses[0]) > 1e4 * FP64
