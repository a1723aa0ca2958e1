"""Chats, chat templates, and a tokenizer built by hand that has them."""

from pathlib import Path
from typing import Any

from fleetune.contracts.input_spec import InputSpec
from fleetune.data.dialogues import Chat, read_dialogue, row_format
from fleetune.data.tokenization import open_tokenizer
from tests.support.data.samples import CAUSAL

VOCABULARY = 300
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ message.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen3's: only the last answer has a place for thoughts."""
COUNTING = "{{ messages | length }} messages: " + CHATML
ROUNDS = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "a pear?"},
    {"role": "assistant", "content": " yes"},
    {"role": "user", "content": "two?"},
    {"role": "assistant", "content": "no, öne"},
]


def chat_tokenizer(folder: Path, template: str | None = CHATML) -> Path:
    """Save a tokenizer of bytes and two marks of turns, with a chat template."""
    tokenizer = open_tokenizer(CAUSAL)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def chat_spec(folder: Path, template: str | None = CHATML) -> InputSpec:
    """A model's requirements, with such a tokenizer."""
    return InputSpec(
        task="causal-lm", tokenizer=chat_tokenizer(folder, template), vocab_size=VOCABULARY, max_positions=512
    )


def chat_of(row: dict[str, Any], any_loss: bool = False) -> Chat:
    """The chat of a row."""
    format = row_format(tuple(row), "text", None)
    assert format is not None
    found = read_dialogue("row 1", row, format, any_loss=any_loss)
    assert isinstance(found, Chat)
    return found


def chats(count: int) -> list[dict[str, Any]]:
    """Rows of different lengths, each with one answer."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"q{number} " + "why " * (number % 5)},
                {"role": "assistant", "content": f"a{number} " + "so " * (number % 7)},
            ]
        }
        for number in range(count)
    ]
