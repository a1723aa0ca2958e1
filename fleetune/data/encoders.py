"""From examples to the arrays a model takes, a chunk at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fleetune.data.examples import Example, RawLabel
from fleetune.data.folder import Array, ArrayInfo
from fleetune.data.needs import InputNeeds
from fleetune.data.processing import Processing
from fleetune.data.tokens import Ids, check_ids, encode, encode_closed

IGNORED = -100
"""Label of a position that has nothing to predict."""
IDS, MASK, LABELS, PIXELS = "input_ids", "attention_mask", "labels", "pixel_values"


class Encoder(Protocol):
    """Turns examples into rows of arrays."""

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """Names, types and shapes for that many samples."""

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """The rows of a chunk, by array."""


@dataclass(frozen=True, kw_only=True)
class TextEncoder:
    """Ids and masks [samples, length]; labels [samples], or [samples, length] for causal-lm."""

    tokenizer: Any
    length: int
    needs: InputNeeds
    numbers: Mapping[RawLabel, int]

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """See Encoder."""
        return token_arrays(samples, self.length, causal=self.needs.task == "causal-lm")

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """See Encoder."""
        causal = self.needs.task == "causal-lm"
        texts = [str(example.content) for example in chunk]
        ids, mask = (encode_closed if causal else encode)(self.tokenizer, texts, self.length)
        check_ids(ids, self.needs)
        if causal:
            return {IDS: ids, MASK: mask, LABELS: causal_labels(ids, mask)}
        return {IDS: ids, MASK: mask, LABELS: _numbers(chunk, self.numbers)}


@dataclass(frozen=True, kw_only=True)
class ImageEncoder:
    """Pixels [samples, channels, height, width]; labels [samples]."""

    processing: Processing
    precision: str
    numbers: Mapping[RawLabel, int]

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """See Encoder."""
        return (
            ArrayInfo(name=PIXELS, dtype=self.precision, shape=(samples, *self.processing.shape)),
            ArrayInfo(name=LABELS, dtype="int32", shape=(samples,)),
        )

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """See Encoder."""
        pixels = np.stack([self.processing.pixels(example) for example in chunk])
        return {PIXELS: pixels, LABELS: _numbers(chunk, self.numbers)}


def token_arrays(samples: int, length: int, causal: bool) -> tuple[ArrayInfo, ...]:
    """The arrays of a text task on disk."""
    shape = (samples, length)
    return (
        ArrayInfo(name=IDS, dtype="int32", shape=shape),
        ArrayInfo(name=MASK, dtype="uint8", shape=shape),
        ArrayInfo(name=LABELS, dtype="int32", shape=shape if causal else (samples,)),
    )


def causal_labels(ids: Ids, mask: Ids) -> Ids:
    """Every token is predicted from those before it (the loss shifts); padding is not."""
    return np.where(mask == 1, ids, IGNORED)


def _numbers(chunk: list[Example], numbers: Mapping[RawLabel, int]) -> Ids:
    return np.asarray([numbers[example.label] for example in chunk if example.label is not None], dtype=np.int64)
