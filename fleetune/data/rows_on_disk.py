"""Rows of an array in a .npy file, read one by one.

They are not mapped: pages of a mapped file count as the memory of a process, which would seem to need more and more,
up to the whole data set, and a file that has become shorter would end it by a signal.
"""

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[Any]]


class RowsOnDisk:
    """An array whose rows stay on disk."""

    def __init__(self, path: Path) -> None:
        """OSError, ValueError, EOFError: it cannot be read as an array in C order."""
        mapped: np.memmap[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        if not mapped.flags.c_contiguous:
            raise ValueError("it is not in C order")
        self.dtype, self.shape = mapped.dtype, mapped.shape
        self._path, self._offset = path, mapped.offset
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, indices: Rows) -> Rows:
        """Copy rows, in this order; IndexError: there is no such row. OSError: the file is shorter than it was."""
        rows = np.empty((len(indices), *self.shape[1:]), self.dtype)
        if len(indices) and not (0 <= indices.min() and indices.max() < self.shape[0]):
            raise IndexError(f"{self._path} has {self.shape[0]} rows")
        if rows.nbytes:
            row_bytes = rows.nbytes // len(indices)
            for out, index in zip(rows.view(np.uint8).reshape(-1, row_bytes), indices.tolist(), strict=True):
                self._fill(out.data, index, self._offset + index * row_bytes)
        return rows

    def _fill(self, memory: memoryview, index: int, offset: int) -> None:
        while memory:  # file systems of a network may give less at once
            got = os.preadv(self._descriptor, [memory], offset)
            if not got:
                raise OSError(f"{self._path}: row {index} is missing; prepare the data again")
            memory, offset = memory[got:], offset + got
