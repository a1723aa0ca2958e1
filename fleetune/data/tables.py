"""Tables: rows in memory or in JSON lines, CSV, Parquet and Arrow files, read in batches; a source groups them."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from fleetune.contracts.run_config import COMPLETIONS, TARGET_COLUMN
from fleetune.data.class_features import stored_names
from fleetune.data.lfs_pointers import check_fetched
from fleetune.data.public_words import Place, Told
from fleetune.errors import first_line


class Table(Protocol):
    """Rows in a fixed order that can be read repeatedly; row numbers are those of the file, for use in messages."""

    @property
    def name(self) -> str:
        """File path or name of a built-in set, for messages."""

    @property
    def row_noun(self) -> str:
        """Noun for a row number in messages: `line`, `row`, `sample`, `image` or `file`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names; those of the first row if rows can differ."""

    def class_names(self, column: str) -> tuple[str, ...]:
        """Class names that the table defines for the integers of a column; empty if it defines none."""

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield (row number, column -> value) of every row."""


@dataclass(frozen=True, kw_only=True)
class InMemoryTable:
    """Table of rows in memory."""

    name: str
    values: tuple[Mapping[str, Any], ...]
    row_noun: str = "sample"

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names of the first row."""
        return tuple(self.values[0]) if self.values else ()

    def class_names(self, column: str) -> tuple[str, ...]:
        """Empty: rows in memory define no class names."""
        return ()

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield (number from 1, column -> value) of every row."""
        yield from enumerate(self.values, start=1)


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Tables by split; if `test` is empty, part of `train` is held out."""

    train: tuple[Table, ...]
    test: tuple[Table, ...] = ()
    validation: tuple[Table, ...] = ()
    """Beside `test`: what states are scored on while training."""
    text_column: str = "text"
    image_column: str = "image"
    label_column: str = "label"
    target_column: str = TARGET_COLUMN
    folder: Path | None = None
    """Base folder of relative paths in the image column."""
    test_folder: Path | None = None
    """That of the test split, if another source is tested on."""
    packed: bool = False
    """For causal-lm: rows are documents to concatenate and cut into blocks, not samples."""
    format: str | None = None
    """For causal-lm: format of the rows; None: by their columns."""
    loss_on: str = COMPLETIONS
    """Tokens of chats and completions that carry loss."""
    notes: tuple[str, ...] = ()
    """Remarks for the user about what is not read, a sentence each."""
    split_notes: tuple[str, ...] = ()
    """Those about test splits, which fall away where another source is tested on."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """Those of all splits."""
        return *self.train, *self.test, *self.validation

    def folders_of(self, table: Table) -> tuple[Path | None, Path | None]:
        """Base folder of relative paths in a table, and the folder of its file, which comes first, if it has one."""
        tested = any(table is each for each in self.test)
        base = self.test_folder if tested and self.test_folder is not None else self.folder
        return base, table.path.parent if isinstance(table, JsonLinesTable | CsvTable | ArrowTable) else None


def row_place(table: Table, number: int) -> Place:
    """Where a row of a table is."""
    row = f"{table.row_noun} {number}"
    return Place(f"{table.name}: {row}", row)


BATCH_ROWS = 1024
LONGEST_FIELD = 1 << 24
"""Most characters of a CSV field: a quote that is never closed does not fill the memory."""
FILE_FORMAT, END_OF_STREAM = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"
"""Beginning of Arrow files that are no stream, and end of those that are."""
UNNAMED = "Unnamed: "
"""Name of a CSV column without one, before its number from 0, as pandas has it."""
Rows = Iterator[tuple[int, Mapping[str, Any]]]


def open_table(path: Path) -> Table:
    """Open the table in a file; Refused if the suffix is unknown, or the file is unreadable or empty."""
    opener = FILE_SUFFIXES.get(path.suffix.lower())
    if opener is None:
        raise Told(
            '{}: files end in {suffixes} (got {!r}); convert it, a text to a line {{"text": "..."}} of .jsonl',
            path,
            path.suffix or "no suffix",
            suffixes=", ".join(FILE_SUFFIXES),
        )
    try:
        check_fetched(str(path), path)
        return opener(path)
    except OSError as error:
        raise Told("{}: cannot be read ({}); give a readable file", path, error.strerror or error) from None
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from None
    except (pa.ArrowException, csv.Error) as error:
        raise Told("{}: not a whole {} file ({})", path, path.suffix[1:], first_line(error)) from None


def _not_utf8(path: Path, error: UnicodeDecodeError) -> Told:
    return Told("{}: it is not UTF-8 ({}); save it as UTF-8", path, error)


@dataclass(frozen=True, kw_only=True)
class JsonLinesTable:
    """One JSON object per line; empty lines are skipped."""

    path: Path
    columns: tuple[str, ...]
    row_noun: str = "line"

    @property
    def name(self) -> str:
        """Path of the file."""
        return str(self.path)

    def class_names(self, column: str) -> tuple[str, ...]:
        """Empty: JSON lines define no class names."""
        return ()

    def rows(self) -> Rows:
        """Yield (line number from 1, column -> value) of every line."""
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _json_object(self.path, number, line)


@dataclass(frozen=True, kw_only=True)
class CsvTable:
    """UTF-8 CSV with a header line; quoted fields may contain line breaks."""

    path: Path
    columns: tuple[str, ...]
    row_noun: str = "line"

    @property
    def name(self) -> str:
        """Path of the file."""
        return str(self.path)

    def class_names(self, column: str) -> tuple[str, ...]:
        """Empty: CSV defines no class names."""
        return ()

    def rows(self) -> Rows:
        """Yield (number of the record's last line from 1, column -> value) of every record."""
        with self.path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines, strict=True)
            records = _csv_records(reader)
            next(records)
            try:
                for fields in records:
                    if fields and len(fields) != len(self.columns):
                        raise Told(
                            "{}: line {number} has {} fields, the heading {}; quote fields that hold commas",
                            self.path,
                            len(fields),
                            len(self.columns),
                            number=reader.line_num,
                        )
                    if fields:
                        yield reader.line_num, dict(zip(self.columns, fields, strict=True))
            except UnicodeDecodeError as error:
                raise _not_utf8(self.path, error) from None
            except csv.Error as error:
                raise Told(
                    "{}: line {number} cannot be read ({})",
                    self.path,
                    error,
                    number=reader.line_num + 1,
                ) from None


