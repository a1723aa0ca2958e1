"""Arrow files: whole streams and the file format are read; what was cut off or joined is refused."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pytest

from fleetune.contracts.run_config import DataRequest
from fleetune.data.sources import validate_data
from fleetune.errors import Refused
from tests.support.data.samples import FRUITS, prepared, texts

TABLE = pa.Table.from_pylist(FRUITS)


def streamed(file: Path, table: pa.Table = TABLE, parts: int = 4, writer: Any = pa.ipc.new_stream) -> list[int]:
    """Write a table in parts, and return where each ends."""
    ends = []
    with file.open("wb") as out, writer(out, table.schema) as stream:
        for batch in table.to_batches(max_chunksize=-(-len(table) // parts)):
            stream.write_batch(batch)
            ends.append(out.tell())
    return ends


def test_a_stream_whose_writer_was_stopped_is_refused(tmp_path: Path) -> None:
    """Bug: killed between two batches, it leaves a file that reads as a whole one with fewer rows."""
    file = tmp_path / "r.arrow"
    ends = streamed(file)
    prepared(tmp_path / "whole", file)
    content = file.read_bytes()
    for end in ends:
        file.write_bytes(content[:end])
        with pytest.raises(Refused, match=r"r\.arrow: it has no end, .*rows may be missing; write it again"):
            validate_data(DataRequest(source=str(file)), "sequence-classification")


def test_streams_that_were_joined_are_refused(tmp_path: Path) -> None:
    """A reader stops at the end of the first; the rows of the second were not read, without a word."""
    file = tmp_path / "r.arrow"
    streamed(file)
    file.write_bytes(file.read_bytes() * 2)
    with pytest.raises(Refused, match=r"r\.arrow: more follows after the end of its rows"):
        prepared(tmp_path / "d", file)


@pytest.mark.parametrize("kind", ["file", "feather"])
def test_the_file_format_is_read(kind: str, tmp_path: Path) -> None:
    """Bug: it was refused as a damaged stream; cut off, it is no whole file."""
    file = tmp_path / "r.arrow"
    if kind == "file":
        streamed(file, writer=pa.ipc.new_file)
    else:
        feather.write_feather(TABLE, str(file), compression="zstd")
    data = prepared(tmp_path / "d", file)
    assert sorted(texts(data, "train") + texts(data, "test")) == sorted(row["text"] for row in FRUITS)
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(Refused, match=r"r\.arrow: not a whole arrow file"):
        validate_data(DataRequest(source=str(file)), "sequence-classification")
