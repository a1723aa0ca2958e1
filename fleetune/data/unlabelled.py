"""What a trained model is asked about: rows of a file without labels, lines of text, images, and arguments."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import CHAT, COMPLETION, DataRequest
from fleetune.contracts.tasks import SEQ2SEQ
from fleetune.data.dialogues import (
    ANSWER,
    ASSISTANT,
    INSTRUCTION,
    MESSAGE_COLUMNS,
    OUTPUT,
    PROMPT,
    Chat,
    Completion,
    Dialogue,
    read_dialogue,
)
from fleetune.data.examples import Example
from fleetune.data.images import as_image
from fleetune.data.tables import FILE_SUFFIXES, open_table
from fleetune.errors import Refused

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".jp2", ".npy", ".png", ".ppm", ".tif", ".tiff", ".webp")
LINES = ".txt"


def asked_texts(texts: Sequence[str], chats: bool) -> Iterator[Example]:
    """Texts as they stand; what a user says, where the model was trained on chats."""
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise Refused(f"text {number} is empty; give words")
        said = Chat(messages=({"role": "user", "content": text},)) if chats else text
        yield Example(location=f"text {number}", content=said, label=None)


def asked_images(paths: Sequence[Path]) -> Iterator[Example]:
    """The images of files and folders (those in them, by name); Refused for a path that is neither."""
    for path in paths:
        files = sorted(file for file in path.iterdir() if is_image(file)) if path.is_dir() else [path]
        if not files:
            raise Refused(f"{path}: no image in it; images end in {', '.join(IMAGE_SUFFIXES)}")
        for file in files:
            if not file.is_file():
                raise Refused(f"{file}: no such file; give images, or folders of images")
            yield Example(location=str(file), content=as_image(str(file), file, None), label=None)


def asked_rows(path: Path, request: DataRequest, spec: InputSpec, chats: bool) -> Iterator[Example]:
    """Rows of a table in the columns of the run's `data` section, or the lines of a .txt file, in order.

    Of a chat or an instruction, the messages before the last answer are asked; of a completion, its prompt. Refused
    names the first row that has none of them.
    """
    if path.suffix.lower() == LINES:
        try:
            lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(f"{path}: cannot be read ({error}); give a text file in UTF-8") from None
        yield from asked_texts(lines, chats)
        return
    if not path.is_file():
        raise Refused(f"{path}: no such file; give a file that ends in {', '.join((*FILE_SUFFIXES, LINES))}")
    table = open_table(path)
    column = request.text_column if spec.is_text else request.image_column
    for number, values in table.rows():
        location = f"{table.name}: {table.row_noun} {number}"
        content = values.get(column)
        if content is None or content == "":
            pair = spec.task == SEQ2SEQ and isinstance(values.get(PROMPT), str)
            if not pair and (
                spec.task != "causal-lm"
                or not any(values.get(name) for name in (*MESSAGE_COLUMNS, INSTRUCTION, PROMPT))
            ):
                raise Refused(f"{location} has nothing in column {column!r}; {_columns(spec)}")
            yield Example(location=location, content=_dialogue(location, values), label=None)
        elif not spec.is_text:
            yield Example(location=location, content=as_image(location, content, path.parent), label=None)
        else:
            yield from asked_texts([str(content)], chats)


def is_image(path: Path) -> bool:
    """Whether its name ends as images do."""
    return path.suffix.lower() in IMAGE_SUFFIXES


def _columns(spec: InputSpec) -> str:
    kind = "text_column" if spec.is_text else "image_column"
    others = {"causal-lm": f"{MESSAGE_COLUMNS[0]}, {INSTRUCTION} or {PROMPT}", SEQ2SEQ: PROMPT}.get(spec.task)
    return f"fill it, or name another by --set data.{kind}" + (f", or give {others}" if others else "")


def _dialogue(location: str, values: Mapping[str, Any]) -> Dialogue:
    """A row as `fleetune.data.dialogues` reads it, whether or not it has an answer, without its last answer."""
    format = COMPLETION if values.get(PROMPT) else CHAT
    stand_in: Any = [] if isinstance(values.get(PROMPT), list) else "?"
    found = read_dialogue(location, {**values, ANSWER: stand_in, OUTPUT: "?"}, format, any_loss=True)
    if isinstance(found, Completion):
        return Completion(found.prompt, "")
    last = found.messages[-1]["role"] == ASSISTANT
    return Chat(messages=found.messages[:-1] if last else found.messages, tools=found.tools)
