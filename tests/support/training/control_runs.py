"""Partitioned trainings of the control set, beside their controls."""

from pathlib import Path
from typing import Any

from fleetune.contracts.plan import Plan
from fleetune.contracts.training_request import TrainingRequest
from tests.support.training.control_comparison import Comparison, beside_control
from tests.support.training.model_families import MINILM, Family
from tests.support.training.runs import Prepared, final_state, plan, run_plan
from tests.support.training.unsplit_training import Control

WHOLE = [(0, 8)]
UNEVEN = [(0, 3), (3, 8)]


def compared(
    ready: Prepared, cuts: list[int], shares: list[list[int]], training: TrainingRequest, folder: Path
) -> Comparison:
    """Train both ways and compare."""
    run = cut_run(ready, plan(ready.units, cuts, shares), training, folder)
    return beside_control(ready, run, training, WHOLE)


def cut_run(ready: Prepared, made: Plan, training: TrainingRequest, folder: Path, **changes: Any) -> Control:
    """Return the losses and the state of a partitioned run."""
    metrics = run_plan(ready, made, training, folder, **changes)
    return Control([round.loss for round in metrics.rounds], final_state(folder))


def request(family: Family | None = None, **changes: object) -> TrainingRequest:
    """Return a request for 5 rounds of 3 micro-batches of 8; for 2 rounds of the model of real size."""
    settings = {
        "rounds": 2 if family is MINILM else 5,
        "batch_samples": 24,
        "micro_batch_samples": 8,
        "learning_rate": 1e-3,
        **changes,
    }
    return TrainingRequest(**settings)  # type: ignore[arg-type]
