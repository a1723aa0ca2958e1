"""What a chat says and its template does not write: it is refused, since it would be trained on without it."""

from pathlib import Path
from typing import Any

import pytest

from fleetune.data.chat_tokens import SequenceEncoder
from fleetune.data.dialogues import Chat
from fleetune.data.examples import Example
from fleetune.data.tokenization import open_tokenizer
from fleetune.errors import Refused
from fleetune.evaluation.prompts import prompt_ids
from tests.support.data.chat_samples import CHATML, chat_spec, chats
from tests.support.data.samples import json_lines, prepared, texts

ASKED = {"role": "user", "content": "rain? ask the weather"}
CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"town": "Rome"}}}],
}
RESULT = {"role": "tool", "content": "none"}
TOLD = {"role": "system", "content": "be brief"}
ANSWER = {"role": "assistant", "content": "no"}
ZEPHYR = (
    "{% for message in messages %}{% if message.role == 'user' %}<|user|>\n{{ message.content }}{% endif %}"
    "{% if message.role == 'assistant' %}<|assistant|>\n{{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
WITH_CALLS = CHATML.replace(
    "{{ message.content }}",
    "{{ message.content | tojson if message.role == 'tool' else message.content }}"
    "{% for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}",
)


def written(folder: Path, template: str, messages: list[dict[str, Any]], *tools: dict[str, Any]) -> tuple[str, str]:
    """What is trained on, and what the model would be asked; Refused: the template leaves something out."""
    spec = chat_spec(folder, template)
    tokenizer = open_tokenizer(spec)
    example = Example(location="row 7", content=Chat(tuple(messages), tools=tools), label=None)
    trained = SequenceEncoder(tokenizer, spec, loss_on_all=False).encode(example).ids
    return tokenizer.decode(trained), tokenizer.decode(prompt_ids(tokenizer, example))


CASES: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "a call": (CHATML, [ASKED, CALLING], "the call of 'weather' in message 2"),
    "an earlier call": (CHATML, [ASKED, CALLING, RESULT, ANSWER], "the call of 'weather' in message 2"),
    "a result": (ZEPHYR, [ASKED, ANSWER, RESULT, ANSWER], "message 3, of the tool"),
    "the system": (ZEPHYR, [TOLD, ASKED, ANSWER], "message 1, of the system"),
}

