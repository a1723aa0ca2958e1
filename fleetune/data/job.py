"""One preparation of data: what was asked for, its open source, and which rows of it go where."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.contracts.task import Progress, ignore_progress
from fleetune.contracts.tasks import predicts_tokens
from fleetune.data.examples import Example, Survey, examples, survey_tables
from fleetune.data.prepared_data import TOKENIZER, LocalSource, SplitInfo
from fleetune.data.public_words import ToldAgain
from fleetune.data.side_columns import SideColumns
from fleetune.data.splits import TEST, TRAIN, VALIDATION, RowIndices, check_test_rows, shuffled, split_rows
from fleetune.data.tables import DataSource, Table
from fleetune.data.tokenization import for_training, own_tokenizer, save_tokenizer, with_chat_template, with_padding


@dataclass(frozen=True, kw_only=True)
class SharedChoices:
    """What sources that lie apart must agree on."""

    label_ids: Mapping[str, int]
    """Name of a label -> class id."""
    labels: tuple[str, ...]
    """Class names by id."""
    image_shape: tuple[int, int]
    """Height and width of every prepared image; (0, 0) for text."""


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """The input of one preparation."""

    request: DataRequest
    spec: InputSpec
    seed: int
    progress: Progress = ignore_progress
    expected_digest: str | None = None
    """TryAgain for a file or folder whose content is not that of this digest once it was read."""
    local: tuple[LocalSource, ...] = ()
    """Data that lie on devices; they train instead of these."""
    local_labels: tuple[str, ...] = ()
    """Names of the labels that they have."""
    shared: SharedChoices | None = None
    """Choices made elsewhere, for data that lie on a device: nothing is held out for testing."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A preparation with its open source and output folder."""

    asked: Preparation
    source: DataSource
    folder: Path

    @property
    def request(self) -> DataRequest:
        """The `data` section of the run."""
        return self.asked.request

    @property
    def spec(self) -> InputSpec:
        """What the model requires of its inputs."""
        return self.asked.spec

    @property
    def seed(self) -> int:
        """Seed of the split and of the order of rows."""
        return self.asked.seed

    @property
    def progress(self) -> Progress:
        """Receives what is done."""
        return self.asked.progress

    @property
    def tables(self) -> dict[str, tuple[Table, ...]]:
        """Tables by split; of `train` alone where part of them is held out, or nothing is."""
        held_out = {TEST: self.source.test, VALIDATION: self.source.validation} if self.asked.shared is None else {}
        return {TRAIN: self.source.train, **{name: tables for name, tables in held_out.items() if tables}}


@dataclass(frozen=True, kw_only=True)
class Written:
    """Arrays of all splits as written, for data.json."""

    labels: tuple[str, ...]
    splits: tuple[SplitInfo, ...]
    pad_token_id: int | None
    notes: tuple[str, ...]
    chats: bool = False
    """True: rows to train on are chats, which the tokenizer's chat template writes."""
    systems: tuple[Mapping[str, str], ...] = ()
    label_ids: Mapping[str, int] = field(default_factory=dict)


def survey(job: Job) -> dict[str, Survey]:
    """Read and validate every row once; a survey by split that the source has."""
    beside = SideColumns(job.source, job.spec)
    surveys = dict[str, Survey]()
    for name, tables in job.tables.items():
        again = name != TRAIN and tables is job.source.train
        surveys[name] = surveys[TRAIN] if again else survey_tables(tables, job.source, job.spec, job.progress, beside)
    beside.check()
    return surveys


def column_notes(surveys: Mapping[str, Survey]) -> Iterator[str]:
    """Sentences on columns that are not read, and on rows that are not."""
    beside = surveys[TRAIN].beside
    yield from beside.notes()
    read = {id(one): len(one.content_keys) for one in surveys.values()}  # one of both splits counts once
    rows = beside.empty + beside.unanswered + sum(read.values())
    for count, why in ((beside.empty, "their text is empty"), (beside.unanswered, "they hold no answer")):
        if count:
            yield f"{count} of {rows} rows are left out: {why}"


def assign_rows(job: Job, surveys: Mapping[str, Survey]) -> tuple[dict[str, RowIndices], tuple[str, ...]]:
    """split -> indices of its rows, in the order in which they are stored; a sentence if fewer are tested on than was
    asked for."""
    request, seed = job.request, job.seed
    if job.asked.shared is not None:
        rows = shuffled(np.arange(len(surveys[TRAIN].content_keys)), seed, TRAIN)
        return {TRAIN: rows[: request.train_samples]}, ()
    if TEST in surveys:
        every = {name: shuffled(np.arange(len(found.content_keys)), seed, name) for name, found in surveys.items()}
    else:
        every = dict(zip((TRAIN, TEST), split_rows(request, surveys[TRAIN].content_keys, seed), strict=True))
    fewer = check_test_rows(request, len(every[TEST]), held_out=TEST not in surveys)
    if request.only_tested and not predicts_tokens(job.spec.task):  # of which a single one may hold none to learn
        every[TRAIN] = np.arange(1)
    most = {TRAIN: request.train_samples}
    return {name: rows[: most.get(name, request.test_samples)] for name, rows in every.items()}, fewer


PlacedExample = tuple[str, int, Example]
"""(split, position in the split, sample)."""


def placed_examples(job: Job, rows_by_split: Mapping[str, RowIndices]) -> Iterator[PlacedExample]:
    """Read the tables again in their order, and yield every row that a split holds, with its place there."""
    if TEST not in job.tables:
        yield from _placed(job, job.source.train, rows_by_split)
        return
    for name, tables in job.tables.items():
        yield from _placed(job, tables, {name: rows_by_split[name]})


def _placed(job: Job, tables: tuple[Table, ...], rows_by_split: Mapping[str, RowIndices]) -> Iterator[PlacedExample]:
    names = tuple(rows_by_split)
    end = 1 + max(int(rows.max()) for rows in rows_by_split.values())
    split_of, position = np.full(end, -1, dtype=np.int8), np.zeros(end, dtype=np.int64)
    for number, name in enumerate(names):
        split_of[rows_by_split[name]], position[rows_by_split[name]] = number, np.arange(len(rows_by_split[name]))
    every = (example for table in tables for example in examples(table, job.source, job.spec))
    row = -1
    for row, example in enumerate(islice(every, end)):
        if split_of[row] >= 0:
            yield names[split_of[row]], int(position[row]), example
    if row + 1 < end:
        raise ToldAgain(
            "data: {} had {end} rows or more when they were counted, and {read} when they were read; start the run "
            "again",
            tables[0].name,
            end=end,
            read=row + 1,
        )


def saved_tokenizer(job: Job) -> Any:
    """The model's tokenizer as training uses it, with the chat template that was asked for.

    Its folder is written beside the arrays, for whoever takes the model over: the sides on which it truncates and pads
    are its own, and so is the lack of a padding token, unless the model's configuration is given the one of training.
    """
    template, spec, given = job.request.chat_template, job.spec, dict[str, str]()
    tokenizer = own_tokenizer(spec)
    if template is not None:
        given["chat_template"] = with_chat_template(tokenizer, Path(template)).chat_template
    if tokenizer.pad_token is None and not predicts_tokens(spec.task):
        given["pad_token"] = with_padding(tokenizer, spec).pad_token
    save_tokenizer(tokenizer, job.folder / TOKENIZER, spec.tokenizer, given)
    return for_training(tokenizer, spec)
