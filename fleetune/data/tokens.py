"""Texts as token ids: with the model's own tokenizer, or byte by byte where there is none."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fleetune.data.needs import InputNeeds
from fleetune.errors import Refused

Ids = np.ndarray[Any, np.dtype[np.int64]]
SPECIAL = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}


def open_tokenizer(needs: InputNeeds) -> Any:
    """A transformers tokenizer that pads on the right and has a token to pad with."""
    tokenizer = _byte_level(needs) if needs.tokenizer is None else _from_folder(needs.tokenizer)
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if tokenizer.pad_token is None:
        fallback = tokenizer.eos_token or tokenizer.unk_token
        if fallback is None:
            raise Refused(f"{needs.tokenizer}: the tokenizer has no token to pad with; give it a pad_token")
        tokenizer.pad_token = fallback
    return tokenizer


def encode(tokenizer: Any, texts: list[str], length: int) -> tuple[Ids, Ids]:
    """(token ids, attention mask), both [texts, length]: longer texts are cut, shorter ones padded."""
    found = tokenizer(texts, padding="max_length", truncation=True, max_length=length, return_attention_mask=True)
    return np.asarray(found["input_ids"], dtype=np.int64), np.asarray(found["attention_mask"], dtype=np.int64)


def encode_closed(tokenizer: Any, texts: list[str], length: int) -> tuple[Ids, Ids]:
    """`encode` for a model that goes on with a text: whole texts end with the token that ends texts, cut ones do not.

    A text that never ends in training never ends in generation either.
    """
    end = _end(tokenizer)
    rows = np.full((len(texts), length), tokenizer.pad_token_id, dtype=np.int64)
    mask = np.zeros_like(rows)
    for row, ids in enumerate(tokenizer(texts, verbose=False)["input_ids"]):
        closed = ids if end is None or ids[-1:] == [end] else [*ids, end]
        kept = closed[:length]
        rows[row, : len(kept)], mask[row, : len(kept)] = kept, 1
    return rows, mask


def document(tokenizer: Any, text: str) -> Ids:
    """The ids of a whole text, closed by the token that ends texts (if the tokenizer has one)."""
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    end = _end(tokenizer)
    return np.asarray([*ids] if end is None else [*ids, end], dtype=np.int64)


def check_ids(ids: Ids, needs: InputNeeds) -> None:
    """Refuse ids that the model's embedding does not have."""
    highest = int(ids.max(initial=0))
    if needs.vocab_size is not None and highest >= needs.vocab_size:
        raise Refused(
            f"data: the tokenizer gives token {highest}, but the model's vocab_size is {needs.vocab_size}; "
            f"set model.config.vocab_size to at least {highest + 1} or use the model's own tokenizer"
        )


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """A standard tokenizer folder; where it was read from is left out, so that equal tokenizers give equal bytes."""
    tokenizer.init_kwargs.pop("name_or_path", None)
    tokenizer.name_or_path = ""
    tokenizer.save_pretrained(folder)


def _from_folder(folder: Path) -> Any:
    from transformers import AutoTokenizer  # seconds to import, and only prepare needs it

    if not folder.is_dir():
        raise Refused(f"{folder}: no tokenizer folder; give the folder of a saved tokenizer")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a damaged file may fail in any of a dozen parsers
        if not (folder / "tokenizer.json").exists() and any(folder.glob("*.model")) and not find_spec("sentencepiece"):
            raise Refused(
                f"{folder}: its tokenizer is a SentencePiece model, which needs the package sentencepiece; run `pip "
                "install sentencepiece`, or put the model's tokenizer.json beside it"
            ) from None
        reason = str(error).strip().split("\n", 1)[0][:200]
        raise Refused(f"{folder}: the tokenizer cannot be loaded ({reason}); save it again") from None


def _end(tokenizer: Any) -> int | None:
    """The token that ends texts; where there is none, the one that ends a part of them."""
    found = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    return None if found is None else int(found)


def _byte_level(needs: InputNeeds) -> Any:
    """One token per byte, after pad, bos, eos and unk; a sample is <bos> bytes <eos>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens = [*SPECIAL.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    if needs.vocab_size is not None and needs.vocab_size < len(tokens):
        raise Refused(
            f"data: the model's vocab_size is {needs.vocab_size}, but text split into bytes needs {len(tokens)} "
            f"tokens; set model.config.vocab_size to at least {len(tokens)}"
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=SPECIAL["unk_token"]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[(token, vocabulary[token]) for token in ("<bos>", "<eos>")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, **SPECIAL)
