"""Loss on what the generation marks of a chat template enclose, by the characters that each token stands for."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from fleetune.contracts.input_spec import IGNORE_INDEX, InputSpec
from fleetune.data.chat_tokens import SequenceEncoder
from fleetune.data.dialogues import Chat, Completion
from fleetune.data.examples import Example
from fleetune.data.tokenization import open_tokenizer
from fleetune.errors import Refused
from tests.support.data.chat_samples import chat_spec

BARE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}<{{ m.content }}>{% endif %}{% endfor %}"
)


def turn(role: str, content: str) -> dict[str, str]:
    """A message."""
    return {"role": role, "content": content}


def learned(tokenizer: Any, spec: InputSpec, *messages: dict[str, str]) -> tuple[str, list[int]]:
    """The whole text, and the numbers of the tokens that carry loss."""
    example = Example(location="row 1", content=Chat(messages), label=None)
    found = SequenceEncoder(tokenizer, spec, loss_on_all=False).encode(example)
    return tokenizer.decode(found.ids), [n for n, label in enumerate(found.labels) if label != IGNORE_INDEX]


def test_an_answer_of_the_first_token_alone_carries_loss_alone(tmp_path: Path) -> None:
    """An answer that is token 0 alone is all that carries loss, not all that follows it."""
    spec = chat_spec(tmp_path, BARE)
    text, loss = learned(open_tokenizer(spec), spec, turn("assistant", "A"), turn("user", "secret"))
    assert (text, loss) == ("A<secret>", [0])


def test_all_bytes_of_the_last_character_carry_loss(tmp_path: Path) -> None:
    """An answer that ends in a character of two tokens has loss on both."""
    spec = chat_spec(tmp_path, BARE)
    text, loss = learned(open_tokenizer(spec), spec, turn("user", "a"), turn("assistant", "\u00f6"), turn("user", "b"))
    assert (text, loss) == ("<a>\u00f6<b>", [3, 4])


def test_an_answer_behind_a_space_that_is_no_token_carries_loss() -> None:
    """A space at either end of an answer may stand for no token; the words between carry loss."""
    words = {word: number for number, word in enumerate(("[UNK]", "q", "yes", "no", "<", ">"))}
    core = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", pad_token="[UNK]")
    tokenizer.chat_template = BARE
    spec = InputSpec(task="causal-lm", vocab_size=6)
    text, loss = learned(tokenizer, spec, turn("user", "q"), turn("assistant", " yes no "), turn("user", "q"))
    assert (text, loss) == ("< q > yes no < q >", [3, 4])


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("  {%- generation -%}\n  {{ m.content }}|\n  {%- endgeneration -%}  ", "a|"),
        ("  {% generation %}\n{{ m.content }}|{% endgeneration %}\n", "a|"),
        ("{%+ generation %}  {{ m.content }}|{% endgeneration +%}\n", "  a|"),
        ("{% generation %}{{ m.content }}{% endgeneration %}|{% generation %}{{ m.content }}{% endgeneration %}", "aa"),
    ],
    ids=["trimmed", "lines of their own", "kept", "two of an answer"],
)
def test_marks_trim_what_their_tags_do(block: str, says: str, tmp_path: Path) -> None:
    """The text is transformers' own, however the tags are written, and loss lies on what is between them."""
    template = "{% for m in messages %}" + block + "{% endfor %}."
    spec = chat_spec(tmp_path, template)
    tokenizer = open_tokenizer(spec)
    text, loss = learned(tokenizer, spec, turn("assistant", "a"))
    assert text == tokenizer.apply_chat_template([turn("assistant", "a")], tokenize=False)
    assert "".join(text[place] for place in loss) == says


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% set all %}" + BARE + "{% endset %}{{ all }}{{ all | length }}", "depends on its"),
        ("{% for m in messages %}{{ m.content }}{% generation %}{% endgeneration %}{% endfor %}", "marks nothing"),
    ],
)
def test_marks_that_tell_nothing_are_refused(template: str, says: str, tmp_path: Path) -> None:
    """A template that cuts what it marks, or marks nothing, does not tell where an answer lies."""
    spec = chat_spec(tmp_path, template)
    with pytest.raises(Refused, match=f"row 1: .*{says}"):
        learned(open_tokenizer(spec), spec, turn("assistant", "abcd"))


def test_marks_count_where_an_answer_carries_no_loss(tmp_path: Path) -> None:
    """An answer that a row takes out of the loss, or that belongs to its prompt, takes its marks along; the marks of
    the others count as they stand, without the end that this template writes behind them."""
    spec = chat_spec(tmp_path, BARE.replace("{% endgeneration %}", "{% endgeneration %}."))
    messages = (turn("user", "q"), turn("assistant", "no"), turn("user", "r"), turn("assistant", "yes"))
    for chat in (Chat(messages, unweighted=frozenset({1})), Chat(messages, given=2)):
        tokenizer = open_tokenizer(spec)
        found = SequenceEncoder(tokenizer, spec, False).encode(Example(location="row 1", content=chat, label=None))
        assert tokenizer.decode(found.ids) == "<q>no.<r>yes."
        assert tokenizer.decode(found.ids[found.labels != IGNORE_INDEX]) == "yes"


def test_marks_that_change_with_later_messages_are_refused_where_they_are_chosen(tmp_path: Path) -> None:
    """A template that marks its last answer alone does not tell which marks belong to which answer."""
    last = "{% if loop.last %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    spec = chat_spec(tmp_path, "{% for m in messages %}" + last + "{% endfor %}")
    for between in ((), (turn("user", "q"),)):
        chat = Chat((turn("assistant", "a"), *between, turn("assistant", "b")), unweighted=frozenset({0}))
        with pytest.raises(Refused, match="row 1: which {% generation %} marks .* depends on the messages after it"):
            SequenceEncoder(open_tokenizer(spec), spec, False).encode(
                Example(location="row 1", content=chat, label=None)
            )


def test_marks_of_the_template_for_tools_count(tmp_path: Path) -> None:
    """Of several templates of a tokenizer, that for tools writes a chat with tools, and its marks count."""
    spec = chat_spec(tmp_path, BARE)
    tokenizer = open_tokenizer(spec)
    tokenizer.chat_template = {"default": "{{ messages[0].content }}", "tool_use": "{{ tools[0].name }}" + BARE}
    chat = Chat((turn("user", "q"), turn("assistant", "a")), tools=({"name": "f"},))
    found = SequenceEncoder(tokenizer, spec, False).encode(Example(location="row 1", content=chat, label=None))
    assert tokenizer.decode(found.ids) == "f<q>a"
    assert (found.labels != IGNORE_INDEX).tolist() == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("prompt", "completion", "loss"),
    [("Is: ", "42", [4, 5, 6]), ("Is:", " 42", [3, 4, 5, 6]), ("Is:", "42 ", [3, 4, 5, 6])],
)
def test_a_space_is_told_to_the_side_that_it_is_on(prompt: str, completion: str, loss: list[int]) -> None:
    """Bug: by a tokenizer that leaves spaces out of its offsets, as RoBERTa's, loss lay on the prompt's last space, and
    none on that of an answer."""
    tokenizer = open_tokenizer(InputSpec(task="causal-lm"))
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    spec = InputSpec(task="causal-lm", vocab_size=264)
    example = Example(location="row 1", content=Completion(prompt, completion), label=None)
    found = SequenceEncoder(tokenizer, spec, loss_on_all=False).encode(example)
    assert [n for n, label in enumerate(found.labels) if label != IGNORE_INDEX] == loss
