"""Which parameters weight decay leaves alone."""

from dataclasses import replace
from typing import Any

import pytest
from transformers.trainer import Trainer

from benchmarks.families.small_configs import small_config
from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.models.decay import undecayed_parameters
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from tests.support.training.model_families import FAMILIES, model_request

REQUESTS = {family.name: model_request(family, dropout=False) for family in FAMILIES} | {
    name: ModelRequest(task="causal-lm", config=small_config(name)) for name in ("qwen3", "gemma3_text", "olmo2")
}
REQUESTS["t5"] = ModelRequest(task="seq2seq", config=small_config("t5"))
REQUESTS["lora"] = replace(REQUESTS["bert"], lora=Lora(targets=("query",)))


@pytest.mark.parametrize("name", REQUESTS)
def test_biases_and_norms_do_not_decay(name: str) -> None:
    """The names are those that transformers' Trainer gives no decay: of every kind of norm, and below adapters."""
    request = REQUESTS[name]
    model = skeleton(configuration(request, ("a", "b")), request)
    unused: Any = None
    decayed = set(Trainer.get_decay_parameter_names(unused, model))
    assert undecayed_parameters(model) == {n for n, _ in model.named_parameters() if n not in decayed}
