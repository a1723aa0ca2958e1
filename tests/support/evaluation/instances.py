"""A finished run: data, initial weights, a checkpoint, and the records of the stages before."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.data.writer import prepare_data
from fleetune.evaluation import EvaluationTask
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model, write_init_weights
from fleetune.models.skeleton import saved_configuration
from fleetune.models.source import configuration
from tests.support.drawing.contents import content

BERT: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 264,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
LORA = Lora(r=2, targets=("query", "value"))
LABELS = ("odd", "even", "prime")


def text_data(folder: Path, task: str = "sequence-classification") -> PreparedData:
    """Forty short texts of three classes (without labels for causal-lm), thirteen of them for testing."""
    rows = [{"text": f"number {n} " + "!" * (n % 5), "label": LABELS[n % 3]} for n in range(40)]
    path = folder.with_suffix(".jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    needs = InputSpec(task=task, vocab_size=264, max_positions=32)
    prepare_data(DataRequest(source=str(path), max_length=16, test_fraction=0.33), needs, folder, 0)
    return PreparedData(folder)


def model_folder(folder: Path, request: ModelRequest, seed: int = 1) -> Path:
    """Write a model's configuration and initial weights, as the prepare stage does."""
    config = configuration(request, LABELS)
    config.save_pretrained(folder / "model")
    write_init_weights(config, request, seed, folder / INIT_WEIGHTS)
    return folder


def started(folder: Path, request: ModelRequest) -> Any:
    """Return the model that training starts from."""
    return initial_model(saved_configuration(folder / "model"), request, folder / INIT_WEIGHTS)


def moved(model: Any) -> Any:
    """Return the model with other values in every trained parameter."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model


def finished(folder: Path, request: ModelRequest) -> EvaluationTask:
    """Return an evaluation task of that model on the text data, with an empty checkpoint folder."""
    run = content()
    (folder / "checkpoint").mkdir()
    return EvaluationTask(
        run="numbers",
        fleet=run.fleet,
        profile=run.profile,
        plan=run.plan,
        forecast=replace(run.forecast, round_s=0.3),
        training=replace(run.training, median_round_s=0.4),
        model=request,
        model_folder=model_folder(folder / "profile", request),
        data_folder=text_data(folder / "data", request.task).folder,
        checkpoint_folder=folder / "checkpoint",
        output=folder / "evaluation",
        batch_samples=4,
    )


class Told(nn.Module):
    """A model that returns given logits, batch by batch."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits
        self.given = 0

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        """Return the next len(input_ids) rows."""
        assert not self.training
        assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == 1
        first, self.given = self.given, self.given + len(input_ids)
        return type("Output", (), {"logits": self.logits[first : self.given]})()
