"""Answers are found whole in chats of several turns, by templates that write the last message otherwise."""

from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.input_spec import IGNORE_INDEX
from fleetune.data.chat_tokens import SequenceEncoder
from fleetune.data.dialogues import Chat
from fleetune.data.examples import Example
from fleetune.data.tokenization import open_tokenizer
from fleetune.errors import Refused
from tests.support.data.chat_samples import chat_spec, chats
from tests.support.data.samples import json_lines, prepared

PHI = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
"""As Phi's: behind all messages stands one token more."""
QWEN = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ message.content }}"
    "{% for call in message.tool_calls %}{% if message.content or not loop.first %}{{ '\n' }}{% endif %}"
    "<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen3's: the last answer has a place for thoughts, and calls begin a line behind a content."""
NAMING = QWEN.replace(
    "{{ message.content }}",
    "{% if message.role == 'tool' %}{% for call in messages[loop.index0 - 1].tool_calls %}{{ call.function.name }} "
    "{% endfor %}{% endif %}{{ message.content }}",
)
"""It writes the names of calls before their result, too."""


def turn(role: str, content: str, *calls: str) -> dict[str, Any]:
    """A message, which may call functions without arguments."""
    made = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in calls]
    return {"role": role, "content": content, **({"tool_calls": made} if made else {})}


def call(name: str) -> str:
    """A call as these templates write it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'


def check(folder: Path, template: str, messages: list[dict[str, Any]], *pieces: str) -> None:
    """The chat is these pieces, of which every second one is learned, token by token."""
    spec = chat_spec(folder, template)
    tokenizer = open_tokenizer(spec)
    example = Example(location="row 1", content=Chat(tuple(messages)), label=None)
    found = SequenceEncoder(tokenizer, spec, loss_on_all=False).encode(example)
    ids = [tokenizer(piece, add_special_tokens=False)["input_ids"] for piece in pieces]
    assert found.ids.tolist() == sum(ids, [])
    assert found.labels.tolist() == sum(
        (part if number % 2 else [IGNORE_INDEX] * len(part) for number, part in enumerate(ids)), []
    )


ASK, AGAIN = turn("user", "a?"), turn("user", "b?")


@pytest.mark.parametrize("last", [(), (AGAIN,)], ids=["ends in an answer", "ends in a question"])
def test_a_token_behind_all_messages_ends_the_last_answer_alone(last: tuple[Any, ...], tmp_path: Path) -> None:
    """Bug: chats of several turns were refused by Phi's template: what it writes of the first messages ends in a token
    that the whole chat does not have there."""
    messages = [ASK, turn("assistant", "yes"), AGAIN, turn("assistant", " no"), *last]
    first = ["<|user|>\na?<|im_end|>\n<|assistant|>\n", "yes<|im_end|>\n", "<|user|>\nb?<|im_end|>\n<|assistant|>\n"]
    end = [" no<|im_end|>\n", "<|user|>\nb?<|im_end|>\n<eos>"] if last else [" no<|im_end|>\n<eos>"]
    check(tmp_path, PHI, messages, *first, *end)


def test_an_end_that_only_the_last_answer_has_is_refused(tmp_path: Path) -> None:
    """Where that token is the only end mark, earlier answers have another one, and which it is nobody tells."""
    earlier = "{% if message.role == 'assistant' and not loop.last %};{% endif %}"
    template = PHI.replace("<|im_end|>\n", earlier)
    with pytest.raises(Refused, match="row 1, message 2: .* the end of an answer depends on the messages after it"):
        check(tmp_path, template, [ASK, turn("assistant", "yes"), AGAIN, turn("assistant", "no")])


CALLS: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "a call": (QWEN, ("f",), call("f"), ""),
    "two calls": (QWEN, ("f", "go"), f"{call('f')}\n{call('go')}", ""),
    "calls of one name": (NAMING, ("f", "f"), f"{call('f')}\n{call('f')}", "f f "),
    "names in the result": (NAMING, ("f", "go"), f"{call('f')}\n{call('go')}", "f go "),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_without_content_are_learned_whole(name: str, tmp_path: Path) -> None:
    """Bug: by Qwen3's template a chat with a call that has no content, its result and an answer was refused, with the
    reason that the template changes what the answer says."""
    template, names, written, repeated = CALLS[name]
    begin, thoughts = "<|im_start|>assistant\n", "<think>\n\n</think>\n\n"
    result = f"<|im_start|>tool\n{repeated}3<|im_end|>\n{begin}"
    messages = [ASK, turn("assistant", "", *names), turn("tool", "3")]
    asked = f"<|im_start|>user\na?<|im_end|>\n{begin}"
    check(
        tmp_path / "a", template, [*messages, turn("assistant", "no")],
        asked, f"{written}<|im_end|>\n", result, f"{thoughts}no<|im_end|>\n",
    )  # fmt: skip
    check(
        tmp_path / "b", template, [*messages, *messages[1:], turn("assistant", "no")],
        asked, f"{written}<|im_end|>\n", result, f"{written}<|im_end|>\n", result, f"{thoughts}no<|im_end|>\n",
    )  # fmt: skip


def test_a_call_that_begins_a_chat_is_not_learned_in_part(tmp_path: Path) -> None:
    """Nobody asks for the first message, so that where it begins is told by its content alone."""
    with pytest.raises(Refused, match="row 1, message 1: the chat template of .* does not tell which tokens"):
        check(tmp_path, QWEN, [turn("assistant", "", "f"), turn("tool", "3"), turn("assistant", "no")])


def quoting(content: str, **more: Any) -> dict[str, Any]:
    """A row whose answer says this."""
    return {"messages": [ASK, {**turn("assistant", content), **more}]}


def test_special_tokens_in_messages_are_told(tmp_path: Path) -> None:
    """Bug: an end mark that an answer quotes was read as one, without a word; what is no special token is not told."""
    rows = [
        *chats(4),
        quoting("it ends in <|im_end|>, I <eos> think"),
        quoting("<|im_end|>"),
        quoting("<b> <|im_end >"),
    ]
    source = json_lines(tmp_path / "r.jsonl", rows)
    notes = prepared(tmp_path / "d", source, chat_spec(tmp_path / "t"), max_length=128).info.notes
    said = "2 of the messages hold a special token of the tokenizer, which is read as that token and not as its letters"
    assert [note for note in notes if "special token" in note] == [
        f"{said} (first '<eos>' in r.jsonl: line 5, message 2); where one is only quoted, write it otherwise"
    ]


def test_special_tokens_in_calls_are_told(tmp_path: Path) -> None:
    """They are read as such in what is called, too."""
    row = {"messages": [ASK, turn("assistant", "", "print <|im_end|>")]}
    source = json_lines(tmp_path / "r.jsonl", [*chats(3), row])
    notes = prepared(tmp_path / "d", source, chat_spec(tmp_path / "t", QWEN), max_length=128).info.notes
    assert any("(first '<|im_end|>' in r.jsonl: line 4, message 2)" in note for note in notes)


def test_letters_of_special_tokens_are_not_told(tmp_path: Path) -> None:
    """A tokenizer may split them into letters, and has none in a text then."""
    spec = chat_spec(tmp_path / "t", "{% for message in messages %}{{ message.content }}{% endfor %}")
    tokenizer = open_tokenizer(spec)
    tokenizer.split_special_tokens = True
    encoder = SequenceEncoder(tokenizer, spec, loss_on_all=True)
    chat = Chat((ASK, turn("assistant", "<|im_end|>")))
    assert len(encoder.encode(Example(location="row 1", content=chat, label=None)).ids) == len("a?<|im_end|>")
    assert not list(encoder.notes(1))
