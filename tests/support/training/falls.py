"""The training of the table of falls, and what holds after each fall."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fleetune.contracts.metrics import TrainingMetrics
from fleetune.contracts.plan import Plan
from fleetune.contracts.training_request import TrainingRequest
from fleetune.data.prepared_data import PreparedData, batch_indices
from fleetune.training.commit_log import read_commits
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import Prepared, final_state, plan, prepared, run_plan

ROUNDS = 5
TRAINING = TrainingRequest(
    rounds=ROUNDS,
    batch_samples=24,
    micro_batch_samples=8,
    learning_rate=1e-3,
    schedule="cosine",
    checkpoint_every_rounds=2,
)
TOLERANCE = 1e-5
"""Relative distance of losses and tensors that other orders of addition may lead to."""


class Trained(NamedTuple):
    """The result of a training."""

    metrics: TrainingMetrics
    state: dict[str, torch.Tensor]


def table_plan(ready: Prepared) -> Plan:
    """A group of two and one device behind it."""
    return plan(ready.units, [3], [[3, 5], [8]])


def small_bert(folder: Path) -> Prepared:
    """Return a small BERT with dropout."""
    return prepared(model_request(BY_NAME["bert"], dropout=True), data_request(BY_NAME["bert"], folder), folder)


def undisturbed(ready: Prepared, folder: Path) -> Trained:
    """Return a training by the table's plan that nothing befalls."""
    return Trained(run_plan(ready, table_plan(ready), TRAINING, folder), final_state(folder))


def assert_nothing_lost(ready: Prepared, folder: Path, found: Trained, whole: Trained, bitwise: bool = False) -> None:
    """Every sample of the epoch is used once, and losses and weights are those of the whole training."""
    rounds = [each.round for each in read_commits(folder / "work" / "commits.jsonl")]
    assert rounds == [each.round for each in found.metrics.rounds] == list(range(ROUNDS)), rounds
    samples = PreparedData(ready.folders.data).size("train")
    used = np.bincount(
        np.concatenate([batch_indices(samples, TRAINING.batch_samples, ready.seed, round) for round in rounds]),
        minlength=samples,
    )
    assert used.max() - used.min() <= 1, "no sample is used again before all were"
    losses = [(ours.loss, other.loss) for ours, other in zip(found.metrics.rounds, whole.metrics.rounds, strict=True)]
    assert all(abs(ours - other) <= (0 if bitwise else TOLERANCE * abs(other)) for ours, other in losses), losses
    assert found.state.keys() == whole.state.keys()
    for name, tensor in whole.state.items():
        distance = float((tensor.double() - found.state[name].double()).norm())
        limit = 0.0 if bitwise else TOLERANCE * max(1.0, float(tensor.double().norm()))
        assert distance <= limit, (name, distance)
