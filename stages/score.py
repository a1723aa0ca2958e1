"""score: a process beside `train` that scores one of its checkpoints on held-out samples.

It is no stage of its own: `stages.scoring` starts it, with inputs model, data and checkpoint, and reads scores.json.
"""

import os
from pathlib import Path

import torch

from fleetune.contracts import json_io
from fleetune.contracts.run_config import ModelRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.evaluation.trained_model import ScoringOptions
from fleetune.evaluation.trained_model import score as score_split
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model
from fleetune.models.skeleton import canonical_names, saved_configuration
from fleetune.training.checkpoints import trained_tensors
from stages.entry_point import StageContext, main
from stages.scoring import SCORES, ScoreValues

NICENESS = 19
"""Devices of this machine go first."""


def score(context: StageContext) -> None:
    """Score the state of a checkpoint as `evaluate` scores the trained model, on the validation split if any."""
    os.nice(NICENESS)
    folder = context.input("model")
    request = json_io.load(ModelRequest, context.task.config["model"], "model")
    model = initial_model(saved_configuration(folder / "model"), request, folder / INIT_WEIGHTS)
    trained, names = trained_tensors(context.input("checkpoint")), canonical_names(model)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if names[name] in trained:
                tensor.copy_(trained[names[name]])
    data = PreparedData(context.input("data"))
    found = score_split(model, data, ScoringOptions(split=data.scored_while_training), "trained model")
    json_io.write(ScoreValues(values=found.values), Path(context.task.output) / SCORES)


if __name__ == "__main__":
    main(score)
