"""Dialogues: rows of chats, instructions and completions, in the spellings that people's files have.

| format | columns |
|---|---|
| chat | `messages` or `conversations` (role and content; from and value); instruction, input, output, `history` |
| completion | `prompt` and `completion`: texts, or lists of messages |

Both may have `system` and `tools`. What axolotl, LLaMA-Factory and ms-swift give a meaning that is not known here is
refused by name.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetune.contracts.run_config import CHAT, COMPLETION, TEXT
from fleetune.data.messages import (
    ASSISTANT,
    FLAGS,
    MEDIA,
    SYSTEM,
    USER,
    WEIGHT,
    Message,
    is_flag,
    read_messages,
    spelled,
)
from fleetune.data.public_words import Told

MESSAGE_COLUMNS = ("messages", "conversations", "conversation")
PROMPT, ANSWER = "prompt", "completion"
INSTRUCTION, INPUT, OUTPUT = "instruction", "input", "output"
HISTORY, TOOLS = "history", "tools"
UNLEARNED = {
    **dict.fromkeys(("chosen", "rejected", "rejected_response", "kto_tag"), "preferences, which are not learned"),
    **dict.fromkeys(MEDIA, "no texts, which alone are read in chats"),
    "functions": "tools in an older form; give them as tools, each as {type: function, function: ...}, which are read",
    "chat_template_kwargs": "settings of the chat template, which are not used",
}
"""Columns that change what trainers learn of a dialogue, and what they hold."""
BESIDE_TEXTS = frozenset({SYSTEM, TOOLS, HISTORY, "text_pair", *FLAGS, *UNLEARNED})
"""Columns to which formats give a meaning for what is learned, and that are not read where rows are texts or images."""
NO_ANSWER = frozenset({"role", "content", "name"})
"""Keys of a message that say nothing where its content is empty; calls and thoughts do."""


class Unanswered(Told):
    """A row without anything to learn, of which a table may have some beside others."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A text and how it goes on."""

    prompt: str
    completion: str

    @property
    def spelled(self) -> str:
        """All that is said."""
        return self.prompt + self.completion

    @property
    def key(self) -> str:
        """Text that is equal for equal samples."""
        return f"{self.prompt}\0{self.completion}"


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages as a chat template takes them, each with `role` and `content`."""

    messages: tuple[Message, ...]
    tools: tuple[Any, ...] = ()
    """Descriptions of functions, as a chat template takes them."""
    given: int = 0
    """The first so many messages are a prompt: none of them is a completion."""
    unweighted: frozenset[int] = frozenset()
    """Messages of the assistant that carry no loss (`weight: 0`)."""

    @property
    def answers(self) -> tuple[int, ...]:
        """Numbers of the messages that are completions: those of the assistant that carry loss."""
        return tuple(
            number
            for number, message in enumerate(self.messages)
            if message["role"] == ASSISTANT and number >= self.given and number not in self.unweighted
        )

    @property
    def spelled(self) -> str:
        """All that is said."""
        return json.dumps((self.messages, self.tools), ensure_ascii=False, default=str)

    @property
    def key(self) -> str:
        """Text that is equal for equal samples."""
        return json.dumps((self.messages, self.tools), sort_keys=True, default=str)


Dialogue = Chat | Completion


def row_format(columns: Sequence[str], text_column: str, asked: str | None) -> str | None:
    """Format of rows with these columns: the one that was asked for, else the first that they have; None: none.

    Raises Refused if the columns of the asked format are missing.
    """
    has = {
        TEXT: text_column in columns,
        CHAT: any(name in columns for name in MESSAGE_COLUMNS) or {INSTRUCTION, OUTPUT} <= set(columns),
        COMPLETION: {PROMPT, ANSWER} <= set(columns),
    }
    if asked is None:
        return next((name for name, found in has.items() if found), None)
    if not columns or has[asked]:
        return asked
    wanted = {
        TEXT: text_column,
        CHAT: f"{' or '.join(MESSAGE_COLUMNS[:2])}, or {INSTRUCTION} and {OUTPUT}",
        COMPLETION: f"{PROMPT} and {ANSWER}",
    }
    raise Told("no {wanted} for data.format: {asked}; it has {}", ", ".join(columns), wanted=wanted[asked], asked=asked)


def unread_columns(columns: Sequence[str], format: str) -> tuple[str, ...]:
    """Columns of rows of chats or completions that are neither read nor refused."""
    messages = next((name for name in MESSAGE_COLUMNS if name in columns), None)
    instruction = (INSTRUCTION, INPUT, OUTPUT, HISTORY)
    named = (PROMPT, ANSWER) if format == COMPLETION else (messages,) if messages else instruction
    return tuple(name for name in columns if name not in (*named, SYSTEM, TOOLS, *FLAGS, *UNLEARNED, HISTORY))


def has_pairs(columns: Sequence[str], text_column: str) -> bool:
    """Return whether rows are read as prompt and completion: they have both, and not the column of texts."""
    return text_column not in columns and {PROMPT, ANSWER} <= set(columns)


def read_pair(location: str, values: Mapping[str, Any], columns: tuple[str, str]) -> Completion:
    """The text that is read and the one that is written, from two columns; Refused names the location."""
    for name in columns:
        if isinstance(values.get(name), dict):
            raise Told(
                "{location}: column {name!r} holds {keys} in one; give each of them a column of its own",
                location=location,
                name=name,
                keys=" and ".join(map(repr, values[name])),
            )
        if not isinstance(values.get(name), str) or not values[name].strip():
            raise Told(
                "{location}: column {name!r} holds no text; fill it or leave the row out", location=location, name=name
            )
    return Completion(*(str(values[name]) for name in columns))


def read_dialogue(location: str, values: Mapping[str, Any], format: str, any_loss: bool) -> Dialogue:
    """The chat or completion of a row; Refused names the location. Unanswered: there is nothing to learn in it.

    any_loss: whether a chat without a message that carries loss is taken.
    """
    _check_columns(location, values, format)
    if format == COMPLETION and not isinstance(values.get(PROMPT), list):
        prompt, answer = (_text(location, name, values.get(name)) for name in (PROMPT, ANSWER))
        if not answer.strip():
            raise Unanswered(
                "{location}: {answer!r} is empty; fill it or leave the row out",
                location=location,
                answer=ANSWER,
            )
        return Completion(prompt, answer)
    chat = _chat(location, values, format)
    if not chat.messages:
        raise Unanswered("{location}: it has no messages; leave the row out", location=location)
    if not chat.answers and not any_loss:
        raise Unanswered(
            "{location}: no message of the {assistant}, so nothing to learn; leave the row out, or set "
            "data.loss_on to all",
            location=location,
            assistant=ASSISTANT,
        )
    return chat


def check_answers(location: str, dialogue: Dialogue) -> None:
    """Refuse a chat of which an answer that carries loss says nothing; a chat that is only asked may have such.
    Unanswered: none says anything."""
    if isinstance(dialogue, Completion):
        return
    silent = [
        number
        for number in dialogue.answers
        if not (message := dialogue.messages[number])["content"].strip()
        and not any(message[key] for key in message.keys() - NO_ANSWER)
    ]
    if silent:
        raise (Told if len(silent) < len(dialogue.answers) else Unanswered)(
            "{location}, message {number}: the {assistant} says nothing in it, which would be learned; fill it, "
            'leave the row out, or give it "weight": 0',
            location=location,
            number=silent[0] + 1,
            assistant=ASSISTANT,
        )


def _chat(location: str, values: Mapping[str, Any], format: str) -> Chat:
    if format == COMPLETION:
        prompt = _told(location, values, read_messages(location, PROMPT, values[PROMPT]))
        messages = (*prompt, *read_messages(location, ANSWER, values.get(ANSWER)))
        return _weighted(messages, _tools(location, values.get(TOOLS)), len(prompt))
    name = next((name for name in MESSAGE_COLUMNS if values.get(name) is not None), None)
    if name is not None:
        messages = _told(location, values, read_messages(location, name, values[name]))
        return _weighted(messages, _tools(location, values.get(TOOLS)), 0)
    if values.get(INSTRUCTION) is None:
        raise Told(
            "{location} has no {messages} and no {instruction}; fill it or leave the row out",
            messages=" or ".join(MESSAGE_COLUMNS[:2]),
            location=location,
            instruction=INSTRUCTION,
        )
    asked = _text(location, INSTRUCTION, values[INSTRUCTION])
    more = _text(location, INPUT, values.get(INPUT) or "")
    answer = _text(location, OUTPUT, values.get(OUTPUT))
    turns = (*_history(location, values.get(HISTORY)), (f"{asked}\n\n{more}" if more else asked, answer))
    said = tuple(
        {"role": role, "content": text} for turn in turns for role, text in zip((USER, ASSISTANT), turn, strict=True)
    )
    return Chat(_told(location, values, said), _tools(location, values.get(TOOLS)))


def _history(location: str, found: Any) -> list[tuple[str, str]]:
    """Questions and answers before an instruction, as LLaMA-Factory has them; their answers carry loss, too."""
    turns = [] if found is None else found
    if not isinstance(turns, list) or any(not isinstance(turn, list) or len(turn) != 2 for turn in turns):
        raise Told(
            "{location}: column {history!r} is no list of pairs; give [question, answer] of each turn",
            location=location,
            history=HISTORY,
        )
    return [(_text(location, HISTORY, asked), _text(location, HISTORY, answer)) for asked, answer in turns]


def _check_columns(location: str, values: Mapping[str, Any], format: str) -> None:
    """Refuse what a column would change of the loss or of the messages, and is not read."""
    for name, value in values.items():
        if name in FLAGS and value not in (None, "") and not is_flag(spelled(value), 1):
            raise Told(
                "{location}: column {name!r} is {!r}, and rows are not weighed; leave out the row or it",
                value,
                location=location,
                name=name,
            )
        if name in UNLEARNED and value not in (None, "", [], {}):
            raise Told(
                "{location}: column {name!r} holds {kind}; leave out the row or the column",
                location=location,
                name=name,
                kind=UNLEARNED[name],
            )
    instructed = format == CHAT and all(values.get(name) is None for name in MESSAGE_COLUMNS)
    if values.get(HISTORY) and not instructed:
        raise Told(
            "{location}: column {history!r} goes before an {instruction}; put its turns among the messages",
            location=location,
            history=HISTORY,
            instruction=INSTRUCTION,
        )
    if format == COMPLETION and not isinstance(values.get(PROMPT), list):
        for name in (SYSTEM, TOOLS):
            if values.get(name) not in (None, "", "[]", []):
                raise Told(
                    "{location}: column {name!r} is for messages, and {prompt!r} is a text; give both {prompt} and "
                    "{answer} as lists of messages, or leave the column out",
                    location=location,
                    name=name,
                    prompt=PROMPT,
                    answer=ANSWER,
                )


def _told(location: str, values: Mapping[str, Any], messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Messages after that of the column `system`, if it holds one; Refused if they begin with another."""
    told = _text(location, SYSTEM, values.get(SYSTEM) or "")
    if not told.strip() or not messages:
        return messages
    if messages[0]["role"] != SYSTEM:
        return ({"role": SYSTEM, "content": told}, *messages)
    if messages[0]["content"].strip() != told.strip():
        raise Told(
            "{location}: its messages begin with another {system} message than column {system!r} holds; leave one out",
            location=location,
            system=SYSTEM,
        )
    return messages


