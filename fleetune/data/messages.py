"""Messages of chats: their roles, texts, calls of tools, and which of them carry loss."""

from collections.abc import Mapping
from typing import Any

from fleetune.data.public_words import Told, inside
from fleetune.data.tool_calls import CALLS, calls_in, check_calls, with_objects

SYSTEM, DEVELOPER, USER, ASSISTANT, TOOL = ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles; a column may have the name of the first."""
CALL = "function_call"
"""Role of a message that holds calls of the assistant as JSON, and key of a call as older files have it."""
OTHER_ROLES = {
    "human": USER,
    **dict.fromkeys(("gpt", "model", "bot", "chatbot"), ASSISTANT),
    **dict.fromkeys(("observation", "function", "tool_response", "ipython"), TOOL),
    **dict.fromkeys(("tool_call", CALL), CALL),
}
"""Roles by the names that some files give them."""
WEIGHT, LOSS, TRAIN, TRAINING = FLAGS = ("weight", "loss", "train", "training")
"""Keys that say whether a message of the assistant carries loss, as OpenAI, ms-swift and axolotl call them."""
MEDIA = ("image", "images", "video", "videos", "audio", "audios")
"""Keys and columns of what is no text."""
Message = Mapping[str, Any]


def is_flag(value: Any, number: int) -> bool:
    """Whether a value is 1 or 0, or the truth value that it stands for."""
    return isinstance(value, int | float) and value == number


def spelled(value: Any) -> Any:
    """A value of a column; the number or truth value that a text spells, as CSV files have them."""
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text) if text else value
    except ValueError:
        return value


def read_messages(location: str, column: str, found: Any) -> tuple[Message, ...]:
    """The messages of a column; Refused names the location."""
    if not isinstance(found, list):
        raise Told(
            "{location}: column {column!r} holds {}; give a list of messages",
            type(found).__name__,
            location=location,
            column=column,
        )
    messages: list[Message] = []
    for number, each in enumerate(found, start=1):
        at = inside(location, f"message {number}")
        message = _message(at, each)
        if message["role"] != CALL:
            messages.append(message)
            continue
        message = {**message, "role": ASSISTANT, "content": "", CALLS: calls_in(at, message["content"])}
        before = messages.pop() if messages and messages[-1]["role"] == ASSISTANT else {**message, CALLS: []}
        if before.get(WEIGHT, 1) != message.get(WEIGHT, 1):
            raise Told(
                "{location}: it calls and the one before it answers, which is one message; give both or none loss",
                location=at,
            )
        messages.append({**before, CALLS: [*before.get(CALLS, []), *message[CALLS]]})
    return tuple(messages)


def _message(location: str, found: Any) -> dict[str, Any]:
    """A message with `role` and `content`, and `weight` 0 or 1 where one of FLAGS is given; its own keys
    that are null are left out."""
    if not isinstance(found, dict):
        raise Told(
            "{location}: it is {}; give an object with role and content",
            type(found).__name__,
            location=location,
        )
    message = {key: value for key, value in found.items() if value is not None}
    media = next((key for key in MEDIA if message.pop(key, None)), None)
    if media is not None:
        raise Told(
            "{location}: {media!r} holds no text, and only texts can be trained on; leave out the row or the key",
            location=location,
            media=media,
        )
    if CALLS in message:
        message[CALLS] = check_calls(location, message[CALLS])
        message = with_objects(message) if message[CALLS] else {k: v for k, v in message.items() if k != CALLS}
    role = message.pop("from", None) if "role" not in message else message.pop("role")
    content = message.pop("value", None) if "content" not in message else message.pop("content")
    if not isinstance(role, str) or not role:
        raise Told("{location}: it has no role; give system, user, assistant or tool", location=location)
    role = OTHER_ROLES.get(role.strip().lower(), role.strip().lower())
    if role not in (*ROLES, CALL):
        raise Told(
            "{location}: role {!r} is not known; give {roles}, or one of {others}",
            role,
            location=location,
            roles=", ".join(ROLES),
            others=", ".join(OTHER_ROLES),
        )
    if role == ASSISTANT and CALL in message:
        message[CALLS] = [*message.get(CALLS, []), *calls_in(location, message.pop(CALL))]
    if isinstance(content, list):
        content = _joined(location, content)
    if content is None and CALLS in message:
        content = ""
    if not isinstance(content, str):
        kind = "no content" if content is None else f"content of type {type(content).__name__}"
        raise Told("{location}: it has {}; give a text", kind, location=location)
    return {"role": role, "content": content, **_plain_flags(location, role, message)}


def _plain_flags(location: str, role: str, message: dict[str, Any]) -> dict[str, Any]:
    """A message whose flags are one, `weight`."""
    flags = {key: message[key] for key in FLAGS if key in message}
    for key, value in flags.items():
        if not is_flag(value, 0) and not is_flag(value, 1):
            raise Told(
                "{location}: {key!r} is {!r}; give true or false, or 1 or 0: a message has loss or none",
                value,
                location=location,
                key=key,
            )
        if value and key in (TRAIN, TRAINING) and role not in (ASSISTANT, CALL):
            raise Told(
                "{location}: {key!r} asks for loss on a message of the {role}; only those of the {assistant} have any",
                location=location,
                key=key,
                role=role,
                assistant=ASSISTANT,
            )
    if len(set(flags.values())) > 1:
        raise Told(
            "{location}: {flags} contradict each other; leave one out",
            location=location,
            flags=" and ".join(map(repr, flags)),
        )
    plain = {key: value for key, value in message.items() if key not in flags}
    return {**plain, WEIGHT: int(next(iter(flags.values())))} if flags else plain


def _joined(location: str, parts: list[Any]) -> str:
    """The text of a content in parts; Refused for parts that are no texts, such as images."""
    for part in parts:
        if not isinstance(part, dict) or part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
            raise Told(
                "{location}: its content has a part that is no text; only texts can be trained on",
                location=location,
            )
    return "".join(part["text"] for part in parts)
