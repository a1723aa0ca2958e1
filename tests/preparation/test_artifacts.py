"""Preparation of a trained classifier that is trained further."""

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model
from fleetune.models.skeleton import saved_configuration
from fleetune.models.source import configuration
from tests.data.samples import json_lines
from tests.preparation.instances import prepared_below
from tests.training.model_families import BY_NAME, TEXT, model_request

ORDER = ("pear", "fig", "apple")


def finished(folder: Path) -> ModelRequest:
    """A tiny BERT for three fruits, whose classes are not in alphabetical order."""
    request = model_request(BY_NAME["bert"], dropout=True)
    torch.manual_seed(11)
    AutoModelForSequenceClassification.from_config(configuration(request, ORDER)).save_pretrained(folder)
    return ModelRequest(task=TEXT, source=str(folder))


@pytest.mark.parametrize("lora", [None, Lora(r=2, alpha=4, targets=("query",))], ids=["whole", "adapter"])
def test_training_goes_on_with_the_same_classes(lora: Lora | None, tmp_path: Path) -> None:
    """Bug: classes were renumbered alphabetically under a head that kept its weights, and accuracy fell from 1.0 to
    0.0."""
    request = dataclasses.replace(finished(tmp_path / "model"), lora=lora)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    given = torch.randint(5, 300, (12, 10), generator=torch.Generator().manual_seed(1))
    answers = [ORDER[n] for n in plain(input_ids=given).logits.argmax(dim=-1).tolist()]
    rows = [{"text": f"{n} {name}", "label": name} for n, name in enumerate([*answers, *ORDER, *ORDER])]
    request_data = DataRequest(source=str(json_lines(tmp_path / "rows.jsonl", rows)), max_length=10)
    _, folders = prepared_below(tmp_path, request, request_data)
    config = saved_configuration(folders.model / "model")
    assert config.id2label == AutoConfig.from_pretrained(tmp_path / "model").id2label == dict(enumerate(ORDER))
    assert PreparedData(folders.data).labels == ORDER
    started = initial_model(config, request, folders.model / INIT_WEIGHTS)
    assert [ORDER[n] for n in started(input_ids=given).logits.argmax(dim=-1).tolist()] == answers