DROPPING = ZEPHYR.replace("{% if message.role == 'user' %}", "{% if message.role == 'user' and loop.index != 3 %}")
THOUGHTS = CHATML.replace("{{ message.content }}", "{{ message.content.split('</think>')[-1] }}")
LAST_THOUGHT = CHATML.replace(
    "{{ message.content }}",
    "{% if message.reasoning_content and loop.last %}{{ message.reasoning_content }}{% endif %}{{ message.content }}",
)
THINKING = {"role": "assistant", "content": "<think>why</think>no"}
REASONED = {**ANSWER, "reasoning_content": "why"}
CASES |= {
    "a result that an answer says": (ZEPHYR, [ASKED, ANSWER, RESULT, {**ANSWER, "content": "none"}], "message 3, of"),
    "the system that a user says": (ZEPHYR, [TOLD, {**ASKED, "content": "be brief. Hi"}, ANSWER], "message 1, of"),
    "a question that is asked again": (DROPPING, [ASKED, ANSWER, ASKED, ANSWER], "message 3, of the user"),
    "a list": (ZEPHYR, [ASKED, ANSWER, {**RESULT, "content": "[1, 2]"}, ANSWER], "message 3, of the tool"),
    "a short word": (ZEPHYR, [{**TOLD, "content": "a"}, ASKED, ANSWER], "message 1, of the system"),
    "thoughts in an answer": (THOUGHTS, [ASKED, THINKING], "the whole of message 2, of the assistant"),
    "thoughts but the last": (LAST_THOUGHT, [ASKED, REASONED, ASKED, REASONED], "'reasoning_content' of message 2"),
    "a name": (CHATML, [{**ASKED, "name": "Bob"}, ANSWER], "'name' of message 1"),
    "half a question": (
        CHATML.replace("message.content", "message.content[:10]"),
        [ASKED, ANSWER],
        "message 1, of the user",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_template_leaves_out_is_refused(name: str, tmp_path: Path) -> None:
    """A template that cannot write a call would train an empty answer, also where the call's name is said elsewhere."""
    template, messages, says = CASES[name]
    with pytest.raises(Refused, match=f"row 7: the chat template does not write {says}"):
        written(tmp_path, template, messages)


def test_the_model_is_not_asked_without_it_either(tmp_path: Path) -> None:
    """What is left out of a prompt is refused, as in training."""
    tokenizer = open_tokenizer(chat_spec(tmp_path, CHATML))
    with pytest.raises(Refused, match="row 7: the chat template does not write the call of 'weather'"):
        prompt_ids(tokenizer, Example(location="row 7", content=Chat((ASKED, CALLING, RESULT)), label=None))


def test_a_tool_that_nobody_tells_is_refused(tmp_path: Path) -> None:
    """The description of a tool belongs to the prompt; a system message that has it will do."""
    tool = {"type": "function", "function": {"name": "forecast", "parameters": {}}}
    with pytest.raises(Refused, match="row 7: the chat template does not write the tool 'forecast'"):
        written(tmp_path / "a", CHATML, [ASKED, ANSWER], tool)
    assert (
        "forecast"
        in written(tmp_path / "b", CHATML, [{**TOLD, "content": "you have forecast"}, ASKED, ANSWER], tool)[0]
    )


def test_a_name_said_elsewhere_is_no_tool(tmp_path: Path) -> None:
    """Bug: the name of a tool in a question was taken for its description."""
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    with pytest.raises(Refused, match="row 7: the chat template does not write the tool 'weather'"):
        written(tmp_path, CHATML, [ASKED, ANSWER], tool)


def test_thoughts_of_answers_that_are_not_learned_may_go(tmp_path: Path) -> None:
    """A template that writes only the last thoughts asks the model without the earlier ones, and so does training."""
    spec = chat_spec(tmp_path, LAST_THOUGHT)
    chat = Chat((ASKED, REASONED, ASKED, REASONED), unweighted=frozenset({1}))
    tokenizer, example = open_tokenizer(spec), Example(location="row 7", content=chat, label=None)
    trained = tokenizer.decode(SequenceEncoder(tokenizer, spec, loss_on_all=False).encode(example).ids)
    assert trained.count("whyno") == 1 and "Qx" not in trained
    asked = Chat((ASKED, THINKING, ASKED))
    prompt_ids(open_tokenizer(chat_spec(tmp_path, THOUGHTS)), Example(location="row 7", content=asked, label=None))


def test_texts_that_a_template_looks_into_are_taken(tmp_path: Path) -> None:
    """Templates ask how a message begins and split it at tags; our words change neither."""
    looking = CHATML.replace(
        "{{ message.content }}",
        "{% if message.content.startswith('<think>') %}<think>{{ message.content.split('<think>')[1] }}"
        "{% elif message.content.startswith('w') %}w{{ message.content[1:] }}"
        "{% else %}{{ message.content }}{% endif %}",
    )
    assert "<think>why</think>no" in written(tmp_path, looking, [{**ASKED, "content": "what"}, THINKING])[0]


def test_what_is_written_otherwise_is_taken(tmp_path: Path) -> None:
    """Calls, and a result that the template writes as JSON, are all there, once and as given."""
    result = {"role": "tool", "content": 'no "rain"'}
    trained, asked = written(tmp_path, WITH_CALLS, [ASKED, CALLING, result, ANSWER])
    call = '{"name": "weather", "arguments": {"town": "Rome"}}<|im_end|>'
    for text in (trained, asked):
        assert call in text and '"no \\"rain\\""<|im_end|>' in text and "Qx" not in text


def test_a_template_that_writes_the_date_writes_one(tmp_path: Path) -> None:
    """Bug: with a template that writes the date, the same rows and seed gave other samples on another day."""
    spec = chat_spec(tmp_path / "t", "{{ 'Today: ' + strftime_now('%d %b %Y') + '\n' }}" + CHATML)
    source = json_lines(tmp_path / "r.jsonl", chats(6))
    data = prepared(tmp_path / "d", source, spec, max_length=128)
    assert all(text.startswith("Today: 26 Jul 2024\n") for text in texts(data, "train"))
    said = "the chat template writes the date of the day, for which 26 Jul 2024 stands in samples and prompts"
    assert said in data.info.notes
    prompt = Chat(messages=({"role": "user", "content": "q"},))
    ids = prompt_ids(open_tokenizer(spec), Example(location="row 1", content=prompt, label=None))
    assert open_tokenizer(spec).decode(ids).startswith("Today: 26 Jul 2024\n")
    plain = prepared(tmp_path / "e", source, chat_spec(tmp_path / "u"), max_length=128)
    assert not any("date" in note for note in plain.info.notes)


def test_a_byte_order_mark_before_a_template_is_no_part_of_it(tmp_path: Path) -> None:
    """Bug: the mark that Windows puts before a file began each sample."""
    file = tmp_path / "chatml.jinja"
    file.write_bytes(b"\xef\xbb\xbf" + CHATML.encode())
    source = json_lines(tmp_path / "r.jsonl", chats(6))
    data = prepared(tmp_path / "d", source, chat_spec(tmp_path / "t", None), max_length=128, chat_template=str(file))
    assert all(text.startswith("user") for text in texts(data, "train"))
