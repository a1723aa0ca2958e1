"""Calls of tools in messages: their arguments as objects, or as JSON text where a chat template takes only that.

OpenAI writes arguments as JSON text. Most templates expect an object, which they write as JSON, and would write a text
as JSON once more, with its quotes escaped; a few join a text to the rest.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleetune.data.public_words import Told

CALLS, FUNCTION, ARGUMENTS, NAME = "tool_calls", "function", "arguments", "name"
OTHER_NAMES = frozenset({"parameters", "args", "kwargs", "params", "input"})
"""Names of arguments in what Llama writes, and in calls of Cohere, LangChain, Gemini and Anthropic."""
NOTHING: tuple[Any, ...] = (None, "", "{}", "[]", {}, [])
Message = Mapping[str, Any]


def with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have arguments as objects where they are the JSON text of one."""
    return _with(message, ARGUMENTS, _parsed)


def calls_in(location: str, found: Any) -> list[dict[str, Any]]:
    """The calls of an object with name and arguments, of a list of such, or of the JSON text of either."""
    plain = _json(found)
    calls = plain if isinstance(plain, list) else [plain]
    if not calls or not all(isinstance(call, dict) and call.get(NAME) and ARGUMENTS in call for call in calls):
        raise Told(
            "{location}: its call of a function is no JSON object with {name} and {arguments}, nor a list of such; "
            "mend it or leave the row out",
            location=location,
            name=NAME,
            arguments=ARGUMENTS,
        )
    return [{"type": FUNCTION, FUNCTION: {NAME: call[NAME], ARGUMENTS: _parsed(call[ARGUMENTS])}} for call in calls]


def called_names(message: Message) -> list[str]:
    """Names of the functions that a message calls."""
    found: list[str] = []
    _with(message, NAME, lambda name: found.append(str(name)))
    return found


def with_names(message: Message, names: Sequence[str]) -> dict[str, Any]:
    """A message whose calls have other names, in order."""
    given = iter(names)
    return _with(message, NAME, lambda _: next(given))


def tool_names(tools: Sequence[Any]) -> list[str]:
    """Names of functions that are described."""
    plain = [tool.get(FUNCTION, tool) for tool in tools if isinstance(tool, dict)]
    return [str(tool[NAME]) for tool in plain if isinstance(tool, dict) and tool.get(NAME)]


def check_calls(location: str, found: Any) -> list[Any]:
    """The calls of `tool_calls`, which some files hold as JSON text; each has a name."""
    calls = _json(found)
    functions: list[Any] = [call.get(FUNCTION, call) if isinstance(call, dict) else None for call in calls or ()]
    if not isinstance(calls, list) or not all(isinstance(each, dict) and each.get(NAME) for each in functions):
        raise Told(
            "{location}: its {calls} are no list of calls, each of a function with a name; mend it or leave the row "
            "out",
            location=location,
            calls=CALLS,
        )
    for call, function in zip(calls, functions, strict=True):
        beside = _beside(call, function)
        if beside is not None:
            raise Told(
                "{location}: its call of {!r} has no {arguments} beside the name, and chat templates do not write what "
                "{!r} holds; name it {arguments} and put it there",
                function[NAME],
                beside,
                location=location,
                arguments=ARGUMENTS,
            )
    return calls


def _beside(call: dict[str, Any], function: dict[str, Any]) -> str | None:
    """The key in which a call that has no arguments where templates read them has them."""
    given = function.get(ARGUMENTS)
    if given not in NOTHING:
        return None
    for key, value in (*call.items(), *function.items()):
        held = key in OTHER_NAMES or (given is None and isinstance(_json(value), dict | list))
        if key != FUNCTION and held and value not in NOTHING:
            return key
    return None


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
    return [_with(message, ARGUMENTS, _written) for message in messages]


def _with(message: Message, key: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    """A message in whose calls the value of a key is changed."""
    calls = message.get(CALLS)
    if not isinstance(calls, list):
        return dict(message)
    return {**message, CALLS: [_changed(call, key, change) for call in calls]}


def _changed(call: Any, key: str, change: Callable[[Any], Any]) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(call.get(FUNCTION), dict):
        return {**call, FUNCTION: _changed(call[FUNCTION], key, change)}
    return {**call, key: change(call[key])} if key in call else call


def _arguments(message: Message) -> list[Any]:
    """The arguments of a message's calls."""
    found: list[Any] = []
    _with(message, ARGUMENTS, found.append)
    return found


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None


def _parsed(arguments: Any) -> Any:
    found = _json(arguments)
    return found if isinstance(found, dict) else arguments


def _written(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments
