"""Training that runs away ends in a sentence."""

from pathlib import Path

import pytest

from fleetune.contracts.config.training import TrainingRequest
from fleetune.errors import Refused
from fleetune.training.commits import read_commits
from tests.training.families import BY_NAME, data_request, model_request
from tests.training.runs import plan, prepared, run_plan


@pytest.mark.slow
def test_a_loss_that_is_no_number_is_refused_with_its_round(tmp_path: Path) -> None:
    """Trying again would end the same way: the device, the round and what to change are named; nothing is left."""
    ready = prepared(model_request(BY_NAME["vit"], dropout=True), data_request(BY_NAME["vit"], tmp_path), tmp_path)
    training = TrainingRequest(
        rounds=9, batch_samples=24, micro_batch_samples=8, optimizer="sgd", learning_rate=1e30, momentum=0.9
    )
    with pytest.raises(Refused, match=r"device d0 failed: training: round \d has a loss of nan .* learning_rate"):
        run_plan(ready, plan(ready.units, [], [[8]]), training, tmp_path)
    assert read_commits(tmp_path / "work" / "commits.jsonl")
    assert not (tmp_path / "output").exists()
