"""Columns beside what is read: rows that these take out of training, and halves of pairs, are refused, and the others
are told by name."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.tasks import SEQ2SEQ
from fleetune.data.dialogues import (
    ANSWER,
    BESIDE_TEXTS,
    INSTRUCTION,
    MESSAGE_COLUMNS,
    PROMPT,
    row_format,
    unread_columns,
)
from fleetune.data.messages import FLAGS, is_flag, spelled
from fleetune.data.public_words import Told
from fleetune.data.tables import DataSource

LABEL = "label"
"""Column in which rows for KTO, as TRL and ms-swift have them, say whether their answer is a good one."""
PARTNERS = {"premise": "hypothesis", "hypothesis": "premise"}
"""Column of one half of a pair of texts -> that of the other, where their names do not tell it."""
NUMBERED = str.maketrans("12ab", "21ba")
"""Last letters of the columns of two halves, such as sentence1 and sentence2."""
MOST = 100
"""Names, and sets of them, that are kept: rows of JSON may each have others."""


def own_columns(source: DataSource, spec: InputSpec) -> frozenset[str]:
    """Columns that the run names for texts or images, and for what is to be said of them."""
    return frozenset(
        {source.text_column if spec.is_text else source.image_column, source.target_column, source.label_column}
    )


def check_halves(location: str, values: Mapping[str, Any], source: DataSource, spec: InputSpec) -> None:
    """Refuse a row of a pair of texts, such as two sentences to be compared, of which one is not read."""
    if not spec.is_text or spec.task == "causal-lm" or source.text_column not in values:
        return
    own, others = own_columns(source, spec), _partners(source.text_column.lower())
    for name, value in values.items():
        if name.lower() in others and name not in own and isinstance(value, str) and value.strip():
            raise Told(
                "{location}: column {column!r} is read, and {name!r}, the other part of its text, is not; join the two "
                "into one column and name it in data.text_column, or leave {name!r} out",
                location=location,
                column=source.text_column,
                name=name,
            )


@cache
def _partners(column: str) -> frozenset[str]:
    """Columns, in small letters, that have the other half of what a column has; a number is no name of a half."""
    stem = column[:-1]
    numbered = stem + column[-1:].translate(NUMBERED) if stem.strip("0123456789") else column
    return frozenset({PARTNERS.get(column, column), f"{column}_pair", numbered} - {column})


def is_empty_text(values: Mapping[str, Any], column: str) -> bool:
    """Whether a row has an empty text, or null in its place and no messages or completions that could be meant."""
    value = values.get(column)
    if value is None:
        filled = [name for name, other in values.items() if other and name != column]
        return column in values and row_format(filled, column, None) is None
    return isinstance(value, str) and not value.strip()


class SideColumns:
    """What the rows of tables have beside what is read, gathered row by row: a later row may have more columns."""

    def __init__(self, source: DataSource, spec: InputSpec) -> None:
        """For rows of a source that are read for a task."""
        self._source, self._spec, self._own = source, spec, frozenset[str]()
        self._format: str | None = None
        self._rated = False
        self._taken_out = dict[str, tuple[str, Any]]()
        self._quantities = set[str]()
        self.empty = self.unanswered = 0
        """Rows of which nothing is learned: texts that are empty, dialogues without an answer; whoever reads counts."""
        self._known = set[tuple[tuple[str, ...], tuple[str, ...]]]()
        self._unread, self._others = dict[str, None](), dict[str, str]()

    def begin(self, format: str | None, pairs: bool) -> None:
        """Go on with another table. format: that of its dialogues. pairs: whether it has prompts and completions."""
        named = self._spec.task == SEQ2SEQ and (self._source.text_column, self._source.target_column)
        self._format, self._rated = format, pairs or format is not None or named == (PROMPT, ANSWER)
        self._own = own_columns(self._source, self._spec) | ({PROMPT, ANSWER} if pairs else set())
        self._known.clear()

    def see(self, location: str, values: Mapping[str, Any]) -> None:
        """Take note of a row; Refused if it says that its answer is bad."""
        texts = tuple(name for name, value in values.items() if isinstance(value, str) and value)
        names = tuple(name for name, value in values.items() if not isinstance(value, str | None) or value)
        if (names, texts) not in self._known:
            self._note(names, texts)
        for name in () if self._format else FLAGS:
            value = spelled(values.get(name))
            if is_flag(value, 0):
                self._taken_out.setdefault(name, (location, values[name]))
            elif name in names and not is_flag(value, 1) and str(value) != "nan":
                self._quantities.add(name)
        if self._rated and spelled(values.get(LABEL)) is False:
            raise Told(
                "{location}: column {label!r} says that its answer is a bad one, as in data for KTO, and it would be "
                "learned as a good one; leave out such rows, or the column if it means something else",
                location=location,
                label=LABEL,
            )

    def check(self) -> None:
        """Refuse rows that a flag takes out of training; beside other numbers, 0 is one of them."""
        for name, (location, value) in self._taken_out.items():
            if name not in self._quantities | self._own:
                raise Told(
                    "{location}: column {name!r} is {!r}, and rows are not weighed; leave out the row, or the column "
                    "if it means something else",
                    value,
                    location=location,
                    name=name,
                )

    def notes(self) -> Iterator[str]:
        """Sentences if rows have messages or completions beside the text that is read, or other columns that are not:
        beside texts and images, those of texts, and those to which formats give a meaning."""
        for other, name in self._others.items():
            yield (
                f"rows have {self._source.text_column!r}, which is read, and {name!r}, which is not; set data.format "
                f"to {other} to read it"
            )
        if self._unread:
            yield f"rows have columns that are not read: {', '.join(self._unread)}"

    def _note(self, names: tuple[str, ...], texts: tuple[str, ...]) -> None:
        if len(self._known) < MOST:
            self._known.add((names, texts))
        unread = unread_columns(names, self._format) if self._format else self._beside(names, texts)
        for name in unread:
            if len(self._unread) < MOST:
                self._unread[name] = None

    def _beside(self, names: tuple[str, ...], texts: tuple[str, ...]) -> Iterator[str]:
        """Columns of texts or images that are told; a format of which there are others is told itself."""
        text, left = self._source.text_column, texts
        if self._spec.task == "causal-lm" and self._source.format is None and text in names:
            other = row_format([name for name in names if name != text], text, None)
            if other is not None:
                named = next(name for name in (*MESSAGE_COLUMNS, INSTRUCTION, PROMPT) if name in names)
                self._others.setdefault(other, named)
                left = unread_columns(texts, other)
        yield from (name for name in names if name not in self._own and (name in BESIDE_TEXTS or name in left))
