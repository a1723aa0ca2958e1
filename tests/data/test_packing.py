"""Samples that share sequences."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetune.contracts.input_spec import IGNORE_INDEX
from fleetune.contracts.run_config import DataRequest
from fleetune.data.chat_tokens import TokenSequence
from fleetune.data.prepared_data import PreparedData, sample_spans
from fleetune.data.sequences import packed_rows
from fleetune.data.sources import validate_data
from fleetune.errors import Refused
from tests.support.data.chat_samples import chat_spec, chats
from tests.support.data.samples import json_lines, prepared, whole


def samples(data: PreparedData) -> list[tuple[list[int], list[int]]]:
    """(tokens, labels after the first) of every training sample, sorted."""
    batch, found = whole(data, "train"), []
    for row, ids in enumerate(batch["input_ids"]):
        whole_row = [(0, int(batch["attention_mask"][row].sum()))] if not data.packed else []
        spans = whole_row or sample_spans(batch["position_ids"][row])
        for first, end in spans:
            if data.packed:
                assert batch["position_ids"][row][first:end].tolist() == list(range(end - first))
            found.append((ids[first:end].tolist(), batch["labels"][row][first + 1 : end].tolist()))
    return sorted(found)


@pytest.mark.parametrize(
    ("loss_on", "rows"),
    [
        ("completions", chats(60)),
        ("all", chats(60)),
        ("all", [{"text": "a text " * (1 + n % 7)} for n in range(60)]),
        ("completions", [{"prompt": "why? ", "completion": "so " * (1 + n % 9)} for n in range(60)]),
    ],
    ids=["chats", "chats, all of them", "texts", "completions"],
)
def test_packed_rows_hold_the_same_samples(loss_on: str, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    """Packing changes where samples lie and nothing about them; no first token and no padding carries loss.

    Bug: a model's card called the rows samples, of texts and completions longer than of chats.
    """
    source, spec = json_lines(tmp_path / "r.jsonl", rows), chat_spec(tmp_path / "t")
    alone = prepared(tmp_path / "a", source, spec, max_length=96, loss_on=loss_on)
    packed = prepared(tmp_path / "p", source, spec, max_length=96, loss_on=loss_on, packing=True)
    assert samples(alone) == samples(packed)
    assert packed.size("train") < alone.size("train") / 1.5
    assert alone.describe_size("train") == f"{alone.size('train')} samples"
    assert packed.describe_sizes().startswith(
        f"{alone.size('train')} samples in {packed.size('train')} sequences to train on, "
    )
    batch = whole(packed, "train")
    for row, positions in enumerate(batch["position_ids"]):
        inside = np.zeros(len(positions), dtype=bool)
        for first, end in sample_spans(positions):
            inside[first + 1 : end] = True
        assert (batch["labels"][row][~inside] == IGNORE_INDEX).all()


def test_a_long_text_is_read_to_its_end(tmp_path: Path) -> None:
    """Bug: of a document longer than max_length only the beginning trained, packed or not. Packed, each of its tokens
    is read, in samples of one split; else a note tells the share that is lost."""
    rows = [{"text": "".join(chr(97 + (n + k) % 26) for k in range(100 * (n % 3))) + f" end {n}"} for n in range(12)]
    source, spec = json_lines(tmp_path / "r.jsonl", rows), chat_spec(tmp_path / "t")
    data = prepared(tmp_path / "p", source, spec, max_length=33, packing=True)
    whole_texts = prepared(tmp_path / "w", source, spec, max_length=240, packing=True)
    for split in ("train", "test"):
        pieces, texts = (
            [ids for row, positions in zip(batch["input_ids"], batch["position_ids"], strict=True)
             for ids in (row[first:end].tolist() for first, end in sample_spans(positions))]
            for batch in (whole(data, split), whole(whole_texts, split))
        )  # fmt: skip
        for text in texts:
            parts = [text[at : at + 33] for at in range(0, len(text), 33)]
            assert all(part in pieces for part in parts), "to its last token"
        assert sum(map(len, pieces)) == sum(map(len, texts))
    assert any("train texts are longer than max_length 33, and are read as several" in note for note in data.info.notes)
    alone = prepared(tmp_path / "a", source, spec, max_length=33)
    assert any("8 of 12 texts are longer" in note and "of all tokens are lost" in note for note in alone.info.notes)


@pytest.mark.parametrize("tokens", [32, 33, 34, 35, 67])
def test_a_last_token_alone_is_learned(tokens: int) -> None:
    """Bug: of a text of one token more than samples have, the last one, by which texts end, was lost without a word."""
    ids = np.arange(tokens, dtype=np.int32)
    pieces = TokenSequence(ids, ids).pieces(33)
    lone = [[tokens - 2, tokens - 1]] if tokens % 33 == 1 else []
    parts = [ids[at : at + 33].tolist() for at in range(0, tokens, 33)]
    assert [piece.ids.tolist() for piece in pieces] == (parts[:-1] + lone if lone else parts)


def test_little_is_wasted() -> None:
    """Rows hold each sequence once and no more than fits; of 4000 tokens-long-tailed lengths at most 5 % is padding."""
    lengths = np.minimum(512, np.random.default_rng(0).lognormal(4.5, 0.8, 4000).astype(int) + 2).tolist()
    rows = packed_rows(lengths, 512)
    assert sorted(number for row in rows for number in row) == list(range(4000))
    assert max(sum(lengths[number] for number in row) for row in rows) <= 512
    assert 1 - sum(lengths) / (512 * len(rows)) <= 0.05


def test_positions_tell_samples_from_padding() -> None:
    """Samples of two tokens and more are found again from their positions, with and without padding behind them."""
    assert sample_spans(np.array([0, 1, 0, 1, 2, 0, 0])) == [(0, 2), (2, 5)]
    assert sample_spans(np.array([0, 1, 2, 0, 1])) == [(0, 3), (3, 5)]
    assert sample_spans(np.array([0, 0])) == []


def test_packing_is_for_rows_of_language_models(tmp_path: Path) -> None:
    """Packing of anything else is refused."""
    with pytest.raises(Refused, match=r"packing is for rows of causal-lm, but the task is image-classification"):
        validate_data(DataRequest(source="digits", packing=True), "image-classification")
    with pytest.raises(Refused, match=r"stdlib-sources fills sequences anyway"):
        validate_data(DataRequest(source="stdlib-sources", packing=True), "causal-lm")
