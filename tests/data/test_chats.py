"""Chats, instructions and completions: which tokens the model sees, and which of them carry loss."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from fleetune.contracts.input_spec import IGNORE_INDEX, InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.chat_tokens import SequenceEncoder, TokenSequence
from fleetune.data.dialogues import read_dialogue, row_format
from fleetune.data.examples import Example
from fleetune.data.local_data import COUNTS
from fleetune.data.prepared_data import PreparedData
from fleetune.data.sources import content_digest, validate_data
from fleetune.data.tokenization import open_tokenizer
from fleetune.errors import Refused
from tests.support.data.chat_samples import CHATML, COUNTING, MARKED, ROUNDS, THINKING, chat_spec, chats
from tests.support.data.samples import CAUSAL, json_lines, prepared, whole


def encoded(spec: InputSpec, row: dict[str, Any], loss_on_all: bool = False, format: str | None = None) -> Any:
    """(tokenizer, tokens and labels) of a row."""
    tokenizer = open_tokenizer(spec)
    found = row_format(tuple(row), "text", format)
    assert found is not None
    content = read_dialogue("row 1", row, found, loss_on_all)
    encoder = SequenceEncoder(tokenizer, spec, loss_on_all)
    return tokenizer, encoder.encode(Example(location="row 1", content=content, label=None))


def learned(tokenizer: Any, sequence: TokenSequence) -> list[str]:
    """The runs of tokens that carry loss, as texts."""
    carries = sequence.labels != IGNORE_INDEX
    assert (sequence.labels[carries] == sequence.ids[carries]).all()
    starts = np.flatnonzero(carries & ~np.concatenate(([False], carries[:-1])))
    ends = np.flatnonzero(carries & ~np.concatenate((carries[1:], [False]))) + 1
    return [tokenizer.decode(sequence.ids[a:b]) for a, b in zip(starts, ends, strict=True)]


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (CHATML, [" yes<|im_end|>\n", "no, öne<|im_end|>\n"]),
        (MARKED, [" yes<|im_end|>", "no, öne<|im_end|>"]),
        (THINKING, ["yes<|im_end|>\n", "<think>\n\n</think>\n\nno, öne<|im_end|>\n"]),
    ],
    ids=["stable prefixes", "marked", "the last answer differs"],
)
def test_the_answers_carry_loss_and_nothing_else(template: str, says: list[str], tmp_path: Path) -> None:
    """Loss lies on what the template writes for each answer, up to its end mark; the tokens are transformers' own."""
    tokenizer, sequence = encoded(chat_spec(tmp_path, template), {"messages": ROUNDS})
    assert learned(tokenizer, sequence) == says
    assert sequence.ids.tolist() == tokenizer.apply_chat_template(ROUNDS)["input_ids"]


def test_marks_of_a_template_are_those_of_transformers(tmp_path: Path) -> None:
    """Where a template has generation marks, labels are transformers' assistant mask, token by token."""
    tokenizer, sequence = encoded(chat_spec(tmp_path, MARKED), {"messages": ROUNDS})
    own = tokenizer.apply_chat_template(ROUNDS, return_dict=True, return_assistant_tokens_mask=True)
    assert (sequence.labels != IGNORE_INDEX).tolist() == [bool(mark) for mark in own["assistant_masks"]]


def test_everything_can_carry_loss(tmp_path: Path) -> None:
    """With loss on all, labels are the tokens, and a chat without an answer is taken."""
    _, sequence = encoded(chat_spec(tmp_path), {"messages": ROUNDS[:2]}, loss_on_all=True)
    assert (sequence.labels == sequence.ids).all()


@pytest.mark.parametrize("flag", [{"weight": 0}, {"train": False}, {"loss": False}])
def test_a_message_without_loss_among_all_is_refused(flag: dict[str, Any], tmp_path: Path) -> None:
    """Bug: with loss on all, an answer that its row takes out was learned."""
    row = {"messages": [*ROUNDS[:2], {**ROUNDS[2], **flag}, *ROUNDS[3:]]}
    with pytest.raises(Refused, match="row 1, message 3: it asks for no loss, and data.loss_on: all puts it on every"):
        encoded(chat_spec(tmp_path), row, loss_on_all=True)


