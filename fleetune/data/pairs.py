"""Pairs of texts for seq2seq: one that the encoder reads, and one that the decoder writes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fleetune.contracts.input_spec import IGNORE_INDEX, InputSpec
from fleetune.data.dialogues import Completion
from fleetune.data.examples import Example
from fleetune.data.prepared_data import DECODER_IDS, IDS, LABELS, MASK, Array, ArrayInfo
from fleetune.data.public_words import Told
from fleetune.data.tokenization import TOKENIZER_CONFIG, Ids, check_ids, encode, end_token_id

LANGUAGES = ("src_lang", "tgt_lang")
"""What a tokenizer of many languages, such as NLLB's, has for those of a pair."""


@dataclass(frozen=True, kw_only=True)
class PairEncoder:
    """Encodes pairs: ids and masks [samples, length], decoder ids and labels [samples, target_length]."""

    tokenizer: Any
    length: int
    target_length: int
    spec: InputSpec
    cut: list[str] = field(default_factory=list)
    """Locations of the pairs of which a text was longer."""

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """Describe the arrays that hold `samples` samples."""
        read, written = (samples, self.length), (samples, self.target_length)
        return (
            ArrayInfo(name=IDS, dtype="int32", shape=read),
            ArrayInfo(name=MASK, dtype="uint8", shape=read),
            ArrayInfo(name=DECODER_IDS, dtype="int32", shape=written),
            ArrayInfo(name=LABELS, dtype="int32", shape=written),
        )

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """Return the rows of a chunk by array name."""
        pairs = [_pair(example) for example in chunk]
        ids, mask, longer = encode(self.tokenizer, [pair.prompt for pair in pairs], self.length)
        targets, written, more = self._targets([pair.completion for pair in pairs])
        check_ids(ids, self.spec)
        check_ids(targets, self.spec)
        self.cut.extend(chunk[row].location for row in sorted({*longer, *more}))
        labels = np.where(written == 1, targets, IGNORE_INDEX)
        return {IDS: ids, MASK: mask, DECODER_IDS: self._shifted(targets), LABELS: labels}

    def notes(self, total: int) -> Iterator[str]:
        """Sentences on pairs that are cut, of `total`, and on targets that do not end."""
        if self.cut:
            yield (
                f"{len(self.cut)} of {total} pairs have a text longer than max_length {self.length} or a target "
                f"longer than target_length {self.target_length}, and are cut"
            )
        if end_token_id(self.tokenizer) is None:
            yield "the tokenizer has no token to end targets, so the model does not learn to stop; give it an eos_token"

    def _targets(self, texts: list[str]) -> tuple[Ids, Ids, list[int]]:
        """`encode` for the decoder: whole targets end with the end token, also where the tokenizer puts none there, and
        do not begin with the start token, which the decoder reads before them."""
        marked = self._around_targets
        begun = int(marked[:1] == [self.spec.decoder_start_token_id])
        ids, mask, longer = encode(self.tokenizer, texts, self.target_length + begun, target=True)
        ids, mask = ids[:, begun:], mask[:, begun:]
        end = end_token_id(self.tokenizer)
        if end is None or end in marked[begun:]:
            return ids, mask, longer
        for row, tokens in enumerate(mask.sum(axis=1)):
            if row not in longer and tokens < self.target_length and ids[row, tokens - 1] != end:
                ids[row, tokens], mask[row, tokens] = end, 1
        return ids, mask, longer

    @cached_property
    def _around_targets(self) -> list[int]:
        """Tokens of a short target, the tokenizer's own before and after it included."""
        return list(self.tokenizer(text_target="a", verbose=False)["input_ids"])

    def __post_init__(self) -> None:
        """Refuse a tokenizer of many languages that nobody has told which two the texts are in."""
        if not all(hasattr(self.tokenizer, key) for key in LANGUAGES):
            return
        file = None if self.spec.tokenizer is None else self.spec.tokenizer / TOKENIZER_CONFIG
        named = json.loads(file.read_bytes()) if file is not None and file.is_file() else {}
        missing = [key for key in LANGUAGES if not named.get(key)]
        if missing:
            raise Told(
                "{}: the tokenizer puts a language before each text, and its {file} names no {missing}; name both "
                "there, of what is read ({source}) and of what is written ({target})",
                self.spec.tokenizer,
                file=TOKENIZER_CONFIG,
                missing=" and no ".join(missing),
                source=LANGUAGES[0],
                target=LANGUAGES[1],
            )

    def _shifted(self, targets: Ids) -> Ids:
        """Return what the decoder reads: its start token, then each target but the last."""
        start = self.spec.decoder_start_token_id
        if start is None:
            raise Told(
                "model: its configuration names no decoder_start_token_id, the token before the first that is "
                "written; set model.config.decoder_start_token_id",
            )
        return np.concatenate([np.full((len(targets), 1), start, dtype=np.int64), targets[:, :-1]], axis=1)


def _pair(example: Example) -> Completion:
    assert isinstance(example.content, Completion), "samples of seq2seq are pairs"
    return example.content
