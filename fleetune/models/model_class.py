"""The class of a model for a task: that of transformers, or ours where it has none."""

from typing import Any

from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PretrainedConfig,
)

from fleetune.contracts.tasks import head_of
from fleetune.models.pooled_classifier import needs_pooled_classifier, pooled_classifier

IMAGE = "image-classification"
AUTO = {
    "sequence-classification": AutoModelForSequenceClassification,
    IMAGE: AutoModelForImageClassification,
    "causal-lm": AutoModelForCausalLM,
    "seq2seq": AutoModelForSeq2SeqLM,
}


def model_class(config: PretrainedConfig, task: str) -> Any:
    """Return a class that has `from_config` and `from_pretrained`."""
    head = head_of(task)
    if head == IMAGE and needs_pooled_classifier(config):
        return pooled_classifier(config)
    return AUTO[head]
