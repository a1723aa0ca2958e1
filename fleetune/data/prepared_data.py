"""The `data` artifact: arrays on disk that devices map into memory, and the row order of training rounds."""

from collections.abc import Collection, Iterable
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fleetune.contracts import json_io
from fleetune.contracts.record import not_negative, positive, record
from fleetune.contracts.run_config import DataRequest
from fleetune.data.rows_on_disk import RowsOnDisk
from fleetune.errors import Refused, TryAgain
from fleetune.filesystem import file_digest

Array = np.ndarray[Any, np.dtype[Any]]
INFO = "data.json"
TOKENIZER, IMAGE_PROCESSOR = "tokenizer", "image_processor"
IDS, MASK, LABELS, PIXELS = "input_ids", "attention_mask", "labels", "pixel_values"
PATCH_MASK, PATCH_GRID = "pixel_attention_mask", "spatial_shapes"
POSITIONS, DECODER_IDS = "position_ids", "decoder_input_ids"
"""Names of the arrays. Packed rows have positions, which begin anew with each sample, instead of a mask."""
COUNTED_ROWS = 4096
"""Rows whose samples are counted at once."""


@record
class ArrayInfo:
    """Description of one array of a split; the first axis of `shape` is the samples."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@record
class SplitInfo:
    """Description of a split: `train`, `test`, and where the source has both, `validation`."""

    name: str
    samples: int
    arrays: tuple[ArrayInfo, ...]


@record
class LocalSource:
    """What a device has reported of data that lie on it."""

    device: str
    digest: str
    """content_digest of the source, which the device computes."""
    samples: int
    """Number of its training samples."""
    cut: Annotated[tuple[str, ...], Field(exclude_if=lambda value: not value)] = ()
    """Sentences that count samples which are cut or left out, once they are prepared."""


@record
class LocalInfo:
    """How devices prepare data of their own, so that all agree, and what they have reported."""

    request: DataRequest
    """Its `source` stands for none of theirs."""
    label_ids: dict[str, int]
    """Label of any source -> class id; empty for causal-lm."""
    sources: tuple[LocalSource, ...]


@record
class DataInfo:
    """Content of data.json: the arrays of the folder and their source."""

    task: str
    labels: tuple[str, ...]
    """Class names by id; empty for causal-lm and seq2seq."""
    splits: tuple[SplitInfo, ...]
    source: str
    """Name of a built-in set or on the hub, or of a file or folder without its path."""
    digest: str
    """content_digest of the source."""
    seed: int
    pad_token_id: int | None = None
    """Token id that pads texts; None for images."""
    notes: tuple[str, ...] = ()
    """Warnings about the data, a sentence each."""
    chats: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True: rows to train on are chats, which the tokenizer's chat template writes."""
    systems: Annotated[tuple[dict[str, str], ...] | None, Field(exclude_if=lambda value: value is None)] = None
    """First message of the system or developer in chats to train on, empty for none: the one that all have, or two of
    several; None: not known, as older versions wrote none."""
    local: Annotated[LocalInfo | None, Field(exclude_if=lambda value: value is None)] = None
    """Data that lie on devices, of which nothing is here; None: there are none."""
    files: Annotated[dict[str, str], Field(exclude_if=lambda value: not value)] = field(default_factory=dict)
    """Path of each other file of the folder -> its sha256 (hex); older versions wrote none."""


class PreparedData:
    """Read access to a folder that `prepare_data` wrote; Refused where a file is missing or differs from data.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.info = json_io.read(DataInfo, folder / INFO)
        self._arrays = {
            split.name: {
                array.name: _open_array(folder / split.name / f"{array.name}.npy", array) for array in split.arrays
            }
            for split in self.info.splits
        }

    @property
    def task(self) -> str:
        """Task that the arrays were prepared for."""
        return self.info.task

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names by id; empty for causal-lm."""
        return self.info.labels

    @property
    def packed(self) -> bool:
        """True if samples share rows."""
        return POSITIONS in self._of("train")

    @property
    def tokenizer(self) -> Path | None:
        """Folder of the tokenizer that produced the ids; None for images."""
        return self.folder / TOKENIZER if self.info.pad_token_id is not None else None

    @property
    def processing(self) -> Path | None:
        """Folder of the tokenizer or image processor; None for images prepared by older versions."""
        folder = self.tokenizer or self.folder / IMAGE_PROCESSOR
        return folder if folder.is_dir() else None

    @property
    def scored_while_training(self) -> str:
        """The split that states are scored on while they train: `validation` where there is one beside `test`."""
        return "validation" if "validation" in self._arrays else "test"

    def size(self, split: str) -> int:
        """Number of samples of a split."""
        return int(next(iter(self._of(split).values())).shape[0])

    def describe_sizes(self) -> str:
        """Return the numbers of samples to train and to test on in words."""
        other = self.scored_while_training
        chosen = f", {self.describe_size(other, noun='')} to score while it trains" if other != "test" else ""
        if self.info.local:
            owners = self.info.local.sources
            trained = f"{sum(each.samples for each in owners)} samples on {len(owners)} devices with data of their own"
            return f"{self.describe_size('test')} to test on{chosen}; {trained}"
        return f"{self.describe_size('train')} to train on, {self.describe_size('test', noun='')} to test on{chosen}"

    def describe_size(self, split: str, noun: str = " samples") -> str:
        """Return the number of samples in words; of packed ones also that of the sequences that they share."""
        rows = self.size(split)
        if not self.packed:
            return f"{rows}{noun}"
        blocks = (range(first, min(first + COUNTED_ROWS, rows)) for first in range(0, rows, COUNTED_ROWS))
        # each sample has at least two tokens, so that it has position 1 once
        samples = sum(int((self.rows(split, block, {POSITIONS})[POSITIONS] == 1).sum()) for block in blocks)
        return f"{samples}{noun} in {rows} sequences"

    def shape(self, array: str) -> tuple[int, ...]:
        """Shape of one training sample's part of an array, such as (tokens,) or (channels, height, width)."""
        return tuple(self._of("train")[array].shape[1:])

    def rows(self, split: str, indices: Any, names: Collection[str] | None = None) -> dict[str, Array]:
        """Copy the given rows of every array, or of those of these names, in the given order: ids, masks and labels as
        int64, pixels as stored.

        Text: input_ids, attention_mask (packed: position_ids) [rows, length]; images: pixel_values [rows, channels,
        height, width]; of images of any shape: pixel_values [rows, patches, numbers of a patch], pixel_attention_mask
        [rows, patches], spatial_shapes [rows, 2] (rows and columns of patches); labels [rows] (causal-lm: [rows,
        length], -100 at positions that the loss ignores). For seq2seq decoder_input_ids and labels are [rows, target
        length].
        """
        chosen = np.asarray(indices, dtype=np.int64)
        wanted = {name: array for name, array in self._of(split).items() if names is None or name in names}
        taken = {name: array.read(chosen) for name, array in wanted.items()}
        return {name: rows.astype(np.int64) if rows.dtype.kind in "iu" else rows for name, rows in taken.items()}

    def _of(self, split: str) -> dict[str, RowsOnDisk]:
        if split not in self._arrays:
            raise Refused(f"{self.folder}: no split {split!r}; it has {', '.join(self._arrays)}")
        return self._arrays[split]


def file_digests(folder: Path, paths: Iterable[Path] | None = None) -> dict[str, str]:
    """Return path -> sha256 of files in a folder; without `paths` those of all but data.json."""
    files = folder.rglob("*") if paths is None else paths
    found = {file.relative_to(folder).as_posix(): file for file in files if file.is_file() and file != folder / INFO}
    return {name: file_digest(found[name]) for name in sorted(found)}


def check_files(folder: Path) -> None:
    """Raise TryAgain for prepared data of which a file is not what was written, such as zeros after a power cut."""
    try:
        files = json_io.read(DataInfo, folder / INFO).files
    except Refused:
        files = {}
    damaged = next((name for name, digest in files.items() if not _has_digest(folder / name, digest)), None)
    if damaged is not None or not files:
        raise TryAgain(
            f"{folder / (damaged or INFO)}: it is not what was written when these data were prepared; start the run "
            "again, which prepares them anew"
        )


def _has_digest(file: Path, digest: str) -> bool:
    try:
        return file_digest(file) == digest
    except OSError:
        return False


def sample_spans(positions: Array) -> list[tuple[int, int]]:
    """Tokens [first, end) of each sample in a packed row, from its positions [length].

    A sample has at least two tokens, and each token of padding has position 0.
    """
    follows = np.append(positions[1:] == positions[:-1] + 1, False)
    inner = np.append(False, follows[:-1])
    firsts, ends = np.flatnonzero(follows & ~inner), np.flatnonzero(inner & ~follows) + 1
    return list(zip(firsts.tolist(), ends.tolist(), strict=True))


def create_arrays(folder: Path, split: SplitInfo) -> dict[str, Array]:
    """Create the arrays of a split on disk and map them for writing."""
    (folder / split.name).mkdir(parents=True)
    return {
        array.name: np.lib.format.open_memmap(
            folder / split.name / f"{array.name}.npy", mode="w+", dtype=np.dtype(array.dtype), shape=array.shape
        )
        for array in split.arrays
    }


def _open_array(path: Path, wanted: ArrayInfo) -> RowsOnDisk:
    try:
        array = RowsOnDisk(path)
    except (OSError, ValueError, EOFError) as error:
        raise Refused(f"{path}: cannot be read as an array ({error}); prepare the data again") from None
    if array.dtype.str != np.dtype(wanted.dtype).str or array.shape != wanted.shape:
        raise Refused(f"{path}: holds {array.dtype} {array.shape}, data.json says {wanted.dtype} {wanted.shape}")
    return array


Indices = np.ndarray[Any, np.dtype[np.int64]]


def batch_indices(train_samples: int, batch_samples: int, seed: int, round: int) -> Indices:
    """Rows of the train split that round `round` (from 0) trains on, in order: int64 [batch_samples].

    Rounds cut the concatenated permutations of the epochs into batches, so a batch may span epochs and no sample is
    dropped at the end of one. Computes only the permutations that the batch touches. Raises Refused for sizes below 1
    and a negative seed or round.
    """
    positive("batch_indices", train_samples=train_samples, batch_samples=batch_samples)
    not_negative("batch_indices", seed=seed, round=round)
    pieces, first, left = [], round * batch_samples, batch_samples
    while left:
        epoch, offset = divmod(first, train_samples)
        piece = _epoch_permutation(train_samples, seed, epoch)[offset : offset + left]
        pieces.append(piece)
        first, left = first + len(piece), left - len(piece)
    return np.concatenate(pieces)


@lru_cache(maxsize=2)
def _epoch_permutation(samples: int, seed: int, epoch: int) -> Indices:
    order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(samples).astype(np.int64)
    order.flags.writeable = False
    return order
