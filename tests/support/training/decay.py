"""Parameters in the groups that transformers' Trainer gives its optimizer."""

from typing import Any

from torch import nn

from fleetune.contracts.training_request import TrainingRequest


def trainer_groups(model: nn.Module, training: TrainingRequest) -> list[dict[str, Any]]:
    """Return what decays and what does not; everything decays if the request says so."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not training.weight_decay or training.weight_decay_on == "all":
        return [{"params": list(trained.values()), "weight_decay": training.weight_decay}]
    from transformers.trainer import Trainer  # takes seconds

    unused: Any = None
    decayed = set(Trainer.get_decay_parameter_names(unused, model))
    return [
        {"params": [p for name, p in trained.items() if (name in decayed) == decays], "weight_decay": weight_decay}
        for decays, weight_decay in ((True, training.weight_decay), (False, 0.0))
    ]