USER, ANSWER = {"role": "user", "content": "pear?"}, {"role": "assistant", "content": "yes"}
SPELLINGS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [USER, ANSWER]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "pear?"}], "name": None}, ANSWER]},
    "from and value": {"conversations": [{"from": "human", "value": "pear?"}, {"from": "gpt", "value": "yes"}]},
    "instruction": {"instruction": "pear?", "input": "", "output": "yes"},
    "prompt of messages": {"prompt": [USER], "completion": [ANSWER]},
    "first answer in the prompt": {"prompt": [USER, {**ANSWER, "content": "no"}, USER], "completion": [ANSWER]},
    "weight": {"messages": [USER, {**ANSWER, "weight": 0}, USER, {**ANSWER, "weight": 1}]},
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_usual_spellings_are_understood(name: str, tmp_path: Path) -> None:
    """All spellings give the same turn, and loss on the answer that it asks for."""
    tokenizer, sequence = encoded(chat_spec(tmp_path, MARKED), SPELLINGS[name])
    turn = "<|im_start|>user\npear?<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    assert tokenizer.decode(sequence.ids).endswith(turn)
    assert [text.rstrip("\n") for text in learned(tokenizer, sequence)] == ["yes<|im_end|>"]


def test_a_completion_carries_loss_and_ends(tmp_path: Path) -> None:
    """A prompt and its completion are one text, begun and ended as the tokenizer does; the prompt carries no loss."""
    tokenizer, sequence = encoded(CAUSAL, {"prompt": "2 + 2 =", "completion": " 4"})
    assert tokenizer.decode(sequence.ids) == "<bos>2 + 2 = 4<eos>"
    assert learned(tokenizer, sequence) == [" 4<eos>"]


def test_a_template_that_hides_its_answers_is_refused(tmp_path: Path) -> None:
    """The refusal of a template whose text changes with later messages says so and what to do."""
    with pytest.raises(Refused, match=r"row 1, message 3: the chat template of t does not tell .*generation.*loss_on"):
        encoded(chat_spec(tmp_path / "t", COUNTING), {"messages": ROUNDS})


def test_a_tokenizer_without_template_is_refused_and_a_file_helps(tmp_path: Path) -> None:
    """Chats need a template; one from a file is used, kept with the tokenizer, and part of the content's digest."""
    rows = json_lines(tmp_path / "r.jsonl", chats(10))
    spec = chat_spec(tmp_path / "t", None)
    with pytest.raises(Refused, match=r"no chat template, .* data\.chat_template"):
        prepared(tmp_path / "none", rows, spec)
    file = tmp_path / "chat.jinja"
    file.write_text(CHATML)
    data = prepared(tmp_path / "d", rows, spec, max_length=64, chat_template=str(file))
    assert AutoTokenizer.from_pretrained(data.tokenizer).chat_template == CHATML
    asked = DataRequest(source=str(rows), chat_template=str(file))
    before = content_digest(asked)
    file.write_text(MARKED)
    assert content_digest(asked) != before != content_digest(DataRequest(source=str(rows)))
    with pytest.raises(Refused, match=r"chat_template .*lost\.jinja cannot be read"):
        validate_data(DataRequest(source=str(rows), chat_template=str(tmp_path / "lost.jinja")), "causal-lm")


