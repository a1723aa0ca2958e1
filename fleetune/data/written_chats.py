"""Chats as a chat template writes them, and refusals of what it leaves out: that would be trained on without a word."""

import re
from collections.abc import Sequence
from typing import Any

from fleetune.data.dialogues import Chat
from fleetune.data.messages import Message
from fleetune.data.public_words import Told
from fleetune.data.tool_calls import CALLS, called_names, fitting, tool_names, with_names
from fleetune.errors import first_line

PLAIN_KEYS = frozenset({"role", "content", CALLS, "tool_call_id", "name"})
REASONING = frozenset({"reasoning_content", "thinking", "reasoning"})
"""Names of thoughts, of which transformers gives a template those that it reads."""


def rendered(tokenizer: Any, location: str, messages: Sequence[Message], tools: Sequence[Any], **settings: Any) -> str:
    """What the chat template makes of messages; Refused names the location."""
    try:
        told = fitting(tokenizer, messages, tools)
        text = tokenizer.apply_chat_template(told, tools=list(tools) or None, tokenize=False, **settings)
    except Exception as error:  # templates are programs, and raise what they like
        raise Told(
            "{location}: the chat template does not take its messages ({}); mend or leave out the row, or name "
            "another template with data.chat_template",
            first_line(error),
            location=location,
        ) from None
    return str(text)


def check_written(tokenizer: Any, location: str, chat: Chat, text: str) -> None:
    """Refuse a chat of which `text`, as the template writes it, lacks a key, a call, a message or a tool."""
    source = str(tokenizer.get_chat_template(tools=list(chat.tools) or None))
    for number, message in enumerate(chat.messages, start=1):
        for key in message.keys() - PLAIN_KEYS:
            if not any(_reads(source, each) for each in (REASONING if key in REASONING else {key})):
                raise Told(
                    "{location}, message {number}: key {!r} is not known, and the chat template does not write it; "
                    "leave it out, or name a template that does with data.chat_template",
                    key,
                    location=location,
                    number=number,
                )
    left_out = _left_out(tokenizer, location, chat, text)
    if left_out is not None:
        raise Told(
            "{location}: the chat template does not write {}; leave out the row, or name a template that does with "
            "data.chat_template",
            left_out,
            location=location,
        )


def _reads(template: str, key: str) -> bool:
    """Whether a template names a key, as an attribute or between quotes."""
    return re.search(rf"""[.'"]{re.escape(key)}\b""", template) is not None


def _left_out(tokenizer: Any, location: str, chat: Chat, text: str) -> str | None:
    """What the template leaves out, in words. Calls may have a name that is written elsewhere, and contents may be
    written otherwise, so that they are looked for by words of our own beside them."""
    wanted: dict[str, str] = {}
    marked: list[Message] = []
    for number, message in enumerate(chat.messages, start=1):
        words = [f"Qx{number}x{place}xQ" for place, _ in enumerate(called_names(message), start=1)]
        wanted |= {
            word: f"the call of {name!r} in message {number}"
            for word, name in zip(words, called_names(message), strict=True)
        }
        told = with_names(message, words)
        if str(message["content"]).strip() not in text:
            wanted[f"Qx{number}xQ"] = f"message {number}, of the {message['role']}"
            told["content"] = f"{message['content']}Qx{number}xQ"
        marked.append(told)
    seen = rendered(tokenizer, location, marked, chat.tools) if wanted else ""
    lost = [words for word, words in wanted.items() if word not in seen]
    lost += [f"the tool {name!r}" for name in tool_names(chat.tools) if name not in text]
    return lost[0] if lost else None
