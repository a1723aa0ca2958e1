"""Roles, keys and columns of dialogues: each is used as the formats of other trainers mean it, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.input_spec import InputSpec
from fleetune.data.chat_tokens import SequenceEncoder
from fleetune.data.dialogues import read_pair
from fleetune.data.examples import Example
from fleetune.data.tokenization import open_tokenizer
from fleetune.errors import Refused
from tests.support.data.chat_samples import CHATML, chat_of, chat_spec, chats
from tests.support.data.samples import json_lines, prepared

USER, ANSWER = {"role": "user", "content": "area of 3x5?"}, {"role": "assistant", "content": "It is 15."}
AREA = {"name": "area", "arguments": {"sides": [3, 5]}}
CALL = {"type": "function", "function": AREA}


@pytest.mark.parametrize("role", ["function_call", "tool_call"])
@pytest.mark.parametrize("calls", [AREA, [AREA, {**AREA, "name": "again"}]], ids=["one", "two"])
def test_a_message_that_calls_is_the_assistants(role: str, calls: Any) -> None:
    """LLaMA-Factory's function_call and ms-swift's tool_call are what the model writes, and carry loss."""
    turns = [("human", "area of 3x5?"), (role, json.dumps(calls)), ("observation", "15"), ("gpt", "It is 15.")]
    found = chat_of({"conversations": [{"from": who, "value": said} for who, said in turns]})
    each = calls if isinstance(calls, list) else [calls]
    wanted = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": one} for one in each]}
    assert found.messages == (USER, wanted, {"role": "tool", "content": "15"}, ANSWER)
    assert found.answers == (1, 3)


def test_calls_join_the_answer_before_them() -> None:
    """An answer and the calls after it are one message of the assistant, as ms-swift has it."""
    row = {"messages": [USER, ANSWER, *({"role": "tool_call", "content": json.dumps(AREA)} for _ in range(2))]}
    assert chat_of(row).messages == (USER, {**ANSWER, "tool_calls": [CALL, CALL]})


def test_a_call_in_a_key_is_one_of_the_calls() -> None:
    """OpenAI's older key is read as tool_calls, and the text of the answer stays."""
    older = {**ANSWER, "function_call": {"name": "area", "arguments": json.dumps(AREA["arguments"])}}
    assert chat_of({"messages": [USER, older]}).messages == (USER, {**ANSWER, "tool_calls": [CALL]})


def test_calls_may_be_json_text_or_none() -> None:
    """Files hold calls as JSON text, too; a list of none is no call."""
    told = chat_of({"messages": [USER, {**ANSWER, "tool_calls": json.dumps([CALL])}]})
    assert told.messages[1] == {**ANSWER, "tool_calls": [CALL]}
    assert chat_of({"messages": [USER, {**ANSWER, "tool_calls": []}]}).messages == (USER, ANSWER)


def test_history_goes_before_an_instruction() -> None:
    """LLaMA-Factory's pairs of earlier turns are messages, and their answers carry loss."""
    row = {"instruction": "c", "output": "d", "history": [["a", "b"]], "tools": json.dumps([{"name": "f"}])}
    found = chat_of(row)
    assert [message["content"] for message in found.messages] == ["a", "b", "c", "d"]
    assert found.answers == (1, 3) and found.tools == ({"name": "f"},)


def test_tools_of_a_prompt_of_messages_are_told() -> None:
    """The tools of a row belong to its messages in whichever columns they are."""
    assert chat_of({"prompt": [USER], "completion": [ANSWER], "tools": [{"name": "f"}]}).tools == ({"name": "f"},)


@pytest.mark.parametrize("key", ["weight", "loss", "train", "training"])
def test_a_message_that_is_taken_out_carries_no_loss(key: str) -> None:
    """OpenAI's weight, ms-swift's loss and axolotl's train say of an answer whether it carries loss."""
    for out, kept in ((False, True), (0, 1), (0.0, 1.0)):
        found = chat_of({"messages": [USER, {**ANSWER, key: out}, USER, {**ANSWER, key: kept}]})
        assert found.answers == (3,) and found.messages == (USER, ANSWER, USER, ANSWER)


