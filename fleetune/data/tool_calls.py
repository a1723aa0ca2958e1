"""Calls of tools in messages: their arguments as objects, or as JSON text where a chat template takes only that.

OpenAI writes arguments as JSON text. Most templates expect an object, which they write as JSON, and would write a text
as JSON once more, with its quotes escaped; a few join a text to the rest.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CALLS, FUNCTION, ARGUMENTS = "tool_calls", "function", "arguments"
Message = Mapping[str, Any]


def without_nulls(found: Any) -> Any:
    """A value without keys that hold null, at any depth: Parquet gives every object the keys of all others."""
    if isinstance(found, dict):
        return {key: without_nulls(value) for key, value in found.items() if value is not None}
    return [without_nulls(each) for each in found] if isinstance(found, list) else found


def with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have arguments as objects where they are the JSON text of one."""
    return _with_arguments(message, _parsed)


def fitting(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Any]) -> list[Message]:
    """Messages as the tokenizer's chat template takes them: with arguments as JSON text if it writes no JSON of them.

    That is so if it stumbles over objects, or writes them as Python does.
    """
    objects = [each for message in messages for each in _arguments(message) if isinstance(each, dict)]
    if not objects:
        return list(messages)
    try:
        text = str(tokenizer.apply_chat_template(list(messages), tools=list(tools) or None, tokenize=False))
    except Exception:  # templates are programs, and raise what they like
        text = ""
    if text and not any(str(each) in text for each in objects if each):
        return list(messages)
    return [_with_arguments(message, _written) for message in messages]


def _with_arguments(message: Message, change: Callable[[Any], Any]) -> dict[str, Any]:
    calls = message.get(CALLS)
    if not isinstance(calls, list):
        return dict(message)
    return {**message, CALLS: [_changed(call, change) for call in calls]}


def _changed(call: Any, change: Callable[[Any], Any]) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(call.get(FUNCTION), dict):
        return {**call, FUNCTION: _changed(call[FUNCTION], change)}
    return {**call, ARGUMENTS: change(call[ARGUMENTS])} if ARGUMENTS in call else call


def _arguments(message: Message) -> list[Any]:
    """The arguments of a message's calls."""
    found: list[Any] = []
    _with_arguments(message, found.append)
    return found


def _parsed(arguments: Any) -> Any:
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
    return found if isinstance(found, dict) else arguments


def _written(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments
