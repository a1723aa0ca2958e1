"""A rehearsal ends its coordinator, and the training goes on as one that nothing befell."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fleetune.contracts import json_io
from fleetune.training.commit_log import read_commits
from flows.chaos import training as chaos_training
from flows.chaos.rehearsal import named
from flows.chaos.schedule import CoordinatorEnd, Schedule
from flows.chaos.training import SCHEDULE
from tests.support.training.falls import TRAINING, Trained, assert_nothing_lost, small_bert, table_plan, undisturbed
from tests.support.training.runs import Prepared, final_state, run_plan, stage_task

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A small BERT with dropout."""
    return small_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def whole(ready: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A training by the table's plan that nothing befalls."""
    return undisturbed(ready, tmp_path_factory.mktemp("whole"))


def test_the_coordinator_is_killed_between_logging_and_sending_a_commit(
    ready: Prepared, whole: Trained, tmp_path: Path
) -> None:
    """Its devices end with it. The round that no device has applied is run again from the checkpoint, to the same bits,
    though it is in the log.
    """
    made, work = table_plan(ready), tmp_path / "work"
    task = stage_task(ready, made, tmp_path, TRAINING)
    json_io.write(Schedule(coordinator=(CoordinatorEnd(number=0, round=3),)), work / SCHEDULE)
    command = [sys.executable, "-m", chaos_training.__name__, "--task", str(task)]
    killed = subprocess.run(command, stdout=subprocess.DEVNULL, timeout=PATIENCE_S, check=False)
    assert killed.returncode == -signal.SIGKILL and len(read_commits(work / "commits.jsonl")) == 4
    until_s = time.monotonic() + PATIENCE_S
    while left := [each for each in psutil.process_iter() if named(each, str(tmp_path))]:
        assert time.monotonic() < until_s, f"still there: {left}"
        time.sleep(0.05)
    metrics = run_plan(ready, made, TRAINING, tmp_path)
    assert metrics.resumed_from_round == 2
    assert_nothing_lost(ready, tmp_path, Trained(metrics, final_state(tmp_path)), whole, bitwise=True)
