"""The `data` artifact: arrays on disk that any device maps into memory and reads by row."""

from pathlib import Path
from typing import Any

import numpy as np

from fleetune.contracts import wire
from fleetune.contracts.record import record
from fleetune.errors import Refused

Array = np.ndarray[Any, np.dtype[Any]]
INFO = "data.json"
TOKENIZER, IMAGE_PROCESSOR = "tokenizer", "image_processor"


@record
class ArrayInfo:
    """One array of a split; `shape` counts samples first."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@record
class SplitInfo:
    """`train` or `test`."""

    name: str
    samples: int
    arrays: tuple[ArrayInfo, ...]


@record
class DataInfo:
    """data.json: what the folder holds and what it was made from."""

    task: str
    labels: tuple[str, ...]
    """Names of the classes, by number; empty for causal-lm."""
    splits: tuple[SplitInfo, ...]
    source: str
    digest: str
    """Of the source's content."""
    seed: int
    pad_token_id: int | None = None
    """What texts are padded with; None for images."""
    notes: tuple[str, ...] = ()
    """What is odd about the data, a sentence each."""


class PreparedData:
    """A folder that `prepare` wrote, opened for reading; refused where a file is missing or not what data.json says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.info = wire.read(DataInfo, folder / INFO)
        self._arrays = {
            split.name: {
                array.name: _mapped(folder / split.name / f"{array.name}.npy", array) for array in split.arrays
            }
            for split in self.info.splits
        }

    @property
    def task(self) -> str:
        """The task the arrays were made for."""
        return self.info.task

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, by number; empty for causal-lm."""
        return self.info.labels

    @property
    def tokenizer(self) -> Path | None:
        """Folder of the tokenizer that made the ids; None for images."""
        return self.folder / TOKENIZER if self.info.pad_token_id is not None else None

    @property
    def processing(self) -> Path | None:
        """Folder of the tokenizer or the image processor; None for images that an older version prepared."""
        folder = self.tokenizer or self.folder / IMAGE_PROCESSOR
        return folder if folder.is_dir() else None

    def size(self, split: str) -> int:
        """Samples of a split."""
        return int(next(iter(self._of(split).values())).shape[0])

    def rows(self, split: str, indices: Any) -> dict[str, Array]:
        """Those rows of every array, in that order, copied: ids, masks and labels as int64, pixels as stored.

        Text: input_ids, attention_mask [rows, length]; images: pixel_values [rows, channels, side, side];
        labels [rows] (causal-lm: [rows, length], -100 where there is nothing to predict).
        """
        chosen = np.asarray(indices, dtype=np.int64)
        taken = {name: array[chosen] for name, array in self._of(split).items()}
        return {name: rows.astype(np.int64) if rows.dtype.kind in "iu" else rows for name, rows in taken.items()}

    def _of(self, split: str) -> dict[str, Array]:
        if split not in self._arrays:
            raise Refused(f"{self.folder}: no split {split!r}; it has {', '.join(self._arrays)}")
        return self._arrays[split]


def create(folder: Path, split: SplitInfo) -> dict[str, Array]:
    """New arrays on disk for a split, mapped for writing."""
    (folder / split.name).mkdir(parents=True)
    return {
        array.name: np.lib.format.open_memmap(
            folder / split.name / f"{array.name}.npy", mode="w+", dtype=np.dtype(array.dtype), shape=array.shape
        )
        for array in split.arrays
    }


def _mapped(path: Path, wanted: ArrayInfo) -> Array:
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise Refused(f"{path}: cannot be read as an array ({error}); prepare the data again") from None
    if array.dtype.str != np.dtype(wanted.dtype).str or array.shape != wanted.shape:
        raise Refused(f"{path}: holds {array.dtype} {array.shape}, data.json says {wanted.dtype} {wanted.shape}")
    return array
