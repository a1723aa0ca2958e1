"""Tokens of texts, chats and completions, and which of them carry loss.

Each sample is written as one text and tokenized once, so that its tokens are those that the model will meet. A token
carries loss if it holds at least one character of a completion. Completions of a chat are found in the text that the
tokenizer's chat template makes of it: by the template's own `{% generation %}` marks, which are written into a second
text, else by comparing the text with that of the first messages alone. A template by which neither can tell where an
answer lies is refused.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from fleetune.contracts.input_spec import IGNORE_INDEX, InputSpec
from fleetune.data.dialogues import Chat, Completion
from fleetune.data.examples import Example
from fleetune.data.messages import ASSISTANT, Message
from fleetune.data.public_words import Told
from fleetune.data.tokenization import asked_ids, check_ids, end_token_id, own_marks, without_marks
from fleetune.data.tool_calls import called_names, with_names
from fleetune.data.written_chats import check_written, rendered
from fleetune.errors import Refused

Tokens = np.ndarray[Any, np.dtype[np.int32]]
TRIMMING = re.compile(r'("trim_offsets":\s*)true')
GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
OPEN, CLOSE = "\ue0f1", "\ue0f2"
"""Characters for private use, put around an answer to find it in what a template writes."""
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """A sample's tokens and labels, int32 [tokens]; labels are IGNORE_INDEX where no loss is carried."""

    ids: Tokens
    labels: Tokens

    @property
    def targets(self) -> int:
        """Number of tokens that are predicted from the ones before them and carry loss."""
        return int((self.labels[1:] != IGNORE_INDEX).sum())

    def first(self, length: int) -> "TokenSequence":
        """The first tokens."""
        return TokenSequence(self.ids[:length], self.labels[:length])

    def pieces(self, length: int) -> list["TokenSequence"]:
        """All tokens, so many at a time; a last one alone, of which nothing is learned, follows the one before it."""
        starts = [max(0, min(at, len(self.ids) - 2)) for at in range(0, len(self.ids), length)]
        return [TokenSequence(self.ids[at : at + length], self.labels[at : at + length]) for at in starts]


