"""From examples to the arrays a model takes, a chunk at a time."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fleetune.data.examples import Example, RawLabel
from fleetune.data.folder import Array, ArrayInfo
from fleetune.data.images import Image, resized, with_channels
from fleetune.data.needs import InputNeeds
from fleetune.data.tokens import Ids, check_ids, encode

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
    numbers: dict[RawLabel, int]

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """See Encoder."""
        return token_arrays(samples, self.length, causal=self.needs.task == "causal-lm")

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """See Encoder."""
        ids, mask = encode(self.tokenizer, [str(example.content) for example in chunk], self.length)
        check_ids(ids, self.needs)
        if self.needs.task == "causal-lm":
            return {IDS: ids, MASK: mask, LABELS: causal_labels(ids, mask)}
        return {IDS: ids, MASK: mask, LABELS: _numbers(chunk, self.numbers)}


@dataclass(frozen=True, kw_only=True)
class ImageEncoder:
    """Pixels [samples, channels, side, side], normalised; labels [samples]."""

    side: int
    needs: InputNeeds
    numbers: dict[RawLabel, int]

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """See Encoder."""
        shape = (samples, self.needs.channels, self.side, self.side)
        return (
            ArrayInfo(name=PIXELS, dtype=self.needs.precision, shape=shape),
            ArrayInfo(name=LABELS, dtype="int32", shape=(samples,)),
        )

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """See Encoder."""
        pixels = np.stack([self._pixels(example) for example in chunk])
        return {PIXELS: pixels, LABELS: _numbers(chunk, self.numbers)}

    def _pixels(self, example: Example) -> Image:
        assert not isinstance(example.content, str)
        image = with_channels(example.where, resized(example.content, self.side), self.needs.channels)
        normed = (image - np.asarray(self.needs.image_mean)) / np.asarray(self.needs.image_std)
        return np.moveaxis(normed, 2, 0)


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


def _numbers(chunk: list[Example], numbers: dict[RawLabel, int]) -> Ids:
    return np.asarray([numbers[example.label] for example in chunk if example.label is not None], dtype=np.int64)
