"""A checkpoint is written while the next round runs, and is the state before that round."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import TryAgain
from fleetune.training.checkpoints import checkpoint_folder, trained_tensors
from tests.support.training.failing_disk_worker import WHY, FailingDiskLauncher
from tests.support.training.late_disk_worker import LateDiskLauncher
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import plan, prepared, run_plan
from tests.support.training.slow_disk_worker import LAST, SlowDiskLauncher

TRAINING = TrainingRequest(
    rounds=LAST, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3, checkpoint_every_rounds=1
)


def test_a_disk_that_takes_a_checkpoint_in_the_next_round_delays_none(tmp_path: Path) -> None:
    """Bug: all devices waited until a checkpoint was written, seconds for a large model. With dropout,
    what is written beside a round is bit for bit what a training that ends there leaves.
    """
    family = BY_NAME["bert"]
    ready = prepared(model_request(family, dropout=True), data_request(family, tmp_path), tmp_path)
    two = plan(ready.units, [2], [[8], [8]])
    run_plan(ready, two, TRAINING, tmp_path / "slow", launcher=SlowDiskLauncher())
    run_plan(ready, two, replace(TRAINING, rounds=LAST - 1), tmp_path / "whole")
    slow, whole = (trained_tensors(checkpoint_folder(tmp_path / name / "work", LAST - 1)) for name in ("slow", "whole"))
    assert slow.keys() == whole.keys() and all(torch.equal(slow[name], whole[name]) for name in whole)


def test_the_last_checkpoint_waits_for_a_device_that_still_writes_the_one_before(tmp_path: Path) -> None:
    """Bug: the last checkpoint takes the place of one that is still being written, and a device that had its part of
    that one deleted the folder under another's hands, which ended the training with a disk that could not be written.
    """
    family = BY_NAME["bert"]
    ready = prepared(model_request(family, dropout=True), data_request(family, tmp_path), tmp_path)
    two, training = plan(ready.units, [2], [[8], [8]]), replace(TRAINING, rounds=2)
    said: list[str] = []
    run_plan(ready, two, training, tmp_path / "late", launcher=LateDiskLauncher(), note=said.append)
    run_plan(ready, two, training, tmp_path / "whole")
    late, whole = (trained_tensors(checkpoint_folder(tmp_path / name / "work", 2)) for name in ("late", "whole"))
    assert said == [] and all(torch.equal(late[name], whole[name]) for name in whole)


def test_an_error_of_a_thread_that_writes_is_told(tmp_path: Path) -> None:
    """The training ends with it, and the worker's log says where it was raised; never "NoneType: None", which is what
    Python prints of an error that it is asked for too late."""
    family = BY_NAME["bert"]
    ready = prepared(model_request(family, dropout=True), data_request(family, tmp_path), tmp_path)
    one = plan(ready.units, [], [[8]])
    with pytest.raises(TryAgain, match=f"RuntimeError: {WHY}"):
        run_plan(ready, one, replace(TRAINING, rounds=2), tmp_path / "failing", launcher=FailingDiskLauncher())
    (log,) = (text for path in (tmp_path / "failing").rglob("log") if WHY in (text := path.read_text()))
    assert "Traceback" in log and "in fail" in log and "NoneType: None" not in log
