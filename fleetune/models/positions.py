"""How many positions a model has for a text, which is less than its configuration says where positions begin late."""

from torch import nn
from transformers import PretrainedConfig

from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.tasks import head_of
from fleetune.models.model_class import IMAGE
from fleetune.models.skeleton import untied_model
from fleetune.models.source import text_part

TABLES = ("position_embeddings", "embed_positions")
"""Last names of the tables of learned positions in all families of transformers."""


def usable_positions(config: PretrainedConfig, request: ModelRequest) -> int | None:
    """Return the largest number of tokens that a text may have; None if any number will do, or nothing is told."""
    text = text_part(config)
    told: int | None = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    if told is None or told < 1 or head_of(request.task) == IMAGE:  # XLNet says -1 where any number will do
        return told if told is not None and told > 0 else None
    return _after_padding(untied_model(config, request)) or told


def _after_padding(model: nn.Module) -> int | None:
    """Return the number of usable positions of a family that counts from behind the index of padding; None for others.

    Such a family has a table of positions with a row for padding, as word embeddings have one, since it computes
    positions from the tokens that are no padding (RoBERTa, MPNet, Longformer and others).
    """
    found = []
    for name, table in model.named_modules():
        padding, rows = getattr(table, "padding_idx", None), getattr(table, "weight", None)
        if name.rpartition(".")[2] in TABLES and padding is not None and rows is not None:
            found.append(len(rows) - int(padding) - 1)
    return min(found, default=None)
