"""Text inputs: the model's own tokenizer, or one token per byte if it has none; token arrays and packed documents."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fleetune.contracts.input_spec import IGNORE_INDEX, InputSpec
from fleetune.data.examples import Example
from fleetune.data.labels import LabelMapping, label_array, label_info
from fleetune.data.prepared_data import IDS, LABELS, MASK, POSITIONS, Array, ArrayInfo
from fleetune.data.public_words import Told
from fleetune.errors import first_line

CHAT_TEMPLATE, TOKENIZER_CONFIG = "chat_template", "tokenizer_config.json"
TOKENIZER_SETTINGS = (
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
)
"""Files of tokenizers of any kind, apart from their settings and vocabularies. By the type of model in config.json,
transformers takes a tokenizer's class, where its settings name none, or one that it does not take for the type."""
Ids = np.ndarray[Any, np.dtype[np.int64]]
MOST_UNKNOWN, UNKNOWN_ROWS = 0.1, 4096
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}


@dataclass(frozen=True, kw_only=True)
class TextEncoder:
    """Encodes texts: ids and masks [samples, length]; labels [samples], or [samples, length] for causal-lm."""

    tokenizer: Any
    length: int
    spec: InputSpec
    classes: LabelMapping
    cut: list[str] = field(default_factory=list)
    """Locations of the texts that were longer."""
    tokens: Counter[str] = field(default_factory=Counter)
    """Of causal-lm, how many there are, and how many of them are lost to the cuts."""

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """Describe the arrays that hold `samples` samples."""
        causal = self.spec.task == "causal-lm"
        labels = None if causal else label_info(samples, self.spec.task, self.classes)
        return token_arrays(samples, self.length, labels)

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """Return the rows of a chunk by array name."""
        causal = self.spec.task == "causal-lm"
        texts = [str(example.content) for example in chunk]
        if causal:
            ids, mask, lengths = _encode_with_end(self.tokenizer, texts, self.length)
            longer = [row for row, tokens in enumerate(lengths) if tokens > self.length]
            lost = sum(lengths[row] - self.length for row in longer)
            self.tokens.update({"all": sum(lengths), "lost": lost})
        else:
            ids, mask, longer = encode(self.tokenizer, texts, self.length)
        check_ids(ids, self.spec)
        self.cut.extend(chunk[row].location for row in longer)
        if causal:
            return {IDS: ids, MASK: mask, LABELS: causal_labels(ids, mask)}
        return {IDS: ids, MASK: mask, LABELS: label_array(chunk, self.spec.task, self.classes)}

    def notes(self, total: int) -> Iterator[str]:
        """A sentence if some of `total` texts are longer than the model is to see them."""
        if self.cut:
            lost, tokens = self.tokens["lost"], self.tokens["all"]
            share = f", by which {lost / tokens:.1%} of all tokens are lost; data.packing reads them" if lost else ""
            yield f"{len(self.cut)} of {total} texts are longer than max_length {self.length} and are cut{share}"


def token_arrays(
    samples: int, length: int, labels: ArrayInfo | None = None, packed: bool = False
) -> tuple[ArrayInfo, ...]:
    """Describe the arrays of a text task as they are stored on disk; without `labels`, each token has one."""
    shape = (samples, length)
    return (
        ArrayInfo(name=IDS, dtype="int32", shape=shape),
        ArrayInfo(name=POSITIONS if packed else MASK, dtype="int32" if packed else "uint8", shape=shape),
        labels or ArrayInfo(name=LABELS, dtype="int32", shape=shape),
    )


def causal_labels(ids: Ids, mask: Ids) -> Ids:
    """Labels for next-token prediction: the ids themselves (the loss shifts them), IGNORE_INDEX on padding."""
    return np.where(mask == 1, ids, IGNORE_INDEX)