@dataclass(frozen=True, kw_only=True)
class ArrowTable:
    """Parquet or Arrow file; class names come from the features that the `datasets` package stores in its metadata."""

    path: Path
    schema: pa.Schema
    batches: Callable[[Path, str | None], Iterator[pa.RecordBatch]]
    only: str | None = None
    """The column that is read; None: all."""
    row_noun: str = "row"

    @property
    def name(self) -> str:
        """Path of the file."""
        return str(self.path)

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names in the file's order."""
        return tuple(self.schema.names)

    def class_names(self, column: str) -> tuple[str, ...]:
        """Class names of a ClassLabel feature, or of a list of them; empty for other columns."""
        return stored_names((self.schema.metadata or {}).get(b"huggingface", b"{}"), column)

    def rows(self) -> Rows:
        """Yield (number from 1, column -> value) of every row; keys of null within values are left out."""
        number = 0
        try:
            for batch in self.batches(self.path, self.only):
                for values in batch.to_pylist():
                    number += 1
                    yield number, without_nulls(values)
        except (pa.ArrowException, OSError) as error:
            raise Told(
                "{}: cannot be read after row {number} ({})", self.path, first_line(error), number=number
            ) from None


def without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose objects lack the keys of null, at any depth: a file of columns gives each object those of others."""
    return {name: _filled(value) for name, value in row.items()}


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each) for key, each in value.items() if each is not None}
    nested = isinstance(value, list) and any(isinstance(each, dict | list) for each in value)
    return [_filled(each) for each in value] if nested else value


def _open_json_lines(path: Path) -> Table:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                return JsonLinesTable(path=path, columns=tuple(_json_object(path, number, line)))
    raise Told("{}: the file is empty; give one JSON object per line", path)


def _json_object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line, object_pairs_hook=_unique_keys)
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from None
    except (ValueError, RecursionError) as error:
        raise Told(
            "{}: line {number} is not JSON ({}); give one JSON object per line",
            path,
            error,
            number=number,
        ) from None
    if not isinstance(values, dict):
        raise Told(
            "{}: line {number} holds {}; give one JSON object per line",
            path,
            type(values).__name__,
            number=number,
        )
    return values


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; two values of one key are an error, of which the parser would keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return found


def _open_json(path: Path) -> Table:
    """A list of objects; a file of JSON lines may have this suffix too."""
    content = path.read_bytes()
    text = content.decode(json.detect_encoding(content), "replace")  # without a byte order mark
    if not text.lstrip().startswith("["):
        return _open_json_lines(path)
    try:
        values = json.loads(content, object_pairs_hook=_unique_keys)
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from None
    except (ValueError, RecursionError) as error:
        raise Told("{}: it is not JSON ({}); give a list of objects", path, error) from None
    for number, each in enumerate(values, start=1):
        if not isinstance(each, dict):
            raise Told("{}: item {number} is {}; give a list of objects", path, type(each).__name__, number=number)
    if not values:
        raise Told("{}: the list is empty; give at least one object", path)
    return InMemoryTable(name=str(path), values=tuple(values), row_noun="item")


def _csv_records(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """Records with fields of LONGEST_FIELD characters at most; the limit of other readers of this process stays."""
    while True:
        before = csv.field_size_limit(LONGEST_FIELD)
        try:
            fields = next(reader, None)
        finally:
            csv.field_size_limit(before)
        if fields is None:
            return
        yield fields


def _open_csv(path: Path) -> Table:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        heading = next(_csv_records(csv.reader(lines, strict=True)), [])
    columns = tuple(name if name.strip() else _made_name(heading, number) for number, name in enumerate(heading))
    if not columns:
        raise Told("{}: the file is empty; give a header line and records", path)
    _check_columns(path, columns)
    return CsvTable(path=path, columns=columns)


def _made_name(heading: Sequence[str], number: int) -> str:
    """That of pandas for a column without one, also where it was saved under it before."""
    made = (f"{UNNAMED}{number}{again and f'.{again}' or ''}" for again in count())
    return next(name for name in made if name not in heading)


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    """Refuse two columns of one name, of which nobody knows which is meant."""
    if len(set(columns)) != len(columns):
        raise Told("{}: a column name occurs twice in the header ({}); rename one", path, ", ".join(columns))


def _open_parquet(path: Path) -> Table:
    schema = pq.read_schema(path)
    _check_columns(path, schema.names)
    return ArrowTable(path=path, schema=schema, batches=_parquet_batches)


def _parquet_batches(path: Path, only: str | None) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=BATCH_ROWS, columns=None if only is None else [only])


def _open_arrow(path: Path) -> Table:
    with pa.memory_map(str(path)) as mapped, _arrow_reader(path, mapped) as reader:
        _check_columns(path, reader.schema.names)
        return ArrowTable(path=path, schema=reader.schema, batches=_arrow_batches)


def _arrow_reader(path: Path, mapped: pa.MemoryMappedFile) -> pa.RecordBatchStreamReader | pa.RecordBatchFileReader:
    """Reader of a stream, or of the file format of Arrow (Feather), which ends in a table of its parts."""
    start, end = mapped.read(len(FILE_FORMAT)), b""
    if mapped.size() > len(END_OF_STREAM):
        mapped.seek(mapped.size() - len(END_OF_STREAM))
        end = mapped.read()
    mapped.seek(0)
    if start == FILE_FORMAT:
        return pa.ipc.open_file(mapped)
    reader = pa.ipc.open_stream(mapped)
    if end != END_OF_STREAM:
        raise Told("{}: it has no end, so whoever wrote it was stopped, and rows may be missing; write it again", path)
    return reader


def _arrow_batches(path: Path, only: str | None) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as mapped, _arrow_reader(path, mapped) as reader:
        for batch in _batches(reader):
            for first in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(first, BATCH_ROWS).select([n for n in batch.schema.names if only in (None, n)])
        if isinstance(reader, pa.RecordBatchStreamReader) and mapped.tell() != mapped.size():
            raise Told("{}: more follows after the end of its rows, and would not be read; write it again", path)


def _batches(reader: pa.RecordBatchStreamReader | pa.RecordBatchFileReader) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.RecordBatchStreamReader):
        yield from reader
    else:
        yield from map(reader.get_batch, range(reader.num_record_batches))


SUFFIXES: dict[str, Callable[[Path], Table]] = {
    ".jsonl": _open_json_lines,
    ".csv": _open_csv,
    ".parquet": _open_parquet,
    ".arrow": _open_arrow,
}
"""Files of a data folder."""
FILE_SUFFIXES: dict[str, Callable[[Path], Table]] = {**SUFFIXES, ".json": _open_json}
"""Files that are named one by one; in a folder, .json files describe the others."""
