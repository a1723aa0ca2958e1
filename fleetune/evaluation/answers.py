"""The text of what a model wrote, without what ends it or stands around every answer."""

from collections.abc import Collection
from typing import Any

from fleetune.data.answer_ends import around_answer
from fleetune.data.dialogues import Chat
from fleetune.data.examples import Example


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
