"""Calls of tools and messages of the system: what a chat template is given of them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleetune.data.chat_tokens import SequenceEncoder
from fleetune.data.examples import Example
from fleetune.data.tables import open_table
from fleetune.data.tokenization import open_tokenizer
from fleetune.errors import Refused
from fleetune.evaluation.prompts import prompt_ids
from tests.support.data.chat_samples import CHATML, chat_of, chat_spec

USER, ANSWER = {"role": "user", "content": "rain?"}, {"role": "assistant", "content": "yes"}
ARGUMENTS = {"town": "Köln", "hours": [1, 2], "wet": True}


def calling(arguments: Any) -> dict[str, Any]:
    """A chat in which the assistant calls a tool."""
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    return {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]}


def template(arguments: str) -> str:
    """A template that writes arguments by this expression."""
    calls = "{% for call in message.tool_calls %}{{ call.function.name }}: " + arguments + "{% endfor %}"
    return CHATML.replace("{{ message.content }}", "{{ message.content }}" + calls)


TEMPLATES = {
    "as JSON": template("{{ call.function.arguments | tojson }}"),
    "joined": template("{{ 'of ' + call.function.arguments }}"),
    "as they are": template("{{ call.function.arguments }}"),
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("arguments", [ARGUMENTS, json.dumps(ARGUMENTS, ensure_ascii=False)], ids=["object", "text"])
def test_arguments_are_written_as_json_once(name: str, arguments: Any, tmp_path: Path) -> None:
    """Bug: arguments in JSON text, as OpenAI has them, were encoded twice; every template writes them once, in
    training and where the model is asked."""
    spec = chat_spec(tmp_path, TEMPLATES[name])
    tokenizer, content = open_tokenizer(spec), chat_of(calling(arguments), any_loss=True)
    example = Example(location="row 1", content=content, label=None)
    trained = tokenizer.decode(SequenceEncoder(tokenizer, spec, loss_on_all=False).encode(example).ids)
    for text in (trained, tokenizer.decode(prompt_ids(tokenizer, example))):
        begun = text.partition("weather: ")[2].removeprefix("of ")
        assert json.loads(begun.partition("<|im_end|>")[0]) == ARGUMENTS


MISPLACED: dict[str, tuple[dict[str, Any], str]] = {
    "in Llama's texts": ({"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}, "parameters"),
    "Cohere's": ({"name": "f", "parameters": {"a": 1}}, "parameters"),
    "LangChain's": ({"name": "f", "args": {"a": 1}, "id": "1", "type": "tool_call"}, "args"),
    "JSON text": ({"function": {"name": "f", "args": '{"a": 1}'}}, "args"),
    "Anthropic's": ({"name": "f", "input": {"a": 1}, "arguments": {}}, "input"),
    "beside nothing": ({"function": {"name": "f", "arguments": None, "values": [1]}}, "values"),
    "beside the function": ({"function": {"name": "f"}, "arguments": {"a": 1}}, "arguments"),
}


@pytest.mark.parametrize("name", MISPLACED)
def test_arguments_of_another_name_are_refused(name: str) -> None:
    """Bug: a call whose arguments are called parameters or args was learned as a call of nothing."""
    call, key = MISPLACED[name]
    said = (
        f"row 1, message 2: its call of 'f' has no arguments beside the name, .* what '{key}' holds; name it arguments"
    )
    with pytest.raises(Refused, match=said):
        chat_of({"messages": [USER, {"role": "assistant", "tool_calls": [call]}]}, any_loss=True)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"arguments": {}},
        {"arguments": {"a": 1}, "parameters": {"type": "object"}},
        {"arguments": "{}", "args": {}, "result": {"b": 2}},
        {"description": "tells the time", "index": 0},
    ],
)
def test_a_call_may_have_no_arguments_and_other_keys(more: dict[str, Any]) -> None:
    """Functions of no arguments are called, too, and what is not an argument is no reason to refuse a call."""
    call = {"function": {"name": "now", **more}}
    found = chat_of({"messages": [USER, {"role": "assistant", "tool_calls": [call]}]}, any_loss=True)
    assert found.messages[1]["tool_calls"][0]["function"]["name"] == "now"


@pytest.mark.parametrize("arguments", ["not JSON", "[1]", "3", ""])
def test_other_arguments_stay_as_they_are(arguments: str) -> None:
    """What is not the JSON text of an object is left to the template."""
    assert chat_of(calling(arguments), any_loss=True).messages[1]["tool_calls"][0]["function"]["arguments"] == arguments


def test_keys_that_parquet_fills_in_are_left_out(tmp_path: Path) -> None:
    """Bug: objects in Parquet have all keys of all rows, and those that were null inside arguments were written."""
    rows = [calling({"town": "Köln"}), calling({"hour": 3})]
    tools = [{"name": "a", "parameters": {"town": {"type": "string"}}}, {"name": "b", "parameters": {}}]
    pq.write_table(pa.Table.from_pylist([{**row, "tools": tools} for row in rows]), tmp_path / "r.parquet")
    found = [chat_of(dict(values), any_loss=True) for _, values in open_table(tmp_path / "r.parquet").rows()]
    calls = [one.messages[1]["tool_calls"][0]["function"]["arguments"] for one in found]
    assert calls == [{"town": "Köln"}, {"hour": 3}]
    assert found[0].tools == tuple(tools)


def test_nulls_in_lines_of_json_are_meant(tmp_path: Path) -> None:
    """Bug: nulls were taken out of arguments and of tools of any file; only columns fill them in."""
    tool = {"name": "weather", "parameters": {"hour": {"default": None, "enum": ["noon", None]}}}
    row = {**calling({"hour": None, "days": [{"at": None}]}), "tools": [tool]}
    row["messages"][0] = {**USER, "name": None}
    (tmp_path / "r.jsonl").write_text(json.dumps(row))
    (tmp_path / "r.json").write_text(json.dumps([row]))
    for name in ("r.jsonl", "r.json"):
        ((_, values),) = open_table(tmp_path / name).rows()
        found = chat_of(dict(values), any_loss=True)
        assert found.messages[0] == USER and found.tools == (tool,)
        arguments = found.messages[1]["tool_calls"][0]["function"]["arguments"]
        assert arguments == {"hour": None, "days": [{"at": None}]}


def test_a_null_in_json_text_is_meant(tmp_path: Path) -> None:
    """Nothing fills keys in there."""
    found = chat_of(calling('{"hour": null}'), any_loss=True).messages[1]["tool_calls"][0]
    assert found["function"]["arguments"] == {"hour": None}


TOLD = {"role": "system", "content": "be brief"}


@pytest.mark.parametrize(
    "row",
    [
        {"system": "be brief", "messages": [USER, ANSWER]},
        {"system": "be brief", "conversations": [{"from": "human", "value": "rain?"}, {"from": "gpt", "value": "yes"}]},
        {"system": "be brief\n", "messages": [TOLD, USER, ANSWER]},
        {"system": "", "messages": [TOLD, USER, ANSWER]},
        {"system": "be brief", "instruction": "rain?", "output": "yes"},
        {"system": "be brief", "prompt": [USER], "completion": [ANSWER]},
    ],
)
def test_a_column_of_the_system_comes_first(row: dict[str, Any]) -> None:
    """Bug: beside messages it was dropped without a word; a message that says the same is not repeated."""
    found = chat_of(row, any_loss=True)
    assert found.messages == (TOLD, USER, ANSWER) and found.answers == (2,)


def test_two_messages_of_the_system_are_refused() -> None:
    """Which of them holds is not ours to guess."""
    with pytest.raises(Refused, match="row 1: its messages begin with another system message than column 'system'"):
        chat_of({"system": "be long", "messages": [TOLD, USER, ANSWER]}, any_loss=True)
