"""Columns beside what is read: rows that these take out of training are refused, and the others are told by name."""

from collections.abc import Collection, Iterator, Mapping
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
MOST = 100
"""Names, and sets of them, that are kept: rows of JSON may each have others."""


def own_columns(source: DataSource, spec: InputSpec) -> frozenset[str]:
    """Columns that the run names for texts or images, and for what is to be said of them."""
    return frozenset(
        {source.text_column if spec.is_text else source.image_column, source.target_column, source.label_column}
    )


def check_kept(location: str, values: Mapping[str, Any], own: Collection[str]) -> None:
    """Refuse a row of a text or an image that a flag takes out of training."""
    for name in FLAGS:
        if name in values and name not in own and is_flag(spelled(values[name]), 0):
            raise Told(
                "{location}: column {name!r} is {!r}, and rows are not weighed; leave out the row, or the column if it "
                "means something else",
                values[name],
                location=location,
                name=name,
            )


class SideColumns:
    """What the rows of tables have beside what is read, gathered row by row: a later row may have more columns."""

    def __init__(self, source: DataSource, spec: InputSpec) -> None:
        """For rows of a source that are read for a task."""
        self._source, self._spec, self._own = source, spec, own_columns(source, spec)
        self._format: str | None = None
        self._rated = False
        self._zero: str | None = None
        self._classes = False
        self._known = set[tuple[str, ...]]()
        self._unread, self._others = dict[str, None](), dict[str, str]()

    def begin(self, format: str | None, pairs: bool) -> None:
        """Go on with another table. format: that of its dialogues. pairs: whether it has prompts and completions."""
        named = self._spec.task == SEQ2SEQ and (self._source.text_column, self._source.target_column)
        self._format, self._rated = format, pairs or format is not None or named == (PROMPT, ANSWER)
        self._known.clear()

    def see(self, location: str, values: Mapping[str, Any]) -> None:
        """Take note of a row; Refused if it says that its answer is bad."""
        names = tuple(name for name, value in values.items() if value is not None)
        if names not in self._known:
            self._note(names)
        if not self._rated or values.get(LABEL) in (None, ""):
            return
        label = spelled(values[LABEL])
        if label is False:
            raise _bad(location)
        if is_flag(label, 0):
            self._zero = self._zero or location
        self._classes = self._classes or not (is_flag(label, 0) or is_flag(label, 1))

    def check(self) -> None:
        """Refuse labels that were 0 and 1, or 0 alone; among others, 0 is a class."""
        if self._zero is not None and not self._classes:
            raise _bad(self._zero)

    def notes(self) -> Iterator[str]:
        """Sentences if rows have messages or completions beside the text that is read, or other columns that are
        not."""
        for other, name in self._others.items():
            yield (
                f"rows have {self._source.text_column!r}, which is read, and {name!r}, which is not; set data.format "
                f"to {other} to read it"
            )
        if self._unread:
            yield f"rows have columns that are not read: {', '.join(self._unread)}"

    def _note(self, names: tuple[str, ...]) -> None:
        if len(self._known) < MOST:
            self._known.add(names)
        text, unread = self._source.text_column, unread_columns(names, self._format) if self._format else names
        for name in unread:
            told = name in BESIDE_TEXTS - self._own if self._format is None else len(self._unread) < MOST
            if told:
                self._unread[name] = None
        if self._format is None and self._spec.task == "causal-lm" and self._source.format is None and text in names:
            other = row_format([name for name in names if name != text], text, None)
            if other is not None:
                named = next(name for name in (*MESSAGE_COLUMNS, INSTRUCTION, PROMPT) if name in names)
                self._others.setdefault(other, named)


def _bad(location: str) -> Told:
    return Told(
        "{location}: column {label!r} says that its answer is a bad one, as in data for KTO, and it would be learned "
        "as a good one; leave out such rows, or the column if it means something else",
        location=location,
        label=LABEL,
    )
