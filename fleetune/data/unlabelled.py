"""What a trained model is asked about: rows of a file without labels, lines of text, images, and arguments."""

from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import COMPLETION, TEXT, DataRequest
from fleetune.contracts.tasks import SEQ2SEQ
from fleetune.data.dialogues import (
    ANSWER,
    INSTRUCTION,
    MESSAGE_COLUMNS,
    OUTPUT,
    PROMPT,
    Chat,
    Completion,
    Dialogue,
    read_dialogue,
    row_format,
)
from fleetune.data.examples import Example, check_heading, given_text
from fleetune.data.image_folders import IMAGE_SUFFIXES, OTHER_IMAGES
from fleetune.data.images import as_image
from fleetune.data.lfs_pointers import check_fetched
from fleetune.data.messages import ASSISTANT, USER, Message
from fleetune.data.tables import FILE_SUFFIXES, open_table, row_place
from fleetune.errors import Refused

LINES = ".txt"
NO_MESSAGE: Message = {}


def asked_texts(texts: Sequence[str], chats: bool, system: Message = NO_MESSAGE) -> Iterator[Example]:
    """Texts as they stand; what a user says after a system's message, where the model was trained on chats."""
    for number, text in enumerate(texts, start=1):
        yield _asked(f"text {number}", text, chats, system)


def _asked(location: str, text: str, chats: bool, system: Message) -> Example:
    if not isinstance(text, str):
        raise Refused(f"{location} is {type(text).__name__}, not text; give strings")
    if not text.strip():
        raise Refused(f"{location} is empty; give words")
    return Example(location=location, content=_said_by_user(text, system) if chats else text, label=None)


def _said_by_user(text: str, system: Message) -> Chat:
    return Chat(messages=(*((system,) if system else ()), {"role": USER, "content": text}))


def asked_images(paths: Sequence[Path]) -> Iterator[Example]:
    """The images of files and folders (those in them, by name); Refused for a path that is neither."""
    for path in paths:
        there = sorted(path.iterdir()) if path.is_dir() else []
        if other := next((file for file in there if file.suffix.lower() in OTHER_IMAGES), None):
            raise Refused(f"{other}: cannot be read; save it as PNG or JPEG, or take it out of the folder")
        files = [file for file in there if is_image(file)] if path.is_dir() else [path]
        if not files:
            raise Refused(f"{path}: no image in it; images end in {', '.join(IMAGE_SUFFIXES)}")
        for file in files:
            if not file.is_file():
                raise Refused(f"{file}: no such file; give images, or folders of images")
            yield Example(location=str(file), content=as_image(str(file), file, None), label=None)


def asked_rows(
    path: Path, request: DataRequest, spec: InputSpec, chats: bool, system: Message = NO_MESSAGE
) -> Iterator[Example]:
    """Rows of a table in the columns of the run's `data` section, or the lines of a .txt file, in order.

    Of rows for causal-lm, what training reads is asked: the column that `data.format` names, else the first of text,
    messages and prompt. Of a chat or an instruction, the messages before the last answer are asked; of a completion,
    its prompt, as what a user says after a system's message where the model was trained on chats. Refused names the
    first row that has none of them.
    """
    if path.suffix.lower() == LINES:
        if not spec.is_text:
            raise Refused(
                f"{path}: it holds lines of text, and the model reads images; give images, or a table of them"
            )
        yield from _asked_lines(path, chats, system)
        return
    if not path.is_file():
        raise Refused(f"{path}: no such file; give a file that ends in {', '.join((*FILE_SUFFIXES, LINES))}")
    table = open_table(path)
    column = request.text_column if spec.is_text else request.image_column
    for number, values in table.rows():
        location = row_place(table, number)
        check_heading(table, location, values)
        format = _format(values, request, spec)
        if format is None:
            raise Refused(f"{location} has nothing in column {column!r}; {_columns(spec)}")
        if format != TEXT:
            found = _dialogue(location, values, format, spec)
            said = _said_by_user(found.prompt, system) if chats and isinstance(found, Completion) else found
            yield Example(location=location, content=said, label=None)
        elif spec.is_text:
            yield _asked(location, given_text(location, column, values[column]), chats, system)
        else:
            yield Example(location=location, content=as_image(location, values[column], path.parent), label=None)


def _asked_lines(path: Path, chats: bool, system: Message) -> Iterator[Example]:
    try:
        check_fetched(str(path), path)
        lines = text_lines(path.read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path}: cannot be read ({error}); give a text file in UTF-8") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _asked(f"{path}: line {number}", line, chats, system)


def text_lines(content: bytes) -> list[str]:
    """Lines of a text in UTF-8, which end where those of files do: a form feed or U+2028 ends none."""
    return StringIO(content.decode("utf-8-sig"), newline=None).read().split("\n")


def _format(values: Mapping[str, Any], request: DataRequest, spec: InputSpec) -> str | None:
    """Format in which a row is read, by what it holds; TEXT for images too; None: it holds nothing to ask about."""
    if not spec.is_text:
        return TEXT if _holds(values.get(request.image_column)) else None
    held = [name for name, value in values.items() if _holds(value)]
    text = request.text_column
    if spec.task == SEQ2SEQ and text not in held and PROMPT in held:
        return COMPLETION
    if spec.task != "causal-lm":
        return TEXT if text in held else None
    columns = [*held, *(name for name in (ANSWER, OUTPUT) if name != text)]  # a row to ask about has no answer yet
    try:
        return row_format(columns, text, request.format)
    except Refused:  # a row of another format than those of training
        return row_format(columns, text, None)


def _holds(value: Any) -> bool:
    return value is not None and not (isinstance(value, str | list) and not value)


def is_image(path: Path) -> bool:
    """Whether its name ends as images do."""
    return path.suffix.lower() in IMAGE_SUFFIXES


def _columns(spec: InputSpec) -> str:
    kind = "text_column" if spec.is_text else "image_column"
    others = {"causal-lm": f"{MESSAGE_COLUMNS[0]}, {INSTRUCTION} or {PROMPT}", SEQ2SEQ: PROMPT}.get(spec.task)
    return f"fill it, or name another by --set data.{kind}" + (f", or give {others}" if others else "")


def _dialogue(location: str, values: Mapping[str, Any], format: str, spec: InputSpec) -> Dialogue:
    """A row as `fleetune.data.dialogues` reads it, whether or not it has an answer, without its last answer."""
    if spec.task == SEQ2SEQ:
        return Completion(given_text(location, PROMPT, values[PROMPT]), "")
    stand_in: Any = [] if isinstance(values.get(PROMPT), list) else "?"
    found = read_dialogue(location, {**values, ANSWER: stand_in, OUTPUT: "?"}, format, any_loss=True)
    if isinstance(found, Completion):
        return Completion(found.prompt, "")
    last = found.messages[-1]["role"] == ASSISTANT
    return Chat(messages=found.messages[:-1] if last else found.messages, tools=found.tools)
