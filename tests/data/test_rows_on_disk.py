"""Rows of arrays on disk are read one by one."""

import os
from pathlib import Path

import numpy as np
import pytest

from fleetune.data.rows_on_disk import RowsOnDisk
from fleetune.linux import RESIDENT_FILES, status_bytes

SHAPES = [(5,), (5, 3), (5, 2, 3), (5, 0)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["int32", "float64", "bool", "float16"])
def test_rows_are_those_of_the_array(shape: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    """In the given order, as often as they are named, and in memory of their own."""
    array = (np.arange(np.prod(shape)) % 7).reshape(shape).astype(dtype)
    np.save(tmp_path / "rows.npy", array)
    rows = RowsOnDisk(tmp_path / "rows.npy")
    assert (rows.shape, rows.dtype) == (array.shape, array.dtype)
    for chosen in ([4, 0, 0, 2], [], [1]):
        indices = np.array(chosen, dtype=np.int64)
        found = rows.read(indices)
        assert found.dtype == array.dtype and found.flags.writeable
        np.testing.assert_array_equal(found, array[indices])


@pytest.mark.parametrize("index", [-1, 5])
def test_a_row_that_does_not_exist_is_refused(index: int, tmp_path: Path) -> None:
    """Counting from the end would train on other samples than were drawn."""
    np.save(tmp_path / "rows.npy", np.zeros((5, 2)))
    with pytest.raises(IndexError, match="has 5 rows"):
        RowsOnDisk(tmp_path / "rows.npy").read(np.array([0, index]))


def test_a_file_that_became_shorter_is_named(tmp_path: Path) -> None:
    """A mapped file would end the process by SIGBUS."""
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((5, 2)))
    rows = RowsOnDisk(path)
    path.write_bytes(path.read_bytes()[:-8])
    np.testing.assert_array_equal(rows.read(np.array([3])), np.zeros((1, 2)))
    with pytest.raises(OSError, match=r"rows\.npy: row 4 is missing; prepare the data again"):
        rows.read(np.array([4]))


def test_a_file_system_may_give_less_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is asked for again: here five bytes are given at most."""
    array = np.arange(12.0).reshape(4, 3)
    np.save(tmp_path / "rows.npy", array)
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, memory, at: whole(file, [memory[0][:5]], at))
    np.testing.assert_array_equal(RowsOnDisk(tmp_path / "rows.npy").read(np.array([3, 1])), array[[3, 1]])


def test_another_order_is_refused(tmp_path: Path) -> None:
    """Columns that lie together are no rows."""
    np.save(tmp_path / "rows.npy", np.asfortranarray(np.zeros((5, 2))))
    with pytest.raises(ValueError, match="C order"):
        RowsOnDisk(tmp_path / "rows.npy")


def test_reading_a_large_set_takes_no_memory(tmp_path: Path) -> None:
    """Bug: the set was mapped, so that a device seemed to need more with every round, up to all of it, and was told
    that its memory did not suffice. 64 MB are read here, 1 MB at a time."""
    path = tmp_path / "rows.npy"
    np.save(path, np.ones((64, 1 << 18), dtype=np.float32))
    rows = RowsOnDisk(path)
    before = status_bytes(RESIDENT_FILES)
    for index in range(64):
        rows.read(np.array([index]))
    assert status_bytes(RESIDENT_FILES) - before < 8 << 20
