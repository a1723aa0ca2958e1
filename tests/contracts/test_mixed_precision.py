"""The settings of mixed precision, and what does not go with it."""

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.run_config import DataRequest, ModelRequest, RunConfig, StrategyRequest
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import Refused

MODEL = {"model_type": "bert"}


def model(**changes: str) -> ModelRequest:
    """Return a model in bf16."""
    return ModelRequest(**{"task": "causal-lm", "config": MODEL, "mixed_precision": "bf16", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mixed_precision": "int8"}, "mixed_precision.*bf16, fp16"),
        ({"mixed_precision": "fp16", "precision": "float64"}, "fp16 trains float32 weights, but precision is float64"),
        ({"precision": "float64"}, "precision is float64"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_words(changes: dict[str, str], said: str) -> None:
    """An unknown type and float64 weights are refused with what to give instead."""
    with pytest.raises(Refused, match=said):
        model(**changes)


@pytest.mark.parametrize("mixed", ["bf16", "fp16"])
def test_compressed_links_are_measured_in_mixed_precision_too(mixed: str) -> None:
    """A strategy that compresses has the codecs' seconds measured, whatever crosses the links."""
    strategy = StrategyRequest(name="fusionllm", options={"compression_ratio": 10.0})
    data, training = DataRequest(source="stdlib-sources"), TrainingRequest(rounds=1)
    made = RunConfig(name="a", model=model(mixed_precision=mixed), data=data, training=training, strategy=strategy)
    assert made.profile.codecs


def test_models_without_it_keep_their_keys() -> None:
    """A request that does not ask for it is written as before, so that stored results are found again."""
    assert "mixed_precision" not in json_io.text(ModelRequest(task="causal-lm", config=MODEL))
    assert "bf16" in json_io.text(model())