def test_long_samples_are_cut_counted_and_left_out(tmp_path: Path) -> None:
    """A sample beyond max_length is cut at its end; without a token of its answer it is left out, and both are told."""
    spec = chat_spec(tmp_path / "t")
    long = [{"messages": [{**USER, "content": "q" * 40 + str(n)}, ANSWER]} for n in range(3)]
    half = [{"messages": [USER, {**ANSWER, "content": "a" * 60 + str(n)}]} for n in range(4)]
    (tmp_path / "s").mkdir()
    json_lines(tmp_path / "s" / "train.jsonl", [*long, *half, *chats(5)])
    json_lines(tmp_path / "s" / "test.jsonl", chats(9)[5:])
    data = prepared(tmp_path / "d", tmp_path / "s", spec, max_length=48)
    assert data.size("train") == 9
    assert data.info.notes[0] == (
        "8 of 12 train samples are longer than max_length 48 and are cut (the longest has 87 tokens); "
        "3 of 12 train samples are left out, because no token with loss remains"
    )
    batch = whole(data, "train")
    assert ((batch["labels"][:, 1:] != IGNORE_INDEX).sum(1) > 0).all()
    assert (batch["labels"][batch["attention_mask"] == 0] == IGNORE_INDEX).all()
    with pytest.raises(Refused, match=r"no train sample has a token with loss within max_length 8"):
        prepared(tmp_path / "short", tmp_path / "s", spec, max_length=8)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no list": ({"messages": "hello"}, r"line 3: column 'messages' holds str; give a list"),
    "no role": ({"messages": [{"content": "x"}]}, r"line 3, message 1: it has no role"),
    "no content": ({"messages": [{"role": "user"}]}, r"line 3, message 1: it has no content"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, r"line 3, .* no text"),
    "another format": ({"prompt": "x", "completion": "y"}, r"line 3 has no messages"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_named(case: str, tmp_path: Path) -> None:
    """The refusal names the file, the line and what is wrong."""
    row, says = BAD[case]
    source = json_lines(tmp_path / "r.jsonl", [*chats(2), row, *chats(2)])
    with pytest.raises(Refused, match=rf"r\.jsonl: {says}"):
        prepared(tmp_path / "d", source, chat_spec(tmp_path / "t"))


def test_a_template_that_refuses_a_row_is_quoted(tmp_path: Path) -> None:
    """What a template raises is told with the row."""
    template = "{{ raise_exception('roles must alternate') if messages | length > 2 }}" + CHATML
    source = json_lines(tmp_path / "r.jsonl", [*chats(2), {"messages": ROUNDS}])
    with pytest.raises(Refused, match=r"line 3: the chat template does not take its messages \(roles must alternate\)"):
        prepared(tmp_path / "d", source, chat_spec(tmp_path / "t", template))


def test_a_list_in_a_json_file_gives_the_same_arrays(tmp_path: Path) -> None:
    """A .json file with a list of rows is read as the same rows line by line; a bad one is named by number."""
    spec, rows = chat_spec(tmp_path / "t"), chats(12)
    (tmp_path / "r.json").write_text(json.dumps(rows))
    one = prepared(tmp_path / "one", json_lines(tmp_path / "r.jsonl", rows), spec, max_length=64)
    two = prepared(tmp_path / "two", tmp_path / "r.json", spec, max_length=64)
    assert all(np.array_equal(whole(one, "train")[name], rows) for name, rows in whole(two, "train").items())
    (tmp_path / "r.json").write_text(json.dumps([*rows, 7]))
    with pytest.raises(Refused, match=r"r\.json: item 13 is int"):
        prepared(tmp_path / "three", tmp_path / "r.json", spec)


def test_a_text_beside_messages_is_told_in_packed_sequences_too(tmp_path: Path) -> None:
    """Bug: with packing, nothing said that the messages are not read; a prompt and its completion are told alike."""
    spec = chat_spec(tmp_path / "t")
    said = {}
    for name, rows in {
        "chat": chats(10),
        "completion": [{"prompt": f"{n}", "completion": "b"} for n in range(10)],
    }.items():
        source = json_lines(tmp_path / f"{name}.jsonl", [{"text": f"t{n}", **row} for n, row in enumerate(rows)])
        said[name] = [prepared(tmp_path / f"{name}-{p}", source, spec, packing=p).info.notes for p in (True, False)]
    for name, column in (("chat", "messages"), ("completion", "prompt")):
        unread = f"rows have 'text', which is read, and '{column}', which is not; set data.format to {name} to read it"
        assert said[name] == [(unread,)] * 2


def test_a_text_beside_messages_is_read_and_told(tmp_path: Path) -> None:
    """Rows with a text and messages are read as texts, as before, with a note; data.format chooses."""
    source = json_lines(tmp_path / "r.jsonl", [{"text": f"t{n}", **row} for n, row in enumerate(chats(10))])
    spec = chat_spec(tmp_path / "t")

    def first_token(data: PreparedData) -> str:
        return str(AutoTokenizer.from_pretrained(data.tokenizer).decode(whole(data, "train")["input_ids"][0][1]))

    texts = prepared(tmp_path / "texts", source, spec)
    assert first_token(texts) == "t" and "set data.format to chat" in texts.info.notes[0]
    assert first_token(prepared(tmp_path / "chats", source, spec, max_length=64, format="chat")) == "u"


def test_prompts_of_messages_are_chats(tmp_path: Path) -> None:
    """Bug: a model of prompts and completions in messages was asked without the chat template it was trained with."""
    rows = [{"prompt": [{**USER, "content": f"{n}"}], "completion": [ANSWER]} for n in range(4)]
    turns = json_lines(tmp_path / "r.jsonl", rows)
    assert prepared(tmp_path / "chats", turns, chat_spec(tmp_path / "t"), max_length=64).info.chats
    plain = json_lines(tmp_path / "p.jsonl", [{"prompt": f"{n}", "completion": "b"} for n in range(4)])
    assert not prepared(tmp_path / "texts", plain, chat_spec(tmp_path / "t")).info.chats


def test_formats_and_tasks_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """A format whose columns are missing, or of another task, is refused by name."""
    source = json_lines(tmp_path / "r.jsonl", chats(10))
    with pytest.raises(Refused, match=r"no prompt and completion for data\.format: completion; it has messages"):
        prepared(tmp_path / "d", source, CAUSAL, format="completion")
    with pytest.raises(Refused, match=r"format chat is for causal-lm"):
        validate_data(DataRequest(source=str(source), format="chat"), "sequence-classification")
    with pytest.raises(Refused, match=r"no column 'text' for sequence-classification; it has messages"):
        validate_data(DataRequest(source=str(source)), "sequence-classification")


def test_a_template_that_never_ends_an_answer_is_told(tmp_path: Path) -> None:
    """Bug: a model that never learns to stop was trained without a word; with an end mark, nothing is said, if it is a
    token of the tokenizer."""
    source = json_lines(tmp_path / "r.jsonl", chats(12))
    said = "so the model does not learn to stop"
    endless = MARKED.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>")
    without, split = (CHATML.replace("<|im_end|>", mark) for mark in ("", "<|im_over|>"))
    for number, (template, told) in enumerate(
        [(CHATML, False), (MARKED, False), (without, True), (split, True), (endless, True)]
    ):
        folder = tmp_path / str(number)
        data = prepared(folder / "d", source, chat_spec(folder / "t", template), max_length=64)
        assert any(said in note for note in data.info.notes) == told, template


def test_white_space_ends_no_answer(tmp_path: Path) -> None:
    """Bug: Gemma's token of line breaks after an answer was taken for its end mark; one that ends texts is one."""
    breaks = CHATML.replace("<|im_end|>\n", "\n\n")
    spec = chat_spec(tmp_path / "t", breaks)
    tokenizer = open_tokenizer(spec)
    tokenizer.add_tokens(["\n\n"])
    tokenizer.chat_template = breaks
    tokenizer.save_pretrained(tmp_path / "t")
    source = json_lines(tmp_path / "r.jsonl", chats(12))
    for name, end, told in (("a", None, True), ("b", "\n\n", False)):
        if end is not None:
            tokenizer.eos_token = end
            tokenizer.save_pretrained(tmp_path / "t")
        data = prepared(tmp_path / name, source, spec, max_length=64)
        assert any("so the model does not learn to stop" in note for note in data.info.notes) == told


@pytest.mark.parametrize(
    ("row", "number", "others"),
    [
        ({"instruction": "Say it", "input": "", "output": ""}, 2, 0),
        ({"instruction": "Say it", "output": "  \n"}, 2, 0),
        ({"instruction": "Say it", "output": "it", "history": [["a", "b"], ["c", " "]]}, 4, 3),
        ({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "name": "x"}]}, 2, 0),
        ({"messages": [{"role": "assistant", "content": "\n"}, {"role": "user", "content": "hi"}, *ROUNDS[1:3]]}, 1, 3),
    ],
)
def test_an_answer_that_says_nothing_is_refused(row: dict[str, Any], number: int, others: int, tmp_path: Path) -> None:
    """Bug: an empty answer was learned, so that the model answered with its end mark; an empty completion was not.
    Other answers in its row do not help, other rows only one without any."""
    source = json_lines(tmp_path / "r.jsonl", [row, *chats(others)])
    with pytest.raises(Refused, match=f"line 1, message {number}: the assistant says nothing in it.*; fill it, leave"):
        prepared(tmp_path / "d", source, chat_spec(tmp_path / "t"))


