"""A text may have as many tokens as the model has usable positions, and no more."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from benchmarks.families.small_configs import small_config
from fleetune.contracts.run_config import ModelRequest
from fleetune.models.model_inputs import input_spec
from fleetune.models.source import configuration

LANGUAGE, TEXT = "causal-lm", "sequence-classification"
AUTO = {LANGUAGE: AutoModelForCausalLM, TEXT: AutoModelForSequenceClassification}
FAMILIES = [
    *[(TEXT, kind) for kind in (
        "bert", "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm",
        "mpnet", "mra", "nystromformer", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
        "yoso",
    )],
    *[(LANGUAGE, kind) for kind in ("bart", "biogpt", "gpt2", "opt", "roberta", "xlm-roberta-xl")],
]  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8},
    "lilt": {"hidden_size": 48},
    "longformer": {"attention_window": [8, 8]},
    "xmod": {"default_language": "en_XX"},
}


@pytest.mark.parametrize(("task", "kind"), FAMILIES)
@pytest.mark.parametrize("padding", [None, 3])
def test_the_usable_positions_are_those_that_the_model_has(task: str, kind: str, padding: int | None) -> None:
    """Bug: of six families with positions behind the index of padding, too many were told (MPNet: 34 for 32), and texts
    ended in an IndexError. The model itself computes a text of that length, and none that is a token longer."""
    config = {**small_config(kind), "max_position_embeddings": 34, **MORE.get(kind, {})}
    if padding is not None:
        config["pad_token_id"] = padding
    request = ModelRequest(task=task, config=config)
    most = input_spec(request).max_positions
    assert most is not None
    model: Any = AUTO[task].from_config(configuration(request, ("a", "b") if task == TEXT else ())).eval()
    assert model(input_ids=torch.full((1, most), 5)).logits.isfinite().all()
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        model(input_ids=torch.full((1, most + 1), 5))
