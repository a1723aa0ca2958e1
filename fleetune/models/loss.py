"""The loss of a task as a sum over targets, so that the losses of a batch's shards add up to the batch's loss."""

import numpy as np
import torch
from torch.nn import functional

from fleetune.contracts.input_spec import IGNORE_INDEX
from fleetune.contracts.tasks import SEQ2SEQ, predicts_labels, predicts_number

FLOAT32_BYTES = 4


def loss_sum(logits: torch.Tensor, labels: torch.Tensor, task: str) -> torch.Tensor:
    """Return the summed cross entropy; the squared error of numbers, and the binary cross entropy of labels.

    logits [samples, classes] and labels [samples], of numbers [samples, 1] and floats [samples], of several labels both
    [samples, labels] with 1.0 for those that a sample has; for causal-lm, logits [samples, tokens, vocabulary] and
    labels [samples, tokens], where each token predicts the next; for seq2seq the same shapes, and each position its
    own label. Logits in half precision are summed up in float32.
    """
    logits = logits.float() if logits.element_size() < FLOAT32_BYTES else logits
    if predicts_number(task):
        return functional.mse_loss(logits[:, 0], labels.to(logits.dtype), reduction="sum")
    if predicts_labels(task):
        return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
    if task == "causal-lm":
        logits = logits[:, :-1].reshape(-1, logits.shape[-1])
        labels = labels[:, 1:].reshape(-1)
    if task == SEQ2SEQ:
        logits, labels = logits.flatten(0, 1), labels.flatten()
    return functional.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")


def count_targets(labels: np.ndarray, task: str) -> int:
    """Return the number of terms that loss_sum adds up for these labels."""
    if labels.dtype.kind == "f":
        return int(labels.size)
    counted = labels[:, 1:] if task == "causal-lm" else labels
    return int((counted != IGNORE_INDEX).sum())
