"""The newest data: the last files of a folder by name, and a split that no other window contradicts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fleetune.contracts.run_config import NO_FILES, DataRequest
from fleetune.errors import Refused

TRAIN = "train"
Keys = np.ndarray[Any, np.dtype[np.uint64]]


def check_has_files(request: DataRequest, has_files: bool) -> None:
    """Refuse `newest_files` for a source that is not a folder of data files."""
    if request.newest_files is not None and not has_files:
        raise Refused(NO_FILES.format(newest_files=request.newest_files, source=request.source))


def newest(request: DataRequest, splits: Mapping[str, tuple[Path, ...]]) -> dict[str, tuple[Path, ...]]:
    """The files by split, of the train split only the last `newest_files` by name; test files stay as they are."""
    if request.newest_files is None:
        return dict(splits)
    return {**splits, TRAIN: tuple(sorted(splits[TRAIN])[-request.newest_files :])}


def held_out(keys: Keys, fraction: float, seed: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each row is held out for testing, about `fraction` of them, decided by its content and the seed alone.

    A row that one window trains on is never what another window tests on, so that a model which continues from an
    earlier window is not scored on what it has seen. `keys` are hashes of the rows' contents.
    """
    mixed = keys ^ np.random.Generator(np.random.PCG64([seed, *b"window"])).integers(1 << 63, dtype=np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64, a bijection
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    found: np.ndarray[Any, np.dtype[np.bool_]] = (mixed ^ (mixed >> np.uint64(31))) < np.uint64(int(fraction * 2**64))
    return found
