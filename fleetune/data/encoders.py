"""Encoders: turn chunks of examples into a model's input arrays, and pack documents into blocks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fleetune.data.examples import Example, RawLabel
from fleetune.data.image_processor import ImageProcessor
from fleetune.data.input_spec import InputSpec
from fleetune.data.prepared_data import Array, ArrayInfo
from fleetune.data.tokenization import Ids, check_ids, document_ids, encode, encode_with_end

IGNORE_INDEX = -100
"""Label of positions that the loss ignores, as in torch's cross entropy."""
IDS, MASK, LABELS, PIXELS = "input_ids", "attention_mask", "labels", "pixel_values"


class Encoder(Protocol):
    """Turns examples into rows of named arrays."""

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """Describe the arrays that hold `samples` samples."""

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """Return the rows of a chunk by array name, first axis = position in the chunk."""


@dataclass(frozen=True, kw_only=True)
class TextEncoder:
    """Encodes texts: ids and masks [samples, length]; labels [samples], or [samples, length] for causal-lm."""

    tokenizer: Any
    length: int
    spec: InputSpec
    label_ids: Mapping[RawLabel, int]

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """Describe the arrays that hold `samples` samples."""
        return token_arrays(samples, self.length, causal=self.spec.task == "causal-lm")

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """Return the rows of a chunk by array name."""
        causal = self.spec.task == "causal-lm"
        texts = [str(example.content) for example in chunk]
        ids, mask = (encode_with_end if causal else encode)(self.tokenizer, texts, self.length)
        check_ids(ids, self.spec)
        if causal:
            return {IDS: ids, MASK: mask, LABELS: causal_labels(ids, mask)}
        return {IDS: ids, MASK: mask, LABELS: _label_array(chunk, self.label_ids)}


@dataclass(frozen=True, kw_only=True)
class ImageEncoder:
    """Encodes images: pixels [samples, channels, height, width]; labels [samples]."""

    processing: ImageProcessor
    precision: str
    label_ids: Mapping[RawLabel, int]

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """Describe the arrays that hold `samples` samples."""
        return (
            ArrayInfo(name=PIXELS, dtype=self.precision, shape=(samples, *self.processing.shape)),
            ArrayInfo(name=LABELS, dtype="int32", shape=(samples,)),
        )

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """Return the rows of a chunk by array name."""
        pixels = np.stack([self.processing.pixels(example) for example in chunk])
        return {PIXELS: pixels, LABELS: _label_array(chunk, self.label_ids)}


def token_arrays(samples: int, length: int, causal: bool) -> tuple[ArrayInfo, ...]:
    """Describe the arrays of a text task as they are stored on disk."""
    shape = (samples, length)
    return (
        ArrayInfo(name=IDS, dtype="int32", shape=shape),
        ArrayInfo(name=MASK, dtype="uint8", shape=shape),
        ArrayInfo(name=LABELS, dtype="int32", shape=shape if causal else (samples,)),
    )


def causal_labels(ids: Ids, mask: Ids) -> Ids:
    """Labels for next-token prediction: the ids themselves (the loss shifts them), IGNORE_INDEX on padding."""
    return np.where(mask == 1, ids, IGNORE_INDEX)


def _label_array(chunk: list[Example], label_ids: Mapping[RawLabel, int]) -> Ids:
    return np.asarray([label_ids[example.label] for example in chunk if example.label is not None], dtype=np.int64)


def pack_documents(
    tokenizer: Any, texts: Iterator[str], length: int, limit: int | None, spec: InputSpec
) -> dict[str, Array]:
    """Concatenate documents and cut them into blocks: input_ids, attention_mask and labels, each [blocks, length].

    Stops once `limit` blocks are full, so a small sample does not tokenize everything. Only the last block is padded.
    Keeps all blocks in memory: the packed set is the standard library, 50 MB at most.
    """
    wanted = None if limit is None else limit * length
    pieces: list[Ids] = []
    tokens = 0
    for text in texts:
        piece = document_ids(tokenizer, text)
        check_ids(piece, spec)
        pieces.append(piece)
        tokens += len(piece)
        if wanted is not None and tokens >= wanted:
            break
    line = np.concatenate(pieces)[:wanted]
    blocks = -(-len(line) // length)
    padded = np.full(blocks * length, tokenizer.pad_token_id, dtype=np.int64)
    padded[: len(line)] = line
    ids: Ids = padded.reshape(blocks, length)
    mask: Ids = (np.arange(blocks * length) < len(line)).astype(np.int64).reshape(blocks, length)
    return {IDS: ids, MASK: mask, LABELS: causal_labels(ids, mask)}
