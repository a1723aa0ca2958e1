"""Dialogues: rows of chats, instructions and completions, in the spellings that people's files have.

| format | columns |
|---|---|
| chat | `messages` or `conversations` (role and content; from and value), `tools`; instruction, input, output |
| completion | `prompt` and `completion`: texts, or lists of messages |
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetune.contracts.run_config import CHAT, COMPLETION, TEXT
from fleetune.data.tool_calls import CALLS, with_objects, without_nulls
from fleetune.errors import Refused

MESSAGE_COLUMNS = ("messages", "conversations", "conversation")
PROMPT, ANSWER = "prompt", "completion"
INSTRUCTION, INPUT, OUTPUT = "instruction", "input", "output"
SYSTEM, ASSISTANT = "system", "assistant"
"""Roles; a column may have the name of the first."""
ROLES = {"human": "user", "gpt": ASSISTANT, "model": ASSISTANT, "bot": ASSISTANT, "observation": "tool"}
"""Roles by the names that some files give them; any other is left to the chat template."""
Message = Mapping[str, Any]


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
    raise Refused(f"no {wanted[asked]} for data.format: {asked}; it has {', '.join(columns)}")


def has_pairs(columns: Sequence[str], text_column: str) -> bool:
    """Return whether rows are read as prompt and completion: they have both, and not the column of texts."""
    return text_column not in columns and {PROMPT, ANSWER} <= set(columns)


def read_pair(location: str, values: Mapping[str, Any], columns: tuple[str, str]) -> Completion:
    """The text that is read and the one that is written, from two columns; Refused names the location."""
    for name in columns:
        if not isinstance(values.get(name), str) or not values[name].strip():
            raise Refused(f"{location}: column {name!r} holds no text; fill it or leave the row out")
    return Completion(*(str(values[name]) for name in columns))


def read_dialogue(location: str, values: Mapping[str, Any], format: str, any_loss: bool) -> Dialogue:
    """The chat or completion of a row; Refused names the location.

    any_loss: whether a chat without a message that carries loss is taken.
    """
    if format == COMPLETION and not isinstance(values.get(PROMPT), list):
        prompt, answer = (_text(location, name, values.get(name)) for name in (PROMPT, ANSWER))
        if not answer.strip():
            raise Refused(f"{location}: {ANSWER!r} is empty; fill it or leave the row out")
        return Completion(prompt, answer)
    chat = _chat(location, values, format)
    if not chat.messages:
        raise Refused(f"{location}: it has no messages; leave the row out")
    if not chat.answers and not any_loss:
        raise Refused(
            f"{location}: no message of the {ASSISTANT}, so nothing to learn; leave the row out, or set data.loss_on "
            "to all"
        )
    return chat


def _chat(location: str, values: Mapping[str, Any], format: str) -> Chat:
    if format == COMPLETION:
        prompt = _told(location, values, _messages(location, PROMPT, values[PROMPT]))
        return _weighted((*prompt, *_messages(location, ANSWER, values.get(ANSWER))), (), len(prompt))
    name = next((name for name in MESSAGE_COLUMNS if values.get(name) is not None), None)
    if name is not None:
        messages = _told(location, values, _messages(location, name, values[name]))
        return _weighted(messages, _tools(location, values.get("tools")), 0)
    if values.get(INSTRUCTION) is None:
        raise Refused(
            f"{location} has no {' or '.join(MESSAGE_COLUMNS[:2])} and no {INSTRUCTION}; fill it or leave the row out"
        )
    asked = _text(location, INSTRUCTION, values[INSTRUCTION])
    more = _text(location, INPUT, values.get(INPUT) or "")
    answer = _text(location, OUTPUT, values.get(OUTPUT))
    question = {"role": "user", "content": f"{asked}\n\n{more}" if more else asked}
    return Chat(_told(location, values, (question, {"role": ASSISTANT, "content": answer})))


def _told(location: str, values: Mapping[str, Any], messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Messages after that of the column `system`, if it holds one; Refused if they begin with another."""
    told = _text(location, SYSTEM, values.get(SYSTEM) or "")
    if not told.strip() or not messages:
        return messages
    if messages[0]["role"] != SYSTEM:
        return ({"role": SYSTEM, "content": told}, *messages)
    if messages[0]["content"].strip() != told.strip():
        raise Refused(
            f"{location}: its messages begin with another {SYSTEM} message than column {SYSTEM!r} holds; leave one out"
        )
    return messages


def _weighted(messages: tuple[Message, ...], tools: tuple[Any, ...], given: int) -> Chat:
    unweighted = frozenset(number for number, message in enumerate(messages) if message.get("weight") == 0)
    plain = tuple({key: value for key, value in message.items() if key != "weight"} for message in messages)
    return Chat(plain, tools, given, unweighted)


def _messages(location: str, column: str, found: Any) -> tuple[Message, ...]:
    if not isinstance(found, list):
        raise Refused(f"{location}: column {column!r} holds {type(found).__name__}; give a list of messages")
    return tuple(_message(f"{location}, message {number}", each) for number, each in enumerate(found, start=1))


def _message(location: str, found: Any) -> Message:
    """A message with `role` and `content`; keys that are null, as Parquet fills them in, are left out."""
    if not isinstance(found, dict):
        raise Refused(f"{location}: it is {type(found).__name__}; give an object with role and content")
    message = with_objects(without_nulls(found))
    role = message.pop("from", None) if "role" not in message else message.pop("role")
    content = message.pop("value", None) if "content" not in message else message.pop("content")
    if not isinstance(role, str) or not role:
        raise Refused(f"{location}: it has no role; give system, user, assistant or tool")
    if isinstance(content, list):
        content = _joined(location, content)
    if content is None and CALLS in message:
        content = ""
    if not isinstance(content, str):
        kind = "no content" if content is None else f"content of type {type(content).__name__}"
        raise Refused(f"{location}: it has {kind}; give a text")
    role = role.strip().lower()
    return {"role": ROLES.get(role, role), "content": content, **message}


def _joined(location: str, parts: list[Any]) -> str:
    """The text of a content in parts; Refused for parts that are no texts, such as images."""
    for part in parts:
        if not isinstance(part, dict) or part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
            raise Refused(f"{location}: its content has a part that is no text; only texts can be trained on")
    return "".join(part["text"] for part in parts)


def _tools(location: str, found: Any) -> tuple[Any, ...]:
    """Descriptions of functions; some files hold them as JSON."""
    if isinstance(found, str):
        try:
            found = json.loads(found or "[]")
        except ValueError as error:
            raise Refused(f"{location}: 'tools' is not JSON ({error}); give a list of functions") from None
    if found is None:
        return ()
    if not isinstance(found, list):
        raise Refused(f"{location}: 'tools' holds {type(found).__name__}; give a list of functions")
    return tuple(without_nulls(found))


def _text(location: str, column: str, value: Any) -> str:
    if value is None:
        raise Refused(f"{location} has nothing in column {column!r}; fill it or leave the row out")
    if not isinstance(value, str):
        raise Refused(f"{location}: column {column!r} holds {type(value).__name__}, not text; give strings")
    return value
