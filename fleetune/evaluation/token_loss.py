"""The loss of predicted tokens, summed in float64 a few at a time, and how many samples' logits are held at once.

The logits of a large vocabulary are the largest tensor of an evaluation by far: of 32 samples with 1024 tokens among
152,000 they would be 20 GB, and their float64 copies twice as much each.
"""

from typing import Any

import torch

from fleetune.contracts.input_spec import IGNORE_INDEX
from fleetune.contracts.tasks import predicts_tokens
from fleetune.data.prepared_data import LABELS, PreparedData
from fleetune.models.loss import FLOAT32_BYTES, loss_sum
from fleetune.models.source import text_part

LOGITS_BYTES = 256 * 2**20
"""Most bytes of a batch's logits in float32, unless those of one sample are more."""
CHUNK_BYTES = 32 * 2**20
"""Most bytes of the logits that are converted to float64 at once, unless those of one token are more."""
FLOAT64_BYTES = 8


def vocabulary(model: Any) -> int | None:
    """Return the number of tokens that a model chooses from; None if its configuration does not say."""
    config = getattr(model, "config", None)
    found = None if config is None else getattr(text_part(config), "vocab_size", None)
    return None if found is None else int(found)


def samples_at_once(model: Any, data: PreparedData, most: int) -> int:
    """Return the size of a batch whose logits fit into LOGITS_BYTES: at least one sample, and no more than `most`."""
    tokens = vocabulary(model) if predicts_tokens(data.task) else None
    if tokens is None:
        return most
    (positions,) = data.shape(LABELS)
    return max(1, min(most, LOGITS_BYTES // (FLOAT32_BYTES * positions * tokens)))


def summed_loss(logits: torch.Tensor, labels: torch.Tensor, task: str) -> float:
    """Return `loss_sum` of a batch, computed in float64.

    Of predicted tokens, only the logits of positions that have a target are converted, CHUNK_BYTES at a time.
    """
    if not predicts_tokens(task):
        return float(loss_sum(logits.double(), labels, task))
    if task == "causal-lm":  # each position predicts the next token
        labels = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORE_INDEX)], dim=1)
    rows, wanted = logits.flatten(0, 1), labels.flatten()
    total = torch.zeros((), dtype=torch.float64, device=logits.device)
    for chosen in (
        (wanted != IGNORE_INDEX).nonzero()[:, 0].split(max(1, CHUNK_BYTES // (FLOAT64_BYTES * rows.shape[1])))
    ):
        total += torch.nn.functional.cross_entropy(rows[chosen].double(), wanted[chosen], reduction="sum")
    return float(total)