@pytest.mark.parametrize("role", ["human", "User "])
def test_a_user_has_several_names(role: str) -> None:
    """All usual names of a user are that of the templates."""
    assert chat_of({"messages": [{**USER, "role": role}, ANSWER]}).messages[0] == USER


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a role": ({"messages": [{**USER, "role": "narrator"}, ANSWER]}, "message 1: role 'narrator' is not known"),
    "no format's role": ({"messages": [{**USER, "role": "usr"}, ANSWER]}, "message 1: role 'usr' is not known"),
    "a half": ({"messages": [USER, {**ANSWER, "weight": 0.5}]}, "message 2: 'weight' is 0.5; give true or false"),
    "a text": ({"messages": [USER, {**ANSWER, "weight": "0"}]}, "message 2: 'weight' is '0'; give true or false"),
    "both": ({"messages": [USER, {**ANSWER, "train": True, "loss": False}]}, "'loss' and 'train' contradict"),
    "of a user": ({"messages": [{**USER, "train": True}, ANSWER]}, "message 1: 'train' asks for loss on .* the user"),
    "no call": ({"messages": [USER, {"role": "function_call", "content": "area"}]}, "message 2: its call .* no JSON"),
    "half a message": (
        {"messages": [USER, {**ANSWER, "loss": False}, {"role": "tool_call", "content": json.dumps(AREA)}]},
        "message 3: it calls and the one before it answers",
    ),
    "calls without a name": (
        {"messages": [USER, {**ANSWER, "tool_calls": [{"id": "1"}]}]},
        "message 2: its tool_calls",
    ),
    "calls in words": ({"messages": [USER, {**ANSWER, "tool_calls": "area"}]}, "message 2: its tool_calls"),
    "history": ({"messages": [USER, ANSWER], "history": [["a", "b"]]}, "column 'history' goes before an instruction"),
    "no pairs": ({"instruction": "a", "output": "b", "history": ["a"]}, "column 'history' is no list of pairs"),
    "a weighed row": ({"messages": [USER, ANSWER], "weight": 0.5}, "column 'weight' is 0.5"),
    "a row left out": ({"messages": [USER, ANSWER], "train": False}, "column 'train' is False"),
    "preferences": ({"messages": [USER, ANSWER], "rejected": "no"}, "column 'rejected' holds preferences"),
    "pictures": ({"messages": [USER, ANSWER], "images": ["a.png"]}, "column 'images' holds no texts"),
    "tools in another form": (
        {"messages": [USER, ANSWER], "functions": [{"name": "f"}]},
        "column 'functions' holds tools",
    ),
    "told a text": ({"prompt": "a", "completion": "b", "system": "c"}, "column 'system' is for messages"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_done_is_refused_by_name(name: str) -> None:
    """What another trainer would do with a role, a key or a column, and this one does not, is not passed over."""
    row, says = BAD[name]
    with pytest.raises(Refused, match=f"row 1.*{says}"):
        chat_of(row)


def test_languages_in_one_column_are_told_apart() -> None:
    """Bug: of the hub's form of translations, whose rows are filled, it was said that they hold no text."""
    row = {"translation": {"en": "A", "de": "B"}}
    with pytest.raises(Refused, match="column 'translation' holds 'en' and 'de' in one; give each of them a column of"):
        read_pair("row 1", row, ("translation", "translation"))


def test_columns_that_hold_nothing_are_taken() -> None:
    """Columns that are there for other rows do not matter."""
    row = {"messages": [USER, ANSWER], "history": [], "weight": 1, "loss": True, "images": [], "rejected": None}
    assert chat_of(row).answers == (1,)


@pytest.mark.parametrize("key", ["timestamp", "loss_weight", "reasoning_content"])
def test_a_key_that_the_template_reads_is_taken_and_another_refused(key: str, tmp_path: Path) -> None:
    """A template may have keys of its own; what it does not read would vanish."""
    content = chat_of({"messages": [USER, {**ANSWER, key: "so"}]})
    example = Example(location="row 1", content=content, label=None)
    reading = CHATML.replace("{{ message.content }}", "{{ message." + key + " or '' }}{{ message.content }}")
    spec = chat_spec(tmp_path / "reads", reading)
    tokenizer = open_tokenizer(spec)
    assert "soIt is 15." in tokenizer.decode(SequenceEncoder(tokenizer, spec, loss_on_all=True).encode(example).ids)
    other = chat_spec(tmp_path / "plain")
    with pytest.raises(Refused, match=f"row 1, message 2: key '{key}' is not known"):
        SequenceEncoder(open_tokenizer(other), other, loss_on_all=True).encode(example)


def test_a_key_that_holds_nothing_is_taken(tmp_path: Path) -> None:
    """Bug: what clients write of messages, an answer without notes or thoughts among it, was refused for empty keys; a
    value that says something, though it is 0, is none."""
    spec = chat_spec(tmp_path)
    written: list[list[int]] = []
    for more in ({}, {"refusal": None, "annotations": [], "audio": None, "tool_calls": [], "reasoning_content": ""}):
        example = Example(location="row 1", content=chat_of({"messages": [USER, {**ANSWER, **more}]}), label=None)
        written.append(list(SequenceEncoder(open_tokenizer(spec), spec, loss_on_all=True).encode(example).ids))
    assert written[0] == written[1]
    zero = Example(location="row 1", content=chat_of({"messages": [USER, {**ANSWER, "rank": 0}]}), label=None)
    with pytest.raises(Refused, match="key 'rank' is not known"):
        SequenceEncoder(open_tokenizer(spec), spec, loss_on_all=True).encode(zero)


@pytest.mark.parametrize("key", ["image", "audio", "video", "text", "type", "stamp"])
def test_a_key_that_the_template_reads_of_a_part_is_refused(key: str, tmp_path: Path) -> None:
    """Bug: a template that names a key of the parts of a content was taken to read that of a message, which vanished;
    pictures and sounds are refused also where it does."""
    parts = "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    parts += f"{{% if part.{key} %}}<{key}>{{% endif %}}{{% endfor %}}{{% endif %}}"
    spec = chat_spec(tmp_path, CHATML.replace("{{ message.content }}", parts))
    for number, message in enumerate((USER, ANSWER), start=1):
        row = {"messages": [{**each, key: "so"} if each is message else each for each in (USER, ANSWER)]}
        with pytest.raises(Refused, match=f"row 1, message {number}: (key )?'{key}' "):
            example = Example(location="row 1", content=chat_of(row), label=None)
            SequenceEncoder(open_tokenizer(spec), spec, loss_on_all=True).encode(example)


@pytest.mark.parametrize(
    ("reading", "value"),
    [
        ("{% if message.way == 'loud' %}!{% endif %}", "soft"),
        ("{% if message.way %}!{% endif %}", True),
        ("{{ (message.way or {})['to'] }}", {"to": "you"}),
    ],
)
def test_a_key_by_which_the_template_decides_is_taken(reading: str, value: Any, tmp_path: Path) -> None:
    """A key need not be written: with another value, or without it, something else is."""
    other = reading.replace("{% endif %}", "{% elif message.way is defined and message.way != 'soft' %}?{% endif %}")
    spec = chat_spec(tmp_path, CHATML.replace("{{ message.content }}", other + "{{ message.content }}"))
    example = Example(location="row 1", content=chat_of({"messages": [USER, {**ANSWER, "way": value}]}), label=None)
    assert SequenceEncoder(open_tokenizer(spec), spec, loss_on_all=True).encode(example) is not None


def test_keys_of_pictures_that_hold_none_are_taken() -> None:
    """Messages of a file in which others have pictures."""
    assert chat_of({"messages": [{**USER, "images": []}, {**ANSWER, "image": ""}]}).messages == (USER, ANSWER)


def test_other_columns_are_told(tmp_path: Path) -> None:
    """A column that nothing is known of is not read, and a note says so."""
    source = json_lines(tmp_path / "r.jsonl", [{"id": n, **row} for n, row in enumerate(chats(10))])
    data = prepared(tmp_path / "d", source, chat_spec(tmp_path / "t"), max_length=64)
    assert data.info.notes == ("rows have columns that are not read: id",)


@pytest.mark.parametrize(
    ("task", "row", "unread"),
    [
        (
            "seq2seq",
            {"target": "c d", "weight": 0.5, "history": [["x", "y"]], "system": "s"},
            "weight, history, system",
        ),
        ("causal-lm", {"weight": 0.5, "id": 1}, "weight"),
        ("sequence-classification", {"label": 1, "images": ["b"], "image": "a.png"}, "images, image"),
        ("sequence-regression", {"weight": 1, "id": 1}, ""),
    ],
)
def test_columns_beside_texts_that_mean_something_elsewhere_are_told(
    task: str, row: dict[str, Any], unread: str, tmp_path: Path
) -> None:
    """Bug: a weight, a history or a second sentence beside a text was passed over without a word."""
    rows = [{"text": f"text {n}", **row, **({"label": n % 2} if "label" in row else {})} for n in range(8)]
    spec = InputSpec(task=task, vocab_size=264, decoder_start_token_id=0)
    column: dict[str, Any] = {"label_column": "weight"} if task == "sequence-regression" else {}
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), spec, **column)
    said = [note for note in data.info.notes if "not read" in note]
    assert said == ([f"rows have columns that are not read: {unread}"] if unread else [])
