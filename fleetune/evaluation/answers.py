"""The text of what a model wrote, without what ends it or stands around every answer."""

from collections.abc import Collection
from typing import Any

from fleetune.data.dialogues import Chat
from fleetune.data.examples import Example
from fleetune.data.messages import ASSISTANT
from fleetune.data.written_chats import rendered
from fleetune.errors import Refused

MARK = "\ue0f1"
"""Character for private use, as an answer of which nothing is alike."""


def around_answer(tokenizer: Any, location: str, chat: Chat) -> tuple[str, str]:
    """What the chat template writes before the text of an answer, beyond the prompt, and after it.

    Refused: it does not write an answer as it is given.
    """
    answered = [*chat.messages, {"role": ASSISTANT, "content": MARK}]
    before, mark, after = rendered(tokenizer, location, answered, chat.tools).partition(MARK)
    if not mark:
        raise Refused(
            f"{location}: the chat template does not write an answer as it is given, so which token ends one is not "
            "known; train with another template (data.chat_template)"
        )
    prompt = rendered(tokenizer, location, chat.messages, chat.tools, add_generation_prompt=True)
    return before.removeprefix(prompt) if before.startswith(prompt) else "", after


def answer_text(tokenizer: Any, example: Example, prompt: list[int], written: list[int], ends: Collection[int]) -> str:
    """The text of what was written after a prompt, with the special tokens within it: calls of tools, channels.

    It is decoded behind its prompt, for many tokenizers leave out the space of a text's first word. prompt: empty for
    what a decoder of seq2seq writes.
    """
    kept = list(written)
    while kept and kept[-1] in {*ends, tokenizer.pad_token_id}:
        kept.pop()
    around = set() if prompt else {tokenizer.pad_token_id, *tokenizer(text_target="")["input_ids"]}
    while kept and kept[0] in around:
        kept.pop(0)
    text = _decoded(tokenizer, [*prompt, *kept])[len(_decoded(tokenizer, prompt)) :]
    if not isinstance(example.content, Chat):
        return text
    before, after = around_answer(tokenizer, example.location, example.content)
    marks = [after.find(token) for token in tokenizer.convert_ids_to_tokens(list(ends)) if token and token in after]
    return text.removeprefix(before).removesuffix(after[: min(marks, default=0)])


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
