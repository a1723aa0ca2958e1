"""The text of an answer is what the model wrote, and joins its prompt."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from fleetune.data.dialogues import Chat, Completion
from fleetune.data.examples import Example
from fleetune.data.tokenization import open_tokenizer
from fleetune.evaluation.answers import answer_text
from fleetune.evaluation.prompts import end_ids, prompt_ids
from tests.support.data.chat_samples import CHATML, THINKING, chat_spec
from tests.support.data.samples import CAUSAL

ASKED = Example(location="row 1", content=Chat(({"role": "user", "content": "a?"},)), label=None)
LLAMA2 = (
    "<bos>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} <eos>{% endif %}{% endfor %}"
)


def llama() -> PreTrainedTokenizerFast:
    """A tokenizer of words that puts and takes spaces as Llama 2's does."""
    words = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", "\u2581Hello", "\u2581world"])}
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    core.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def test_a_continuation_keeps_the_space_before_its_first_word() -> None:
    """Bug: Llama's tokenizer leaves out the first space of each text that it decodes, so of an answer by itself, too;
    what seq2seq writes has no such space."""
    tokenizer = llama()
    asked = Example(location="text 1", content="Hello", label=None)
    assert answer_text(tokenizer, asked, prompt_ids(tokenizer, asked), [4, 4, 2], [2]) == " world world"
    assert answer_text(tokenizer, asked, [], [4, 4, 2], [2]) == "world world"


@pytest.mark.parametrize(
    ("template", "answer"),
    [(CHATML, " yes<|im_end|>"), (LLAMA2, "  yes <eos>"), (THINKING, "<think>\n\n</think>\n\n yes<|im_end|>")],
    ids=["ChatML", "Llama 2", "Qwen3"],
)
def test_an_answer_to_a_chat_is_what_a_message_has(template: str, answer: str, tmp_path: Path) -> None:
    """What the template puts around each answer is none of it; its own first space is."""
    tokenizer = open_tokenizer(chat_spec(tmp_path, template))
    written = tokenizer(answer, add_special_tokens=False)["input_ids"]
    prompt, ends = prompt_ids(tokenizer, ASKED), end_ids(tokenizer, None, ASKED)
    assert answer_text(tokenizer, ASKED, prompt, written, ends) == " yes"


@pytest.mark.parametrize("ends", [True, False])
def test_a_prompt_keeps_the_end_tokens_of_its_text(ends: bool) -> None:
    """Bug: of turns that end tokens part, as DialoGPT has them, the last one was left out of the prompt, which then was
    no turn that had ended; the one that a tokenizer puts itself is."""
    tokenizer = open_tokenizer(CAUSAL)
    if not ends:
        tokenizer.backend_tokenizer.post_processor = processors.Sequence([])
    asked = Example(location="text 1", content="hi?<eos>", label=None)
    plain = tokenizer("hi?<eos>", add_special_tokens=False)["input_ids"]
    assert prompt_ids(tokenizer, asked)[-len(plain) :] == plain


def test_special_tokens_within_an_answer_stay() -> None:
    """Bug: the marks of calls and channels were left out of what was written; those that end or pad it are no part."""
    tokenizer = open_tokenizer(CAUSAL)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|call|>"]})
    asked = Example(location="text 1", content=Completion("go ", ""), label=None)
    prompt, ends = prompt_ids(tokenizer, asked), end_ids(tokenizer, None, asked)
    written = tokenizer("<|call|>f<|call|>x , y<eos><pad>", add_special_tokens=False)["input_ids"]
    assert answer_text(tokenizer, asked, prompt, written, ends) == "<|call|>f<|call|>x , y"
    framed = tokenizer("<pad><bos><|call|>f<eos>", add_special_tokens=False)["input_ids"]
    assert answer_text(tokenizer, asked, [], framed, ends) == "<|call|>f"


def test_spaces_are_as_they_were_written() -> None:
    """Bug: a tokenizer whose settings ask for it took spaces before punctuation out of what was written."""
    tokenizer = llama()
    tokenizer.clean_up_tokenization_spaces = True
    tokenizer.add_tokens([" ,", " n't"])
    asked = Example(location="text 1", content="Hello", label=None)
    written = tokenizer.convert_tokens_to_ids(["\u2581world", " ,", " n't"])
    assert answer_text(tokenizer, asked, prompt_ids(tokenizer, asked), written, [2]) == " world , n't"