@dataclass(frozen=True)
class SequenceEncoder:
    """Encodes texts, chats and completions of any length."""

    tokenizer: Any
    spec: InputSpec
    loss_on_all: bool
    joined: list[str] = field(default_factory=list)
    """Locations of completions whose prompt's own tokens are not the first ones."""
    quoting: list[str] = field(default_factory=list)
    """Places of messages that hold a special token of the tokenizer, each with its first one."""

    def encode(self, example: Example) -> TokenSequence:
        """Tokens of a sample, not truncated; Refused names the sample, or the tokenizer's lack of a template."""
        content = example.content
        if isinstance(content, Chat):
            ids, carries = self._chat(example.location, content)
        elif isinstance(content, Completion):
            text = content.prompt + content.completion
            ids, carries = self._closed(example.location, text, (len(content.prompt), len(text)))
            asked = asked_ids(self.tokenizer, content.prompt) if content.prompt else []
            if ids[: len(asked)] != asked:
                self.joined.append(example.location)
        else:
            assert isinstance(content, str)
            ids, carries = self._closed(example.location, content, (0, len(content)))
        check_ids(np.asarray(ids, dtype=np.int64), self.spec)
        taken = np.asarray(ids, dtype=np.int32)
        kept = np.ones(len(ids), dtype=bool) if self.loss_on_all else np.asarray(carries, dtype=bool)
        return TokenSequence(taken, np.where(kept, taken, IGNORE_INDEX).astype(np.int32))

    def notes(self, total: int) -> Iterator[str]:
        """Sentences if some of `total` samples are asked otherwise than they are trained, or hold special tokens."""
        if self.joined:
            yield (
                f"in {len(self.joined)} of {total} samples a token joins the end of the prompt and the beginning of "
                "the completion, and the model is asked with the prompt's own tokens; let prompts end without a space "
                "and completions begin with it"
            )
        if self.quoting:
            yield (
                f"{len(self.quoting)} of the messages hold a special token of the tokenizer, which is read as that "
                f"token and not as its letters (first {self.quoting[0]}); where one is only quoted, write it otherwise"
            )

    def _closed(self, location: str, text: str, span: Span) -> tuple[list[int], list[bool]]:
        """Tokens of a text with the tokenizer's own begin and end, and the end token if it adds none."""
        end = end_token_id(self.tokenizer)
        marks = own_marks(self.tokenizer)
        plain = without_marks(text, marks)
        skipped = len(marks[0]) if text.startswith(marks[0]) else 0
        ids, offsets = self._tokens(location, plain, special=True)
        carries = _inside(offsets, [(max(0, span[0] - skipped), len(plain))])
        if end is not None and ids[-1:] != [end]:
            return [*ids, end], [*carries, True]
        return ids, [*carries[:-1], True] if end is not None else carries

    def _chat(self, location: str, chat: Chat) -> tuple[list[int], list[bool]]:
        if self.tokenizer.chat_template is None:
            folder = self.spec.tokenizer or "the byte tokenizer"
            raise Told(
                "{}: the tokenizer has no chat template, which chats need; name a Jinja file with "
                "data.chat_template, or give columns prompt and completion",
                folder,
            )
        if self.loss_on_all and chat.unweighted:
            raise Told(
                "{location}, message {number}: it asks for no loss, and data.loss_on: all puts it on every token; "
                "leave data.loss_on out, or take the key out of the message",
                location=location,
                number=min(chat.unweighted) + 1,
            )
        text = self.written(location, chat.messages, chat)
        check_written(self.tokenizer, location, chat, chat.answers)
        ids, offsets = self._tokens(location, text, special=False)
        self._note_quotes(location, chat, set(ids))
        if self.loss_on_all:
            return ids, [True] * len(ids)
        source = str(self.tokenizer.get_chat_template(tools=list(chat.tools) or None))
        if GENERATION.search(source):
            return ids, _inside(offsets, self._marked_answers(location, chat, source))
        template = _ChatText(self, location, chat, text)
        return ids, _inside(offsets, [template.span(number) for number in chat.answers])

    def _note_quotes(self, location: str, chat: Chat, ids: set[int]) -> None:
        """Keep the places of messages that hold one of the special tokens among the ids of their chat."""
        special = [text for number, text in self._special.items() if number in ids]
        for number, message in enumerate(chat.messages, start=1):
            said = _json([value for key, value in message.items() if key != "role"])
            held = next((text for text in special if text in said), None)
            if held is not None:
                self.quoting.append(f"{held!r} in {Path(location).name}, message {number}")

    def _marked_answers(self, location: str, chat: Chat, source: str) -> list[Span]:
        """Characters [first, end) of the answers, as the template's own marks enclose them."""
        spans = self._marked(location, chat, len(chat.messages), source)
        every = [number for number, message in enumerate(chat.messages) if message["role"] == ASSISTANT]
        if list(chat.answers) != every:  # those of each answer come with its message
            before = [len(self._marked(location, chat, number, source)) if number else 0 for number in every]
            after = [len(self._marked(location, chat, number + 1, source)) for number in every]
            counts = [*(count for pair in zip(before, after, strict=True) for count in pair), len(spans)]
            if counts != sorted(counts) or any(first == last for first, last in zip(before, after, strict=True)):
                raise Told(
                    "{location}: which {{% generation %}} marks the chat template writes for an answer depends on the "
                    "messages after it, and not all of its answers carry loss; mend the template",
                    location=location,
                )
            own = {n: spans[first:last] for n, first, last in zip(every, before, after, strict=True)}
            spans = [span for number in chat.answers for span in own[number]]
        if not any(first < end for first, end in spans):
            raise Told(
                "{location}: the chat template marks nothing of its answers as generated; mend the template",
                location=location,
            )
        return spans

    def _marked(self, location: str, chat: Chat, count: int, source: str) -> list[Span]:
        """Characters [first, end) that the marks enclose in the text of the first messages."""
        messages = chat.messages[:count]
        text = self.written(location, messages, chat)
        unused = (mark for mark in map(chr, range(0xE000, 0xF900)) if mark not in text)
        first, last = next(unused), next(unused)
        marked = self.written(location, messages, chat, template=GENERATION.sub(_with_marks(first, last), source))
        pieces = re.split(f"([{first}{last}])", marked)
        if "".join(pieces[::2]) != text or pieces[1::2] != [first, last] * (len(pieces) // 4):
            raise Told(
                "{location}: what the chat template writes depends on its {{% generation %}} marks; take them out "
                "of what it trims, cuts or repeats",
                location=location,
            )
        ends = list(accumulate(map(len, pieces[::2])))
        return list(zip(ends[0:-1:2], ends[1::2], strict=True))

    def _tokens(self, location: str, text: str, special: bool) -> tuple[list[int], list[Span]]:
        """Token ids of a text, and the characters [first, end) that each stands for."""
        if not self.tokenizer.is_fast:
            raise Told(
                "{}: this tokenizer does not tell which characters its tokens stand for; save it with a tokenizer.json",
                self.spec.tokenizer,
            )
        found = self._untrimmed(text, add_special_tokens=special, return_offsets_mapping=True, verbose=False)
        if not found["input_ids"]:
            raise Told("{location}: the tokenizer makes no token of it; leave the row out", location=location)
        return list(found["input_ids"]), list(found["offset_mapping"])

    @cached_property
    def _special(self) -> dict[int, str]:
        """The tokenizer's special tokens by number, as JSON has them."""
        added = self.tokenizer.added_tokens_decoder.items()
        return {number: _json(each.content)[1:-1] for number, each in added if each.special and each.content.strip()}

    @cached_property
    def _untrimmed(self) -> Any:
        """The tokenizer, by which a token stands for its spaces, too: many leave them out of what they tell."""
        from tokenizers import Tokenizer  # takes long to import, and only preparation needs it

        described = self.tokenizer.backend_tokenizer.to_str()
        whole = TRIMMING.sub(r"\1false", described)
        if whole == described:
            return self.tokenizer
        made = copy.deepcopy(self.tokenizer)  # the tokenizer itself is saved as it is
        made.backend_tokenizer.post_processor = Tokenizer.from_str(whole).post_processor
        return made

    def written(
        self, location: str, messages: Sequence[Message], chat: Chat, ask: bool = False, template: str | None = None
    ) -> str:
        """What the chat template, or another, makes of messages; `ask`: with the beginning of an answer."""
        return rendered(
            self.tokenizer, location, messages, chat.tools, add_generation_prompt=ask, chat_template=template
        )


@dataclass(frozen=True)
class _ChatText:
    """The text of a chat, in which answers are found."""

    encoder: SequenceEncoder
    location: str
    chat: Chat
    text: str

    def span(self, number: int) -> Span:
        """Characters [first, end) that the model is to write as message `number`, its end mark included."""
        count = len(self.chat.messages)
        before = self._of(number, ask=True) if number else self.text[: self._content(count, number)[0]]
        if not self.text.startswith(before):
            raise self._unstable(number, "what it writes to ask for an answer is not what precedes the answer")
        whole = self._of(number + 1)
        if self.text.startswith(whole):
            return len(before), len(whole)
        # A template may write its last answer differently, such as with its thoughts: only the end must be alike.
        alone, within = self._content(number + 1, number), self._content(count, number)
        closing, end = whole[alone[1] :], self.encoder.tokenizer.eos_token or ""
        if not self.text.startswith(closing, within[1]) and self.text.endswith(end):
            closing = closing.removesuffix(end) or closing  # as Phi's, which stands once behind all messages
        if not self.text.startswith(closing, within[1]):
            raise self._unstable(number, "the end of an answer depends on the messages after it")
        return len(before), within[1] + len(closing)

    def _of(self, messages: int, ask: bool = False) -> str:
        """What the template makes of the first messages."""
        if messages == len(self.chat.messages) and not ask:
            return self.text
        return self.encoder.written(self.location, self.chat.messages[:messages], self.chat, ask)

    def _content(self, messages: int, number: int) -> Span:
        """Where the content of a message lies in the text of the first messages; or, without one, what it calls."""
        told = _enclosed(self.chat.messages[number], by_calls=number > 0)
        marked = [*self.chat.messages[:number], told, *self.chat.messages[number + 1 : messages]]
        text = self.encoder.written(self.location, marked, self.chat)
        first, end = text.find(OPEN), text.find(CLOSE)
        most = -1 if number else 1  # a result may repeat the name of its call, but here the first answer begins
        plain = text.replace(OPEN, "", most).replace(CLOSE, "", most)
        if not 0 <= first < end or plain != self._of(messages):
            raise self._unstable(number, "it changes what the answer says")
        return first, end - text.count(OPEN, 0, end)

    def _unstable(self, number: int, why: str) -> Refused:
        folder = self.encoder.spec.tokenizer
        whose = "data.chat_template" if folder is None else f"the chat template of {folder.name}"
        return Told(
            "{location}, message {number}: {whose} does not tell which tokens the assistant writes: {why}; put {{% "
            "generation %}} and {{% endgeneration %}} around them in a copy of it and name that with "
            "data.chat_template, or set data.loss_on: all",
            location=self.location,
            whose=whose,
            why=why,
            number=number + 1,
        )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _enclosed(message: Message, by_calls: bool) -> Message:
    """A message with OPEN and CLOSE around its content, or around the names of its calls if it has none, since
    templates ask whether it has."""
    content, names = str(message["content"]), called_names(message)
    core = content.strip()
    if not core and names and by_calls:
        names[0] = OPEN + names[0]
        return with_names(message, [*names[:-1], names[-1] + CLOSE])
    lead = content[: len(content) - len(content.lstrip())]
    return {**message, "content": f"{lead}{OPEN}{core}{CLOSE}{content[len(lead) + len(core) :]}"}


def _with_marks(first: str, last: str) -> Callable[[re.Match[str]], str]:
    """Put a character where a generation block begins and where it ends, within what its tags trim around them."""

    def marked(tag: re.Match[str]) -> str:
        left, ends, right = tag.groups()
        if ends:
            return f"{{%{left} endgeneration %}}{{{{ '{last}' }}}}{{% if true %}}{{% endif {right}%}}"
        return f"{{%{left} if true %}}{{% endif %}}{{{{ '{first}' }}}}{{% generation {right}%}}"

    return marked


def _inside(offsets: Sequence[Span], spans: Sequence[Span]) -> list[bool]:
    """Whether each token holds a character of a span; spans are ascending. A token without characters counts as one."""
    found, place = [], 0
    for first, end in offsets:
        while place < len(spans) and spans[place][1] <= first:
            place += 1
        found.append(place < len(spans) and first < spans[place][1] and max(end, first + 1) > spans[place][0])
    return found
