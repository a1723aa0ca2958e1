"""Scores of a model on a whole split."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fleetune.contracts.metrics import ClassScore
from fleetune.contracts.task import Progress, ignore_progress
from fleetune.data.prepared_data import PreparedData
from fleetune.errors import Refused
from fleetune.models.loss import count_targets, loss_sum

BETTER = {"accuracy": "higher", "macro_f1": "higher", "loss": "lower", "perplexity": "lower"}
"""All scores in the order of the tables, with the direction that is better."""
LARGEST_EXPONENT = 700.0
"""Larger exponents overflow a float."""


@dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """Settings for scoring a split."""

    split: str = "test"
    batch_samples: int = 32
    accelerator: str = "cpu"
    progress: Progress = ignore_progress


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of a model on a split."""

    values: dict[str, float]
    """Classification: accuracy, macro_f1 (over the classes that occur or are predicted), loss (mean per sample).
    causal-lm: loss (mean per predicted token), perplexity (its exponential)."""
    classes: tuple[ClassScore, ...] = ()


def score(model: nn.Module, data: PreparedData, scoring: ScoringOptions, what: str = "model") -> Scores:
    """Score every sample of the split, with the model in evaluation mode, without gradients, on one thread.

    what: the model's name in messages. Refused if the loss is not finite or the split has no targets.
    """
    samples = data.size(scoring.split)
    loss, targets = 0.0, 0
    predicted: list[np.ndarray] = []
    wanted: list[np.ndarray] = []
    model.to(scoring.accelerator).eval()
    with torch.no_grad(), _one_thread():
        for first in range(0, samples, scoring.batch_samples):
            last = min(first + scoring.batch_samples, samples)
            rows = data.rows(scoring.split, np.arange(first, last))
            labels = rows.pop("labels")
            inputs = {name: torch.from_numpy(array).to(scoring.accelerator) for name, array in rows.items()}
            logits = model(**inputs).logits
            loss += float(loss_sum(logits.double(), torch.from_numpy(labels).to(scoring.accelerator), data.task))
            targets += count_targets(labels, data.task)
            if data.task != "causal-lm":
                predicted.append(logits.argmax(dim=-1).cpu().numpy())
                wanted.append(labels)
            scoring.progress(f"scoring the {what}", last, samples, "samples")
    if not math.isfinite(loss):
        raise Refused(f"evaluation: the loss of the {what} is {loss}; training diverged, lower training.learning_rate")
    if not targets:
        raise Refused(f"{data.folder}: nothing to predict in split {scoring.split!r}; give longer texts")
    mean = loss / targets
    if data.task == "causal-lm":
        return Scores(values={"loss": mean, "perplexity": math.exp(min(mean, LARGEST_EXPONENT))})
    taken, given = np.concatenate(predicted), np.concatenate(wanted)
    return Scores(
        values={**classification_scores(taken, given), "loss": mean}, classes=class_scores(taken, given, data.labels)
    )


def classification_scores(predicted: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """Return accuracy and macro_f1 of predicted class numbers, shape [samples]."""
    from sklearn.metrics import accuracy_score, f1_score

    macro = f1_score(wanted, predicted, average="macro", zero_division=0)
    return {"accuracy": float(accuracy_score(wanted, predicted)), "macro_f1": float(macro)}


def class_scores(predicted: np.ndarray, wanted: np.ndarray, names: tuple[str, ...]) -> tuple[ClassScore, ...]:
    """Return precision, recall and F1 of every class, in order of number, from class numbers of shape [samples]."""
    from sklearn.metrics import precision_recall_fscore_support

    numbers = list(range(len(names)))
    found = precision_recall_fscore_support(wanted, predicted, labels=numbers, zero_division=0)
    return tuple(
        ClassScore(name=name, samples=int(samples), precision=float(precision), recall=float(recall), f1=float(f1))
        for name, precision, recall, f1, samples in zip(names, *found, strict=True)
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread, so that the order of additions is the same on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
