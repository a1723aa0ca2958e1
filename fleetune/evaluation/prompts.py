"""Token ids of prompts as in training, and the tokens that end an answer."""

from typing import Any

from fleetune.data.dialogues import ASSISTANT, Chat, Completion
from fleetune.data.examples import Example
from fleetune.data.tokenization import end_token_id
from fleetune.data.tool_calls import fitting
from fleetune.errors import Refused, first_line

MARK = "\ue0f1"
"""Character for private use, as an answer of which nothing is alike."""


def end_ids(tokenizer: Any, of_model: int | list[int] | None) -> list[int]:
    """Tokens that end what the model writes: the tokenizer's, the model's, and that after answers in chats."""
    found = {*(of_model if isinstance(of_model, list | tuple) else [of_model]), end_token_id(tokenizer)}
    return sorted({*(int(each) for each in found if each is not None), *_after_answers(tokenizer)})


def _after_answers(tokenizer: Any) -> list[int]:
    """The special token that the chat template writes after an answer, if it writes one."""
    if tokenizer.chat_template is None:
        return []
    try:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": "?"}, {"role": ASSISTANT, "content": MARK}], tokenize=False
        )
    except Exception:  # a template that takes no such chat says so where it is used
        return []
    rest = text.partition(MARK)[2]
    return [number for token, number in tokenizer.get_added_vocab().items() if token and rest.startswith(token)]


def prompt_ids(tokenizer: Any, example: Example) -> list[int]:
    """Token ids of what comes before the answer, as `fleetune.data.chat_tokens` writes it for training."""
    content = example.content
    if isinstance(content, Chat):
        return _chat_ids(tokenizer, example.location, content)
    text = content.prompt if isinstance(content, Completion) else str(content)
    ids = [int(each) for each in tokenizer(text, verbose=False)["input_ids"]]
    return ids[:-1] if len(ids) > 1 and ids[-1] == end_token_id(tokenizer) else ids


def _chat_ids(tokenizer: Any, location: str, chat: Chat) -> list[int]:
    if tokenizer.chat_template is None:
        raise Refused(f"{location}: it is a chat, and the tokenizer of the run has no chat template; give plain texts")
    told = fitting(tokenizer, chat.messages, chat.tools)
    try:
        found = tokenizer.apply_chat_template(
            told, tools=list(chat.tools) or None, add_generation_prompt=True, return_dict=True
        )
    except Exception as error:  # templates raise what they like
        raise Refused(f"{location}: the chat template refuses it ({first_line(error)})") from None
    return [int(each) for each in found["input_ids"]]
