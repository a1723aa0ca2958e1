"""A folder of text and vision whose type is among those of causal-lm, too: from the folder to the model handed over."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from benchmarks.families.small_configs import small_config
from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.contracts.training_request import TrainingRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.data.unlabelled import asked_texts
from fleetune.evaluation.prediction import Predictor
from fleetune.evaluation.trained_model import ScoringOptions, load_result, load_trained_model, score, write_merged
from fleetune.models.init_weights import write_init_weights
from fleetune.models.source import configuration
from fleetune.preparation.start_comparison import compare_start
from tests.support.data.samples import FRUITS, json_lines
from tests.support.training.runs import plan, prepared, run_plan

TRAINING = TrainingRequest(rounds=2, batch_samples=24, learning_rate=1e-2)
IDS = torch.arange(14).view(2, 7) + 5


def logits(model: Any) -> torch.Tensor:
    """What a model says of two texts."""
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=IDS).logits
    return found


@pytest.mark.filterwarnings("ignore")  # PEFT looks at old names of transformers
@pytest.mark.parametrize(
    ("model_type", "lora"),
    [("qwen3_5", None), ("qwen3_5", Lora(r=2, targets="all-linear")), ("llama4", None)],
    ids=["qwen3_5", "qwen3_5 adapter", "llama4"],
)
def test_its_text_part_is_trained_scored_asked_and_saved(model_type: str, lora: Lora | None, tmp_path: Path) -> None:
    """Bug: all of Qwen3.5's folders trained to the end, and then nothing could load the result, which named the vision
    part in its settings though it has none, and no one was told. Its adapter fits the base's folder as it is."""
    base = tmp_path / "base"
    config = small_config(model_type)
    if model_type == "qwen3_5":  # its cache needs a layer of each kind
        config["text_config"]["layer_types"] = ["linear_attention", "full_attention"]
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(AutoConfig.for_model(**config)).save_pretrained(base)
    (base / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "Qwen2VLImageProcessor"}))
    request = ModelRequest(task="causal-lm", source=str(base), lora=lora)
    ready = prepared(
        request, DataRequest(source=str(json_lines(tmp_path / "rows.jsonl", FRUITS * 9)), max_length=24), tmp_path
    )
    part, start = configuration(request), tmp_path / "start"
    told = " ".join(write_init_weights(part, request, 3, start))
    assert "the text part alone is trained and saved, as a " in told and "vision" in told
    assert compare_start(part, request, start) is None
    run_plan(ready, plan(ready.units, [3], [[8], [8]]), TRAINING, tmp_path)
    checkpoint = tmp_path / "output" / "checkpoint"
    model = load_result(checkpoint, ready.folders.model, request, pytest.fail)
    data = PreparedData(ready.folders.data)
    assert score(model, data, ScoringOptions()).values["loss"] > 0
    (said,) = Predictor(model=model, data=data, new_tokens=3).predictions(asked_texts(["a pear"], chats=False))
    assert said.text
    assert not torch.equal(logits(model), logits(AutoModelForCausalLM.from_pretrained(base)))
    whole = checkpoint / "model"
    if lora is not None:
        assert torch.equal(logits(AutoPeftModelForCausalLM.from_pretrained(checkpoint / "adapter")), logits(model))
        whole = tmp_path / "merged"
        write_merged(checkpoint, ready.folders.model, request, whole, pytest.fail)
        model = model.merge_and_unload()
    settings = json.loads((whole / "config.json").read_text())
    assert settings["model_type"] == f"{model_type}_text" and "vision_config" not in settings
    assert not (whole / "preprocessor_config.json").exists()
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(whole)), logits(model))
    shutil.copyfile(base / "config.json", whole / "config.json")  # as runs before this had it
    assert torch.equal(logits(load_trained_model(whole, "causal-lm")), logits(model))
