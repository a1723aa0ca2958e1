"""Chats as a chat template writes them, and refusals of what it leaves out: that would be trained on without a word."""

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from fleetune.data.dialogues import Chat
from fleetune.data.messages import ASSISTANT, DEVELOPER, SYSTEM, TOOL, Message
from fleetune.data.public_words import Told
from fleetune.data.tool_calls import CALLS, FUNCTION, NAME, called_names, fitting, tool_names, with_names
from fleetune.errors import first_line

PLAIN_KEYS = frozenset({"role", "content", CALLS, "tool_call_id", "name"})
TAG = re.compile(r"(<[^<>]*>|\[[^\[\]]*\])")
"""A tag within a text, such as <think>, at which templates split it: no word of ours is put before or into it."""
WHOLE = "the whole of"
WORD = re.compile(r"Qx\d+x\d+xQ")
REASONING = frozenset({"reasoning_content", "thinking", "reasoning"})
"""Names of thoughts, of which transformers gives a template those that it reads."""


DATE = datetime(2024, 7, 26)
"""The day that stands for each in what a template writes, as in Llama's where it is told none: the same rows are the
same samples on every day, and in training and prediction."""
TELLS_DATE = re.compile(r"""\bstrftime_now\(\s*(['"])(.*?)\1\s*\)""")
"""Where a template has transformers write the date."""


def rendered(tokenizer: Any, location: str, messages: Sequence[Message], tools: Sequence[Any], **settings: Any) -> str:
    """What the chat template makes of messages; Refused names the location."""
    try:
        told = fitting(tokenizer, messages, tools)
        template = tokenizer.get_chat_template(settings.pop("chat_template", None), list(tools) or None)
        of_one_day = TELLS_DATE.sub(lambda call: repr(DATE.strftime(call[2])), template)
        text = tokenizer.apply_chat_template(
            told, tools=list(tools) or None, tokenize=False, chat_template=of_one_day, **settings
        )
    except Exception as error:  # templates are programs, and raise what they like
        raise Told(
            "{location}: the chat template does not take its messages ({}); mend or leave out the row, or name "
            "another template with data.chat_template",
            first_line(error),
            location=location,
        ) from None
    return str(text)


def check_written(tokenizer: Any, location: str, chat: Chat, learned: Collection[int]) -> None:
    """Refuse a chat of which the template does not write a key, a call, a message, a tool or the thoughts of an answer.

    learned: numbers of the answers that carry loss.
    """
    source = str(tokenizer.get_chat_template(tools=list(chat.tools) or None))
    for number, message in enumerate(chat.messages, start=1):
        for key in message.keys() - PLAIN_KEYS:
            if message[key] in ("", [], {}):  # as programs write what there is none of; other templates may read it
                continue
            named = any(_reads(source, each) for each in (REASONING if key in REASONING else {key}))
            if not named or not _matters(tokenizer, location, chat, learned, (number - 1, key)):
                raise Told(
                    "{location}, message {number}: key {!r} is not known, and the chat template does not write it; "
                    "leave it out, or name a template that does with data.chat_template",
                    key,
                    location=location,
                    number=number,
                )
    left_out = _left_out(tokenizer, location, chat, learned)
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


def _matters(tokenizer: Any, location: str, chat: Chat, learned: Collection[int], place: tuple[int, str]) -> bool:
    """Whether what the template writes is another, or nothing, where a message has another value of a key or none: it
    may name the key of a part of a content, or of a tool.

    Thoughts are looked for by words of ours, and a template may leave them out of an answer that is not learned.
    """
    number, key = place
    message = chat.messages[number]
    if key in REASONING or not message[key] or (message["role"] == ASSISTANT and number not in learned):
        return True
    said = rendered(tokenizer, location, chat.messages, chat.tools)
    without = {each: value for each, value in message.items() if each != key}
    for other in ({**without, key: "Qx0x0xQ"}, without):
        changed = [*chat.messages[:number], other, *chat.messages[number + 1 :]]
        try:
            if rendered(tokenizer, location, changed, chat.tools) != said:
                return True
        except Told:  # it reads the key, and takes no such value
            return True
    return False


def _left_out(tokenizer: Any, location: str, chat: Chat, learned: Collection[int]) -> str | None:
    """What the template leaves out, in words: that beside which we put a word of our own, and it does not write it.

    A word that is lost among the others is looked for alone, since templates ask what a text holds.
    """
    wanted: dict[str, str] = {}
    messages = [_with_words(message, n + 1, n in learned, wanted) for n, message in enumerate(chat.messages)]
    told = " ".join(str(each["content"]) for each in chat.messages if each["role"] in (SYSTEM, DEVELOPER))
    tools = [_with_word(tool, place, told, wanted) for place, tool in enumerate(chat.tools, start=1)]
    seen = set(WORD.findall(rendered(tokenizer, location, messages, tools) if wanted else ""))
    doubtful = [word for word in wanted if word not in seen]
    for word in sorted(doubtful, key=lambda each: wanted[each].startswith(WHOLE)):  # a message without its end is none
        if word not in rendered(tokenizer, location, _with_only(word, messages), _with_only(word, tools)):
            return wanted[word]
    return None


def _with_words(message: Message, number: int, learned: bool, wanted: dict[str, str]) -> Message:
    """A message with our words at both ends of each piece of its text, and beside its thoughts and the names in it.

    A template may take the thoughts out of an answer that is not learned: the model is not asked with them either.
    """

    def word(what: str) -> str:
        made = f"Qx{number}x{len(wanted)}xQ"
        wanted[made] = what
        return made

    role = message["role"]
    names = [f"{name}{word(f'the call of {name!r} in message {number}')}" for name in called_names(message)]
    told = with_names(message, names)
    whole = learned or role != ASSISTANT
    for key, value in message.items():
        if isinstance(value, str) and value.strip() and (key in REASONING and whole or key == "name" and role != TOOL):
            told[key] = f"{value}{word(f'{key!r} of message {number}')}"
    content, pieces = str(message["content"]), []
    parts = TAG.split(content)  # every second one is a tag
    final = max((place for place in range(0, len(parts), 2) if parts[place].strip()), default=0)
    for place, part in enumerate(parts):
        said, ends = part.strip(), place == final
        if place % 2 or not said:
            pieces.append(part)
            continue
        lead, tail = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
        what = f"message {number}, of the {role}"
        first = word(f"{WHOLE} {what}") if whole else ""
        last = word(what if ends else f"{WHOLE} {what}") if whole or ends else ""
        pieces.append(f"{lead}{first}{said}{last}{tail}")
    if content.strip() and not parts[final].strip():  # tags alone
        pieces.append(word(f"message {number}, of the {role}"))
    told["content"] = "".join(pieces)
    return told


def _with_word(tool: Any, place: int, told: str, wanted: dict[str, str]) -> Any:
    """The description of a tool with a word of ours beside its name, unless the system tells of it."""
    for name in tool_names([tool]):
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", told) is None:
            word = f"Qx0x{place}xQ"
            wanted[word] = f"the tool {name!r}"
            if isinstance(tool.get(FUNCTION), dict):
                return {**tool, FUNCTION: {**tool[FUNCTION], NAME: f"{name}{word}"}}
            return {**tool, NAME: f"{name}{word}"}
    return tool


def _with_only(word: str, found: Any) -> Any:
    """Messages or tools without our words but one."""
    if isinstance(found, dict):
        return {key: _with_only(word, value) for key, value in found.items()}
    if isinstance(found, list):
        return [_with_only(word, each) for each in found]
    return WORD.sub(lambda each: each[0] if each[0] == word else "", found) if isinstance(found, str) else found
