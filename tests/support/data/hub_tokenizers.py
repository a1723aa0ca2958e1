"""Small tokenizers in folders as the hub has them: settings of a line, and no map of special tokens."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

TEXTS = [f"the Quick brown fox {number} jumps over 123 lazy dogs" for number in range(40)]
BERTS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTAS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
GPTS = ["<|endoftext|>"]
LLAMAS = ["<unk>", "<s>", "</s>"]


def pieces(tokens: list[str]) -> Tokenizer:
    """Lower-case words and their parts, as BERT's."""
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer, core.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    core.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=120, special_tokens=tokens))
    marks = [(mark, tokens.index(mark)) for mark in ("[CLS]", "[SEP]")]
    core.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
    return core


def letters(tokens: list[str]) -> Tokenizer:
    """Bytes and what they merge to, as GPT-2's."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=tokens, initial_alphabet=alphabet)
    core.train_from_iterator(TEXTS, trainer)
    return core


def digits(tokens: list[str]) -> Tokenizer:
    """`letters` whose file parts digits, as StarCoder's and Granite's do, which GPT-2's class does not."""
    core = letters(tokens)
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), core.pre_tokenizer])
    return core


def prepended(tokens: list[str]) -> Tokenizer:
    """A sign before each text and in place of each space, as in older files of Mistral, which Llama's class has
    otherwise."""
    core = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    core.decoder = decoders.Replace("\u2581", " ")
    core.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=120, special_tokens=tokens))
    return core


OTHER_CLASS = {"tokenizer_class": "GPT2Tokenizer", "eos_token": GPTS[0]}
LLAMAS_CLASS = {"tokenizer_class": "LlamaTokenizer", "legacy": False, "eos_token": "</s>", "unk_token": "<unk>"}
KINDS: dict[str, tuple[Callable[[list[str]], Tokenizer], list[str], dict[str, Any]]] = {
    "bert": (pieces, BERTS, {"do_lower_case": True, "model_max_length": 512}),
    "distilbert": (pieces, BERTS, {"do_lower_case": True, "model_max_length": 512}),
    "roberta": (letters, ROBERTAS, {"model_max_length": 512}),
    "bart": (letters, ROBERTAS, {"model_max_length": 1024}),
    "gpt2": (letters, GPTS, {"model_max_length": 1024}),
    "gpt_bigcode": (digits, GPTS, OTHER_CLASS),
    "granite": (digits, GPTS, OTHER_CLASS),
    "olmo2": (digits, GPTS, OTHER_CLASS),
    "mistral": (prepended, LLAMAS, LLAMAS_CLASS),
    "phi3": (prepended, LLAMAS, LLAMAS_CLASS),
    "llava": (prepended, LLAMAS, LLAMAS_CLASS),
}
"""Type of a model -> what makes its tokenizer, of which special tokens, and its settings. From gpt_bigcode on, these
name a class that transformers does not take for the type."""


def hub_tokenizer(folder: Path, kind: str, one_file: bool = True, **more: Any) -> Path:
    """Write the tokenizer of a type of model into its folder, which gets a config.json if it has none.

    one_file: False leaves out tokenizer.json, as the oldest folders do; more: further settings.
    """
    make, tokens, settings = KINDS[kind]
    folder.mkdir(exist_ok=True)
    core = make(tokens)
    core.model.save(str(folder))
    if one_file:
        core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **more}))
    if not (folder / "config.json").exists():
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    return folder


def opened(folder: Path) -> dict[str, Any]:
    """What transformers makes of a folder's tokenizer: its class, special tokens and sides, the tokens of a text, and
    all steps by which it splits texts."""
    found = AutoTokenizer.from_pretrained(folder)
    return {
        "class": type(found).__name__,
        "special tokens": found.special_tokens_map,
        "sides": (found.padding_side, found.truncation_side),
        "longest": found.model_max_length,
        "tokens": found.convert_ids_to_tokens(found("A Fox 123")["input_ids"]),
        "steps": found.backend_tokenizer.to_str(),
    }
