"""Predictions of a trained model: classes with their probabilities, or how texts and chats go on."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.record import record
from fleetune.contracts.tasks import SEQ2SEQ, predicts_labels, predicts_number, predicts_tokens
from fleetune.data.dialogues import Chat, Completion
from fleetune.data.examples import Example
from fleetune.data.image_processor import reopen_image_processor, stacked
from fleetune.data.prepared_data import IDS, MASK, PIXELS, Array, PreparedData
from fleetune.data.tokenization import check_ids, encode, open_tokenizer
from fleetune.errors import Refused
from fleetune.evaluation.answers import answer_text
from fleetune.evaluation.prompts import end_ids, ends_within_token, prompt_ids
from fleetune.evaluation.token_loss import vocabulary
from fleetune.evaluation.trained_model import one_thread, without_cache

RANKED = 5
"""Most classes of a prediction."""
BATCH_SAMPLES = 16


@record
class Prediction:
    """What a model says of one input."""

    input: str
    """Its text; of an image, its path; of a chat, what was said last."""
    label: str = ""
    """The most probable class, or all labels that are more probable than not; empty for causal-lm and numbers."""
    probabilities: dict[str, float] = field(default_factory=dict)
    """Class -> probability of at most RANKED classes, the most probable first; empty for causal-lm and numbers."""
    value: float | None = None
    """The number that a model of a regression says."""
    text: str = ""
    """How the input goes on, or what it is turned into; empty for classification."""
    unfinished: bool = False
    """Whether the text stops at the most tokens that were asked for or fit, and not where the model ends it."""


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """A trained model with what turns inputs into its tensors, as for training."""

    model: Any
    data: PreparedData
    """Of the run: tokenizer or image processor, lengths and labels."""
    new_tokens: int = 64
    """Most tokens to write after an input of causal-lm, or of one of seq2seq."""
    cut: list[str] = field(default_factory=list)
    """Locations of the texts that were longer than those of training, and cut."""
    spaced: list[str] = field(default_factory=list)
    """Locations of the texts of causal-lm that end in a space which training has within a token."""
    templated: list[str] = field(default_factory=list)
    """Locations of chats, which a template writes, where training had none."""

    def predictions(self, asked: Iterable[Example]) -> Iterator[Prediction]:
        """Yield a prediction for each input, in order. No gradients, no draws, on one thread; Refused: an input that
        the model cannot take, or logits that are not finite."""
        self.model.eval()
        with torch.no_grad(), one_thread():
            if predicts_tokens(self.data.task):
                yield from self._written(asked)
                return
            rows = self._images() if self.data.tokenizer is None else self._texts()
            left = iter(asked)
            while chunk := list(islice(left, BATCH_SAMPLES)):
                inputs = {name: torch.from_numpy(array) for name, array in rows(chunk).items()}
                with without_cache(self.model):
                    logits = self.model(**inputs).logits.double()
                yield from (self._prediction(*each) for each in zip(chunk, logits, strict=True))

    def _prediction(self, example: Example, logits: torch.Tensor) -> Prediction:
        """logits: of one sample."""
        if not logits.isfinite().all():
            raise _diverged(example)
        if predicts_number(self.data.task):
            return Prediction(input=_said(example), value=float(logits[0]))
        several = predicts_labels(self.data.task)
        probabilities = (logits.sigmoid() if several else logits.softmax(dim=-1)).tolist()
        ranked = sorted(zip(self.data.labels, probabilities, strict=True), key=lambda pair: -pair[1])[:RANKED]
        has = [name for name, share in zip(self.data.labels, probabilities, strict=True) if share > 0.5]
        label = ", ".join(has) if several else ranked[0][0]
        return Prediction(input=_said(example), label=label, probabilities=dict(ranked))

    def _texts(self) -> Any:
        spec = InputSpec(task=self.data.task, tokenizer=self.data.tokenizer, vocab_size=vocabulary(self.model))
        tokenizer, (length,) = open_tokenizer(spec), self.data.shape(IDS)

        def rows(chunk: list[Example]) -> dict[str, Array]:
            ids, mask, longer = encode(tokenizer, [str(each.content) for each in chunk], length)
            check_ids(ids, spec)
            self.cut.extend(chunk[row].location for row in longer)
            return {IDS: ids, MASK: mask}

        return rows

    def _images(self) -> Any:
        shape = self.data.shape(PIXELS)
        if self.data.processing is None:
            raise Refused(f"{self.data.folder}: it has no image processor, as older versions wrote none; run it again")
        processor = reopen_image_processor(self.data.processing, shape)
        floats = next(self.model.parameters()).dtype

        def rows(chunk: list[Example]) -> dict[str, Array]:
            made = stacked(processor, chunk)
            if made[PIXELS].shape[1:] != shape:
                raise Refused(
                    f"{chunk[0].location}: it becomes {list(made[PIXELS].shape[1:])}, and images of training became "
                    f"{list(shape)}; crop it to their shape"
                )
            precision = str(floats).removeprefix("torch.")
            return {name: array.astype(precision if name == PIXELS else np.int64) for name, array in made.items()}

        return rows

    def _written(self, asked: Iterable[Example]) -> Iterator[Prediction]:
        """Yield how texts and chats go on, or what an encoder's text is turned into."""
        from transformers import GenerationConfig  # takes a second to import

        turns = self.data.task == SEQ2SEQ
        spec = InputSpec(task=self.data.task, tokenizer=self.data.tokenizer, vocab_size=vocabulary(self.model))
        tokenizer = open_tokenizer(spec)
        of_base = self.model.generation_config
        begins = getattr(self.model.config, "decoder_start_token_id", None)
        for example in asked:
            ids = self._read(tokenizer, example) if turns else prompt_ids(tokenizer, example)
            check_ids(np.asarray(ids, dtype=np.int64), spec)
            if not turns and ends_within_token(tokenizer, example):
                self.spaced.append(example.location)
            if isinstance(example.content, Chat) and not self.data.info.chats:
                self.templated.append(example.location)
            ends = end_ids(tokenizer, of_base.eos_token_id, example)
            settings = GenerationConfig(
                do_sample=False,
                max_new_tokens=self._room(example, 1 if turns else len(ids)),  # a start token, or the text itself
                eos_token_id=ends or None,
                pad_token_id=tokenizer.pad_token_id,
                decoder_start_token_id=of_base.decoder_start_token_id if begins is None else begins,
            )
            given = torch.tensor([ids])
            with _greedy(self.model):
                made = self.model.generate(
                    input_ids=given,
                    attention_mask=torch.ones_like(given),
                    generation_config=settings,
                    logits_processor=[_Finite(example)],
                )
            written = made[0, 1 if turns else len(ids) :].tolist()  # a decoder's begin with its start token
            text = answer_text(tokenizer, example, [] if turns else ids, written, ends)
            yield Prediction(input=_said(example), text=text, unfinished=written[-1] not in ends)

    def _read(self, tokenizer: Any, example: Example) -> list[int]:
        """Token ids of what an encoder reads, cut as in training."""
        content = example.content
        text = content.prompt if isinstance(content, Completion) else str(content)
        ids, mask, longer = encode(tokenizer, [text], *self.data.shape(IDS))
        self.cut.extend(example.location for _ in longer)
        return [int(each) for each in ids[0][mask[0] == 1]]

    def _room(self, example: Example, tokens: int) -> int:
        """Tokens that may follow, within the model's positions."""
        most = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if most is not None and tokens >= most:
            raise Refused(f"{example.location}: it has {tokens} tokens, and the model takes {most}; shorten it")
        return self.new_tokens if most is None else min(self.new_tokens, most - tokens)


@dataclass(frozen=True)
class _Finite:
    """Refuses logits that have no largest number: of those of NaN, generation would take any."""

    example: Example

    def __call__(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        if not logits.max().isfinite():
            raise _diverged(self.example)
        return logits


def _diverged(example: Example) -> Refused:
    return Refused(f"{example.location}: the model's output is not finite; it diverged in training")


@contextmanager
def _greedy(model: Any) -> Iterator[None]:
    """Take a model's own generation settings away, such as beams and penalties, which fill in for those not given."""
    from transformers import GenerationConfig

    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    kept = plain.generation_config
    plain.generation_config = GenerationConfig()
    try:
        yield
    finally:
        plain.generation_config = kept


def _said(example: Example) -> str:
    content = example.content
    if isinstance(content, Chat):
        return str(content.messages[-1]["content"])
    if isinstance(content, Completion):
        return content.prompt
    return content if isinstance(content, str) else example.location