def pack_documents(
    tokenizer: Any, texts: Iterator[str], length: int, limit: int | None, spec: InputSpec
) -> dict[str, Array]:
    """Concatenate documents and cut them into blocks: input_ids, attention_mask and labels, each [blocks, length].

    Stops once `limit` blocks are full, so a small sample does not tokenize everything. Only the last block is padded.
    Keeps all blocks in memory: the packed set is the standard library, 50 MB at most.
    """
    wanted = None if limit is None else limit * length
    pieces: list[Ids] = []
    tokens = 0
    for text in texts:
        piece = document_ids(tokenizer, text)
        check_ids(piece, spec)
        pieces.append(piece)
        tokens += len(piece)
        if wanted is not None and tokens >= wanted:
            break
    line = np.concatenate(pieces)[:wanted]
    blocks = -(-len(line) // length)
    padded = np.full(blocks * length, tokenizer.pad_token_id, dtype=np.int64)
    padded[: len(line)] = line
    ids: Ids = padded.reshape(blocks, length)
    mask: Ids = (np.arange(blocks * length) < len(line)).astype(np.int64).reshape(blocks, length)
    return {IDS: ids, MASK: mask, LABELS: causal_labels(ids, mask)}


def open_tokenizer(spec: InputSpec) -> Any:
    """Open a transformers tokenizer that pads on the right and has a padding token.

    It truncates texts to be classified or translated on its own side; what a model goes on with is cut at its end.
    """
    return for_training(own_tokenizer(spec), spec)


def own_tokenizer(spec: InputSpec) -> Any:
    """Open the model's tokenizer as it is, or one with a token for each byte."""
    return _byte_tokenizer(spec) if spec.tokenizer is None else _from_folder(spec.tokenizer)


def for_training(tokenizer: Any, spec: InputSpec) -> Any:
    """The tokenizer, which from now on pads on the right, by a token that it and the model have."""
    tokenizer.padding_side = "right"
    padding = with_padding(tokenizer, spec).pad_token_id
    if spec.vocab_size is not None and padding >= spec.vocab_size:
        raise Told(
            "data: the tokenizer pads with token {padding}, but the model's vocab_size is {vocab_size}; give the "
            "tokenizer a pad_token that the model has, or {way}",
            padding=padding,
            vocab_size=spec.vocab_size,
            way=_larger_vocabulary(spec),
        )
    return tokenizer


def with_padding(tokenizer: Any, spec: InputSpec) -> Any:
    """The tokenizer, which from now on has a padding token."""
    if tokenizer.pad_token is None:
        fallback = tokenizer.eos_token or tokenizer.unk_token
        if fallback is None:
            raise Told(
                "{tokenizer}: the tokenizer has no token to pad with; give it a pad_token",
                tokenizer=spec.tokenizer,
            )
        tokenizer.pad_token = fallback
    return tokenizer


def with_chat_template(tokenizer: Any, path: Path | None) -> Any:
    """The tokenizer with the chat template of a file, if one is given; Refused: it cannot be read."""
    if path is not None:
        tokenizer.chat_template = chat_template_text(path)
    return tokenizer


def chat_template_text(path: Path) -> str:
    """Content of a chat template's file; Refused: it cannot be read, or is empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Told("data: chat_template {} cannot be read ({}); give a Jinja file", path, first_line(error)) from None
    if not text.strip():
        raise Told("data: chat_template {} is empty; give a Jinja file", path)
    return text


def encode(tokenizer: Any, texts: list[str], length: int, *, target: bool = False) -> tuple[Ids, Ids, list[int]]:
    """(token ids, attention mask, numbers of the texts that were longer and are truncated); the first two are [texts,
    length], and shorter texts are padded. target: a decoder writes the texts, which may have a language of their own.
    """
    marks = own_marks(tokenizer)
    texts = [without_marks(text, marks) for text in texts]
    given = {"text_target" if target else "text": texts}
    found = tokenizer(**given, padding="max_length", truncation=True, max_length=length, return_attention_mask=True)
    if found.encodings is None:  # a tokenizer in Python alone does not tell
        longer = [
            number for number, ids in enumerate(tokenizer(**given, verbose=False)["input_ids"]) if len(ids) > length
        ]
    else:
        longer = [number for number, one in enumerate(found.encodings) if one.overflowing]
    return np.asarray(found["input_ids"], dtype=np.int64), np.asarray(found["attention_mask"], dtype=np.int64), longer


def _encode_with_end(tokenizer: Any, texts: list[str], length: int) -> tuple[Ids, Ids, list[int]]:
    """`encode` for causal models: complete texts end with the end token, truncated texts do not. The last list is of
    the number of tokens of each whole text, but for its end token.

    Without end tokens in training, a model never learns to stop generating.
    """
    end = end_token_id(tokenizer)
    rows = np.full((len(texts), length), tokenizer.pad_token_id, dtype=np.int64)
    mask = np.zeros_like(rows)
    lengths, marks = [], own_marks(tokenizer)
    texts = [without_marks(text, marks) for text in texts]
    for row, ids in enumerate(tokenizer(texts, verbose=False)["input_ids"]):
        closed = ids if end is None or ids[-1:] == [end] else [*ids, end]
        lengths.append(len(closed) - (end is not None))
        kept = closed[:length]
        rows[row, : len(kept)], mask[row, : len(kept)] = kept, 1
    return rows, mask, lengths


def document_ids(tokenizer: Any, text: str) -> Ids:
    """Ids of a whole text as the tokenizer begins and ends it, and the end token if it has one and puts none."""
    ids = tokenizer(without_marks(text, own_marks(tokenizer)), verbose=False)["input_ids"]
    end = end_token_id(tokenizer)
    return np.asarray([*ids] if end is None or ids[-1:] == [end] else [*ids, end], dtype=np.int64)


def own_marks(tokenizer: Any) -> tuple[str, str]:
    """The tokens, as texts, that a tokenizer puts before and after each text by itself; empty where it puts none."""
    if getattr(tokenizer, "split_special_tokens", False):  # then they are letters in a text
        return "", ""
    around = tokenizer("a", verbose=False)["input_ids"]
    first = next((token for token in (tokenizer.bos_token, tokenizer.cls_token) if token), None)
    last = next((token for token in (tokenizer.eos_token, tokenizer.sep_token) if token), None)
    begins = first is not None and around[:1] == [tokenizer.convert_tokens_to_ids(first)]
    ends = last is not None and around[-1:] == [tokenizer.convert_tokens_to_ids(last)]
    return (first or "") if begins else "", (last or "") if ends else ""


def without_marks(text: str, marks: tuple[str, str]) -> str:
    """A text without the marks of `own_marks` that it has already: the tokenizer puts them there once more."""
    return text.removeprefix(marks[0]).removesuffix(marks[1])


def check_length(tokenizer: Any, key: str, length: int) -> None:
    """Raise Refused for a length of samples that the tokenizer's own marks fill, so that no text is left."""
    marks = int(tokenizer.num_special_tokens_to_add())
    if length <= marks:
        raise Told(
            "data: {key} is {length}, and the tokenizer puts {marks} tokens of its own around each text; give at least "
            "{least}",
            key=key,
            length=length,
            marks=marks,
            least=marks + 1,
        )


def check_ids(ids: Ids, spec: InputSpec) -> None:
    """Raise Refused for ids beyond the model's vocabulary."""
    highest = int(ids.max(initial=0))
    if spec.vocab_size is not None and highest >= spec.vocab_size:
        raise Told(
            "data: the tokenizer gives token {}, but the model's vocab_size is {vocab_size}; use the model's own "
            "tokenizer, or {way}",
            highest,
            vocab_size=spec.vocab_size,
            way=_larger_vocabulary(spec),
        )


def _larger_vocabulary(spec: InputSpec) -> str:
    if spec.pretrained:
        return "load the model with transformers, call resize_token_embeddings(len(tokenizer)) and save_pretrained"
    return "set model.config.vocab_size to as many as the tokenizer has"


def asked_ids(tokenizer: Any, prompt: str) -> list[int]:
    """Ids of a prompt as the model is asked with it: behind the tokenizer's own begin, without its own end."""
    begun = prompt.removeprefix(own_marks(tokenizer)[0])
    ids, of_letter = (list(map(int, tokenizer(each, verbose=False)["input_ids"])) for each in (begun, "a"))
    return ids[:-1] if of_letter[-1:] == [end_token_id(tokenizer)] else ids  # the tokenizer's own, not that of the text


def save_tokenizer(
    tokenizer: Any, folder: Path, origin: Path | None = None, given: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Save a standard tokenizer folder without the path of its origin, so that equal tokenizers give equal bytes.

    origin: the folder that it was opened from. Its files are taken as they are, since other programs read more of them
    than transformers writes, and so are their settings apart from `given`: a `pad_token`, a `chat_template`.
    """
    tokenizer.init_kwargs.pop("name_or_path", None)
    tokenizer.name_or_path = ""
    tokenizer.save_pretrained(folder)
    if origin is None:
        return
    for name in dict.fromkeys((*tokenizer.vocab_files_names.values(), *TOKENIZER_SETTINGS)):
        if (origin / name).is_file() and not (CHAT_TEMPLATE in given and name.startswith(CHAT_TEMPLATE)):
            shutil.copyfile(origin / name, folder / name)
    if (origin / TOKENIZER_CONFIG).is_file():
        settings = json.loads((origin / TOKENIZER_CONFIG).read_bytes())  # transformers has read it before
        kept = {key: value for key, value in settings.items() if key not in ("name_or_path", *given)}
        told = {key: value for key, value in given.items() if key != CHAT_TEMPLATE}  # it has a file of its own
        text = json.dumps({**kept, **told}, indent=2, ensure_ascii=False) + "\n"
        (folder / TOKENIZER_CONFIG).write_text(text, encoding="utf-8")


def _from_folder(folder: Path) -> Any:
    from transformers import AutoTokenizer  # takes seconds to import, and only preparation needs it

    if not folder.is_dir():
        raise Told("{}: no tokenizer folder; give the folder of a saved tokenizer", folder)
    try:
        found = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # each of a dozen parsers raises its own error types
        if not (folder / "tokenizer.json").exists() and any(folder.glob("*.model")) and not find_spec("sentencepiece"):
            raise Told(
                "{}: its tokenizer is a SentencePiece model, which needs the package sentencepiece; run `pip "
                "install sentencepiece`, or put the model's tokenizer.json beside it",
                folder,
            ) from None
        reason = str(error).strip().split("\n", 1)[0][:200]
        raise Told("{}: the tokenizer cannot be loaded ({}); save it again", folder, reason) from None
    dropout = getattr(found.backend_tokenizer.model, "dropout", None) if found.is_fast else None
    if dropout:
        raise Told(
            "{}: its tokenizer.json leaves out merges at random (dropout {dropout:g}), so that a text has other tokens "
            "each time; set dropout to null there",
            folder,
            dropout=dropout,
        )
    _check_vocabulary(found, folder)
    return found


def _check_vocabulary(tokenizer: Any, folder: Path) -> None:
    """Refuse a tokenizer without the file of its words, each of which transformers then reads as unknown."""
    if len(tokenizer.get_vocab().keys() - {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}) > 1:
        return  # T5's has one of no file
    own = " and ".join(name for kind, name in tokenizer.vocab_files_names.items() if kind != "tokenizer_file")
    raise Told(
        "{}: its tokenizer has no vocabulary, and would read every word as unknown; copy {files} into it, from where "
        "the model comes",
        folder,
        files=" or ".join(filter(None, ("tokenizer.json", own))),
    )


def unknown_notes(tokenizer: Any, ids: Array) -> Iterator[str]:
    """A sentence if the tokenizer knows little of the texts, whose first rows of ids [texts, length] tell of all."""
    unknown, rows = tokenizer.unk_token_id, ids[:UNKNOWN_ROWS]
    if unknown in (None, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id):
        return
    share = (rows == unknown).sum() / (rows != tokenizer.pad_token_id).sum()
    if share > MOST_UNKNOWN:
        yield (
            f"{share:.0%} of the tokens of the training texts stand for what the tokenizer does not know, such as "
            "letters of another script, and are all alike to the model; choose a base for these texts"
        )


def end_token_id(tokenizer: Any) -> int | None:
    """Id of the end-of-sequence token, else of the separator token, else None."""
    found = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    return None if found is None else int(found)


def _byte_tokenizer(spec: InputSpec) -> Any:
    """Build a tokenizer with one token per byte after pad, bos, eos and unk; a sample is <bos> bytes <eos>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens = [*SPECIAL_TOKENS.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    if spec.vocab_size is not None and spec.vocab_size < len(tokens):
        raise Told(
            "data: the model's vocab_size is {vocab_size}, but text split into bytes needs {} tokens; set "
            "model.config.vocab_size to at least {}",
            len(tokens),
            len(tokens),
            vocab_size=spec.vocab_size,
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=SPECIAL_TOKENS["unk_token"]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[(token, vocabulary[token]) for token in ("<bos>", "<eos>")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, **SPECIAL_TOKENS)