ASKED = {"from": "human", "value": "hi"}


@pytest.mark.parametrize(
    ("rows", "bad", "says"),
    [
        (
            [{"instruction": f"say {n}", "input": "", "output": f"it {n}"} for n in range(8)],
            [{"instruction": "a", "input": "b", "output": ""}, {"instruction": "c", "output": " \n"}],
            "line 1, message 2: the assistant says nothing in it",
        ),
        (
            [{"conversations": [ASKED, {"from": "gpt", "value": f"it {n}"}]} for n in range(8)],
            [
                {"conversations": []},
                {"conversations": [ASKED]},
                {"conversations": [ASKED, {"from": "gpt", "value": ""}]},
            ],
            "line 1: it has no messages",
        ),
        (
            [{"prompt": f"say {n}", "completion": f"it {n}"} for n in range(8)],
            [{"prompt": "a", "completion": ""}],
            "line 1: 'completion' is empty",
        ),
    ],
    ids=["alpaca", "sharegpt", "completions"],
)
def test_rows_without_an_answer_are_left_out_and_counted(
    rows: list[dict[str, Any]], bad: list[dict[str, Any]], says: str, tmp_path: Path
) -> None:
    """Bug: usual files of alpaca and ShareGPT, of which some rows have no answer, were refused one row at a time. A
    file of nothing else is still refused, and what devices tell of the count holds no sample."""
    spec, source = chat_spec(tmp_path / "t"), json_lines(tmp_path / "r.jsonl", [*bad, *rows])
    validate_data(DataRequest(source=str(source), max_length=96), "causal-lm")
    data = prepared(tmp_path / "d", source, spec, max_length=96)
    without = prepared(tmp_path / "w", json_lines(tmp_path / "w.jsonl", rows), spec, max_length=96)
    assert (whole(data, "train")["input_ids"] == whole(without, "train")["input_ids"]).all()
    note = f"{len(bad)} of {len(bad) + len(rows)} rows are left out: they hold no answer"
    assert note in data.info.notes and COUNTS.fullmatch(note)
    alone = json_lines(tmp_path / "b.jsonl", bad)
    for read in (
        lambda: validate_data(DataRequest(source=str(alone)), "causal-lm"),
        lambda: prepared(tmp_path / "b", alone, spec),
    ):
        with pytest.raises(Refused, match=says):
            read()


CALLING = CHATML.replace(
    "{{ message.content", "{{ message.reasoning_content }}{{ message.tool_calls }}{{ message.content"
)


@pytest.mark.parametrize(
    "more",
    [
        {"weight": 0},
        {"reasoning_content": "a thought"},
        {"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]},
    ],
)
def test_an_empty_answer_that_says_more_or_is_not_learned_is_taken(more: dict[str, Any], tmp_path: Path) -> None:
    """Calls and thoughts are answers, too, and what carries no loss may be empty."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", **more}, *ROUNDS[1:3]]
    source = json_lines(tmp_path / "r.jsonl", [{"messages": messages}] * 2 + chats(2))
    spec = chat_spec(tmp_path / "t", CALLING)
    assert prepared(tmp_path / "d", source, spec, max_length=128).size("train") == 3
