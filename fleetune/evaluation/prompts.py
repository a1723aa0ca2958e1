"""Token ids of prompts as in training, and the tokens that end an answer."""

from dataclasses import replace
from typing import Any

from fleetune.data.answer_ends import learned_ends
from fleetune.data.dialogues import Chat, Completion
from fleetune.data.examples import Example
from fleetune.data.tokenization import asked_ids
from fleetune.data.written_chats import check_written, rendered
from fleetune.errors import Refused


def end_ids(tokenizer: Any, of_model: int | list[int] | None, example: Example) -> list[int]:
    """Tokens that end what the model writes: its own, and those that training put there."""
    own = of_model if isinstance(of_model, list | tuple) else [] if of_model is None else [of_model]
    chat = example.content if isinstance(example.content, Chat) else None
    return sorted({*map(int, own), *learned_ends(tokenizer, example.location, chat)})


def prompt_ids(tokenizer: Any, example: Example) -> list[int]:
    """Token ids of what comes before the answer, as `fleetune.data.chat_tokens` writes it for training."""
    content = example.content
    if isinstance(content, Chat):
        return _chat_ids(tokenizer, example.location, content)
    text = content.prompt if isinstance(content, Completion) else str(content)
    return asked_ids(tokenizer, text)


def ends_within_token(tokenizer: Any, example: Example) -> bool:
    """Whether a text ends in white space that is part of the next word's token, so that training never ends there."""
    text = example.content.prompt if isinstance(example.content, Completion) else example.content
    if not isinstance(text, str) or text == text.rstrip():
        return False
    ids = prompt_ids(tokenizer, example)
    return prompt_ids(tokenizer, replace(example, content=text + "a"))[: len(ids)] != ids


def _chat_ids(tokenizer: Any, location: str, chat: Chat) -> list[int]:
    if tokenizer.chat_template is None:
        raise Refused(f"{location}: it is a chat, and the tokenizer of the run has no chat template; give plain texts")
    text = rendered(tokenizer, location, chat.messages, chat.tools, add_generation_prompt=True)
    check_written(tokenizer, location, chat, learned=())
    return [int(each) for each in tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]]
