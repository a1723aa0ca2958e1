"""Samples that are scored and were trained on are counted, or it is said why they cannot be."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.run_config import DataRequest
from fleetune.data.prepared_data import INFO, DataInfo, LocalInfo, PreparedData
from fleetune.data.seen_samples import seen_samples
from tests.support.data.chat_samples import chat_spec, chats
from tests.support.data.samples import FRUITS, json_lines, prepared, texts

ROWS = [{"text": f"{row['text']} of {box}", "label": row["label"]} for row in FRUITS for box in range(4)]


def test_another_split_of_the_same_rows(tmp_path: Path) -> None:
    """Of rows that are split anew, those are counted that the first split trains on; of its own test split none."""
    path = json_lines(tmp_path / "a.jsonl", ROWS)
    old, new = prepared(tmp_path / "old", path), prepared(tmp_path / "new", path, test_fraction=0.5)
    both = set(texts(old, "train")) & set(texts(new, "test"))
    told: list[tuple[float, float]] = []
    found = seen_samples(old, new, lambda what, done, total, unit="", detail="": told.append((done, total)))
    assert 0 < len(both) < new.size("test") and found == len(both)
    assert told[-1][0] == told[-1][1] == old.size("train") + new.size("test")
    assert seen_samples(old, old) == 0


def test_sequences_that_samples_share(tmp_path: Path) -> None:
    """A sequence counts if one of its samples was trained on, wherever packing has put it."""
    path, spec = json_lines(tmp_path / "r.jsonl", chats(60)), chat_spec(tmp_path / "t")
    old, new = (
        prepared(tmp_path / f"{share}", path, spec, max_length=96, packing=True, test_fraction=share)
        for share in (0.2, 0.5)
    )
    assert seen_samples(old, old) == 0
    assert 0 < int(seen_samples(old, new)) <= new.size("test")


def test_what_is_held_in_memory_is_of_the_test_split(tmp_path: Path) -> None:
    """Bug: every evaluation held a hash of each training sample, of which there may be many millions."""
    rows = [{"text": f"{word} {n}", "label": "no" if n % 2 else "yes"} for word in "abcde" for n in range(2000)]
    (tmp_path / "rows").mkdir()
    for split, part in (("train", rows), ("test", rows[:40])):
        json_lines(tmp_path / "rows" / f"{split}.jsonl", part)
    data = prepared(tmp_path / "d", tmp_path / "rows", max_length=8)
    tracemalloc.start()
    try:
        assert seen_samples(data, data) == 40
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 60 * len(rows), "a hash takes more"


def changed(data: PreparedData, **fields: Any) -> PreparedData:
    """The data, whose data.json says otherwise."""
    json_io.write(replace(json_io.read(DataInfo, data.folder / INFO), **fields), data.folder / INFO)
    return PreparedData(data.folder)


@pytest.mark.parametrize(
    ("fields", "length", "said"),
    [
        ({}, 32, "samples of another length or size"),
        ({"source": "stdlib-sources"}, 24, "cut into blocks"),
        ({"local": LocalInfo(request=DataRequest(source="local"), label_ids={}, sources=())}, 24, "stay on devices"),
    ],
)
def test_what_cannot_be_compared_is_said(fields: dict[str, Any], length: int, said: str, tmp_path: Path) -> None:
    """Of texts that are cut elsewhere, documents in blocks and data of devices nobody can tell, so no number is."""
    path = json_lines(tmp_path / "a.jsonl", ROWS)
    old = changed(prepared(tmp_path / "old", path), **fields)
    assert said in str(seen_samples(old, prepared(tmp_path / "new", path, max_length=length)))
