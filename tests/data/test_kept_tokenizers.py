"""The folder of the tokenizer beside prepared data opens as the model's own does."""

from pathlib import Path

import pytest

from fleetune.contracts.input_spec import InputSpec
from tests.support.data.hub_tokenizers import KINDS, TEXTS, hub_tokenizer, opened
from tests.support.data.samples import json_lines, prepared

OLDEST = ["bert", "distilbert", "roberta", "bart", "gpt2"]
"""Types whose folders may have vocabularies alone."""


@pytest.mark.parametrize(("kind", "one_file"), [*((kind, True) for kind in KINDS), *((kind, False) for kind in OLDEST)])
def test_prepared_data_have_the_models_own_tokenizer(kind: str, one_file: bool, tmp_path: Path) -> None:
    """Bug: the folder had the settings of the model's and not its type, by which transformers finds the class where
    the settings name none, or another: special tokens were gone, texts were split otherwise, and `predict` was refused
    or asked with other tokens than those of training."""
    base = hub_tokenizer(tmp_path / "base", kind, one_file, padding_side="left")
    spec = InputSpec(task="causal-lm", tokenizer=base, vocab_size=400, pretrained=True)
    rows = json_lines(tmp_path / "rows.jsonl", [{"text": text} for text in TEXTS])
    data = prepared(tmp_path / "data", rows, spec)
    assert data.tokenizer is not None
    assert opened(data.tokenizer) == opened(base)