def _weighted(messages: tuple[Message, ...], tools: tuple[Any, ...], given: int) -> Chat:
    unweighted = frozenset(number for number, message in enumerate(messages) if message.get(WEIGHT) == 0)
    plain = tuple({key: value for key, value in message.items() if key != WEIGHT} for message in messages)
    return Chat(plain, tools, given, unweighted)


def _tools(location: str, found: Any) -> tuple[Any, ...]:
    """Descriptions of functions; some files hold them as JSON."""
    if isinstance(found, str):
        try:
            found = json.loads(found or "[]")
        except ValueError as error:
            raise Told(
                "{location}: 'tools' is not JSON ({}); give a list of functions",
                error,
                location=location,
            ) from None
    if found is None:
        return ()
    if not isinstance(found, list):
        raise Told("{location}: 'tools' holds {}; give a list of functions", type(found).__name__, location=location)
    return tuple(found)


def _text(location: str, column: str, value: Any) -> str:
    if value is None:
        raise Told(
            "{location} has nothing in column {column!r}; fill it or leave the row out",
            location=location,
            column=column,
        )
    if not isinstance(value, str):
        raise Told(
            "{location}: column {column!r} holds {}, not text; give strings",
            type(value).__name__,
            location=location,
            column=column,
        )
    return value
