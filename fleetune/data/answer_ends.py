"""The tokens that end what a model writes: those that training put behind a text or an answer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleetune.contracts.input_spec import InputSpec
from fleetune.data.dialogues import Chat
from fleetune.data.messages import ASSISTANT
from fleetune.data.tokenization import end_token_id, own_tokenizer
from fleetune.data.written_chats import rendered
from fleetune.errors import Refused

MARK = "\ue0f1"
"""Character for private use, as an answer of which nothing is alike."""
QUESTION = Chat(({"role": "user", "content": "?"},))


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


def learned_ends(tokenizer: Any, location: str, chat: Chat | None) -> list[int]:
    """The tokenizer's end token, and the one that its template writes after an answer to a chat, if it writes one; no
    token of white space, such as Gemma's for line breaks, which answers have in them."""
    end, after = end_token_id(tokenizer), "" if chat is None else around_answer(tokenizer, location, chat)[1]
    added = tokenizer.get_added_vocab().items()
    found = {number for token, number in added if token.strip() and after.startswith(token)}
    return sorted(found if end is None else {*found, end})


def folder_ends(folder: Path, note: Callable[[str], None]) -> list[int]:
    """The ends that a tokenizer's folder tells, of answers to any chat; note: told what it does not tell."""
    found = list[int]()
    try:
        tokenizer = own_tokenizer(InputSpec(task="causal-lm", tokenizer=folder))
        found = learned_ends(tokenizer, "", None)
        if tokenizer.chat_template is not None:
            found = learned_ends(tokenizer, "a question and its answer", QUESTION)
    except Refused as error:
        said, _, _ = str(error).partition(";")
        note(f"the generation settings do not have what the tokenizer or its chat template puts after answers: {said}")
    return found
