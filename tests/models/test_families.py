"""Families that need a way of their own, cut between all units, train for two steps like the whole model in a plain
loop; `python -m benchmarks.families` does the same for every family of transformers.
"""

from typing import Any

import pytest
import torch

from benchmarks.families.small_configs import small_config
from benchmarks.families.trial import BITWISE, REFUSED, try_family
from fleetune.contracts.run_config import ModelRequest
from fleetune.errors import Refused
from fleetune.models.model_inputs import input_spec
from fleetune.models.operations import at_mark
from fleetune.models.source import configuration

TEXT, LANGUAGE = "sequence-classification", "causal-lm"


@pytest.mark.parametrize(
    "task, model_type",
    [
        pytest.param(LANGUAGE, "qwen3_5", id="settings-of-a-text-part"),
        pytest.param(LANGUAGE, "llama4_text", id="complex-numbers-cross-cuts"),
        pytest.param(TEXT, "bart", id="one-end-token-is-read"),
    ],
)
def test_a_family_trains_bit_by_bit(task: str, model_type: str) -> None:
    """Two steps with cuts between all units change all weights as a plain loop does."""
    found = try_family(task, small_config(model_type))
    assert (found.status, found.layers) == (BITWISE, False), found


def test_layers_are_the_units_where_blocks_cannot_be() -> None:
    """Gemma 4's blocks hand on a dictionary, so they cannot be sent; its layers train bit by bit."""
    config = small_config("gemma4_text") | {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    found = try_family(LANGUAGE, config)
    assert (found.status, found.layers) == (BITWISE, True), found


@pytest.mark.parametrize("marks", [[[True, False], [False, False]], [[True, True], [False, True]]])
def test_a_text_without_its_one_end_token_is_refused(marks: list[list[bool]]) -> None:
    """A classifier that reads the end token of each text has no other answer for a text with none or several."""
    with pytest.raises(Refused, match=r"reads the one end token of each text, but a text has (0|2); give texts that"):
        at_mark(torch.zeros(2, 2, 3), torch.tensor(marks))


def test_settings_of_a_text_part_are_found_and_set() -> None:
    """In a model of several parts the text part's vocabulary and positions limit the data, and it keeps no cache."""
    nested = {"text_config": {"model_type": "qwen3_5_text", "vocab_size": 999, "max_position_embeddings": 77}}
    request = ModelRequest(task=LANGUAGE, config={"model_type": "qwen3_5", **nested})
    assert (input_spec(request).vocab_size, input_spec(request).max_positions) == (999, 77)
    assert configuration(request).use_cache is False


def test_a_setting_that_differs_between_layers_can_be_given() -> None:
    """Bug: reading Gemma 4's head_dim raised the configuration's own error."""
    config = configuration(ModelRequest(task=LANGUAGE, config={"model_type": "gemma4_text", "head_dim": 16}))
    assert config.to_dict()["head_dim"] == 16


HALF = 4
"""Half of the numbers of a head in a small configuration."""
STRETCHED = {"rope_theta": 1e4, "original_max_position_embeddings": 6}


@pytest.mark.parametrize(
    ("model_type", "rope", "status"),
    [
        ("llama", {"rope_type": "yarn", "factor": 4.0, **STRETCHED}, BITWISE),
        (
            "llama",
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **STRETCHED},
            BITWISE,
        ),
        (
            "phi3",
            {"rope_type": "longrope", "short_factor": [1.0] * HALF, "long_factor": [3.0] * HALF, **STRETCHED},
            BITWISE,
        ),
        ("llama", {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}, REFUSED),
    ],
    ids=["yarn", "llama3", "longrope", "dynamic"],
)
def test_positions_beyond_the_original_length(model_type: str, rope: dict[str, Any], status: str) -> None:
    """Twelve tokens where the model was made for six: stretched positions are the model's own, and those that depend
    on the longest text of all so far are refused."""
    config = small_config(model_type) | {"rope_parameters": rope, "max_position_embeddings": 64}
    if model_type == "phi3":
        config |= {"original_max_position_embeddings": 6, "pad_token_id": 0, "eos_token_id": 1}
    found = try_family(LANGUAGE, config)
    assert found.status == status, found
