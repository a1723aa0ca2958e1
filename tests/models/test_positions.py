"""A text may have as many tokens as the model has usable positions, and no more."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from benchmarks.families.small_configs import small_config
from fleetune.contracts.run_config import ModelRequest
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model, write_init_weights
from fleetune.models.model_inputs import input_spec
from fleetune.models.source import configuration

LANGUAGE, TEXT, PAIRS = "causal-lm", "sequence-classification", "seq2seq"
AUTO = {LANGUAGE: AutoModelForCausalLM, TEXT: AutoModelForSequenceClassification, PAIRS: AutoModelForSeq2SeqLM}
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


DISTANCES = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_position_embeddings": 16}
ANY_LENGTH: list[tuple[str, str, dict[str, Any]]] = [
    (PAIRS, "t5", {"n_positions": 16}),
    (TEXT, "t5", {"n_positions": 16, "decoder_start_token_id": 0}),
    (TEXT, "deberta-v2", {**DISTANCES, "position_biased_input": False, "position_buckets": 4}),
    (TEXT, "deberta", {**DISTANCES, "position_biased_input": False}),
    (LANGUAGE, "falcon", {"alibi": True, "max_position_embeddings": 16}),
]


@pytest.mark.parametrize(("task", "kind", "told"), ANY_LENGTH)
def test_distances_alone_limit_no_text(task: str, kind: str, told: dict[str, Any], tmp_path: Path) -> None:
    """Bug: texts beyond a number in config.json that T5 does not know, or that DeBERTa and Falcon have for nothing but
    distances, were refused, though transformers computes them; what is trained computes the same."""
    torch.manual_seed(0)
    AUTO[task].from_config(AutoConfig.for_model(**small_config(kind) | told)).save_pretrained(tmp_path)
    request = ModelRequest(task=task, source=str(tmp_path))
    assert input_spec(request).max_positions is None
    config = configuration(request)
    write_init_weights(config, request, 0, tmp_path / INIT_WEIGHTS)
    ours, theirs = initial_model(config, request, tmp_path / INIT_WEIGHTS).eval(), AUTO[task].from_pretrained(tmp_path)
    long = torch.cat([torch.arange(7, 100), torch.tensor([1])])[None]  # T5 reads the end token of a text
    asked = {"input_ids": long, **({"decoder_input_ids": long} if task == PAIRS else {})}
    assert torch.equal(ours(**asked).logits, theirs.eval()(**asked).logits)


def test_a_table_beside_distances_limits_texts() -> None:
    """DeBERTa may have learned positions, too, of which there are so many."""
    config = {**small_config("deberta-v2"), **DISTANCES, "position_biased_input": True}
    assert input_spec(ModelRequest(task=TEXT, config=config)).max_positions == 16


def test_distances_of_a_table_limit_texts() -> None:
    """Bug: MPT has distances for so many tokens, of which nothing was told, so that a longer text ended in an error."""
    config = {**small_config("mpt"), "max_seq_len": 34}
    most = input_spec(ModelRequest(task=LANGUAGE, config=config)).max_positions
    assert most == 34
    model = AUTO[LANGUAGE].from_config(AutoConfig.for_model(**config)).eval()
    assert model(input_ids=torch.full((1, most), 5)).logits.isfinite().all()
    with pytest.raises(RuntimeError):
        model(input_ids=torch.full((1, most + 1), 5))
