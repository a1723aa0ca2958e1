"""Image classifiers of backbones that transformers has no such class for, as DINOv3: a linear head on what they pool.

A folder of one has the names that transformers' own classifiers have: the backbone's with its prefix, and `classifier`.
`AutoModel` loads the backbone from it. Each class is an attribute of this module, by which PEFT finds it again.
"""

from functools import cache
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.models.auto import modeling_auto

from fleetune.errors import Refused

SUFFIX = "ForImageClassification"


def needs_pooled_classifier(config: PretrainedConfig) -> bool:
    """Return whether a model reads images and transformers has a backbone of it, but no image classifier."""
    kind = config.model_type
    has_classifier = kind in modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    return kind in modeling_auto.MODEL_FOR_IMAGE_MAPPING_NAMES and not has_classifier


def pooled_classifier(config: PretrainedConfig) -> Any:
    """Return the class of the classifier: a PreTrainedModel whose `forward(pixel_values, labels)` has logits and loss.

    Its forward pass is Refused where the backbone pools no features of an image.
    """
    return _classifier_of(str(modeling_auto.MODEL_FOR_IMAGE_MAPPING_NAMES[config.model_type]))


def __getattr__(name: str) -> Any:
    if name.endswith(SUFFIX):
        return _classifier_of(f"{name.removesuffix(SUFFIX)}Model")
    raise AttributeError(f"module {__name__} has no attribute {name}")


@cache
def _classifier_of(backbone: str) -> type[PreTrainedModel]:
    body = getattr(transformers, backbone)
    name = backbone.removesuffix("Model") + SUFFIX
    family = next(base for base in body.__mro__[1:] if issubclass(base, PreTrainedModel))
    return type(name, (_PooledClassifier, family), {"body": body, "__module__": __name__})


class _PooledClassifier:
    """Comes before the family's own base class, which knows how weights are drawn and named."""

    body: Any
    config: PretrainedConfig
    base_model_prefix: str

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        setattr(self, self.base_model_prefix, self.body(config))
        self.classifier = nn.Linear(_width(config), config.num_labels)
        self.post_init()  # type: ignore[attr-defined]

    @classmethod
    def from_config(cls, config: PretrainedConfig, dtype: torch.dtype, trust_remote_code: bool = False) -> Any:
        """Make one with random weights, as transformers' auto classes do."""
        return cls._from_config(config, dtype=dtype)  # type: ignore[attr-defined]

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> ImageClassifierOutput:
        """pixel_values: [samples, channels, height, width]."""
        pooled = getattr(getattr(self, self.base_model_prefix)(pixel_values), "pooler_output", None)
        if pooled is None or pooled.dim() != 2:
            raise Refused(f"{type(self).body.__name__} pools no features of an image that a head could read")
        logits = self.classifier(pooled)
        loss = None if labels is None else self.loss_function(labels, logits, self.config)  # type: ignore[attr-defined]
        return ImageClassifierOutput(loss=loss, logits=logits)


def _width(config: PretrainedConfig) -> int:
    """Return the number of features that the backbone pools."""
    sizes = getattr(config, "hidden_sizes", None)
    return int(sizes[-1] if sizes else config.hidden_size)
