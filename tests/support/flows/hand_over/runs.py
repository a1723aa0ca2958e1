"""A run whose model was trained, and what its checkpoint gives in memory."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.metrics import EvaluationMetrics, Score
from fleetune.contracts.run_config import DataRequest, ModelRequest, RunConfig
from fleetune.contracts.tasks import TEXT_TASKS
from fleetune.contracts.training_request import TrainingRequest
from fleetune.data.answer_ends import folder_ends
from fleetune.models.base_files import write_base_files
from fleetune.models.export import copy_tokenizer, export_model
from fleetune.models.skeleton import canonical_names, saved_configuration
from fleetune.store import KeyRecord, RunRecord, StageRecord, Store, stage_key
from fleetune.store.stage_key import flatten_config
from flows.hand_over.trained_run import TrainedRun
from flows.receipt import write_receipt
from tests.support.drawing.contents import content
from tests.support.evaluation.instances import BERT, LORA, model_folder, moved, started, text_data

WHOLE = ModelRequest(task="sequence-classification", config=BERT)
ADAPTED = ModelRequest(task="sequence-classification", config=BERT, lora=LORA)


def base_folder(folder: Path) -> ModelRequest:
    """A LoRA request on a BERT of files, without a head."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    BertModel(BertConfig(**{key: value for key, value in BERT.items() if key != "model_type"})).save_pretrained(folder)
    return ModelRequest(task="sequence-classification", source=str(folder), lora=LORA)


def run_of(folder: Path, request: ModelRequest) -> tuple[TrainedRun, Any]:
    """The run, whose checkpoint is written as training writes it, and its model in memory. Its data are texts, also
    where the model reads images."""
    start = model_folder(folder / "model-artifact", request)
    write_base_files(request, start)
    data = text_data(folder / "data", request.task if request.task in TEXT_TASKS else WHOLE.task)
    model = moved(started(start, request))
    names = canonical_names(model)
    tensors = {names[name]: tensor.detach() for name, tensor in model.named_parameters() if tensor.requires_grad}
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    config = saved_configuration(start / "model")
    written = export_model(config, request, start / "start.safetensors", tensors, checkpoint)
    assert data.tokenizer is not None
    copy_tokenizer(data.tokenizer, written, partial(folder_ends, note=print))
    record = RunRecord(
        id="numbers-1",
        config=RunConfig(
            name="numbers", model=request, data=DataRequest(source="rows.jsonl"), training=TrainingRequest(rounds=3)
        ),
        seed=0,
        code_version="1",
        state="done",
        started="2026-11-23T10:00:00+00:00",
        stages=(),
    )
    return TrainedRun(run=record, checkpoint=checkpoint, model=start, data=data.folder, scores=scores()), model.eval()


def stored_run(folder: Path, request: ModelRequest) -> tuple[Store, RunRecord]:
    """The same run in a store below `folder`, done, with its receipt."""
    found, _ = run_of(folder, request)
    store, training = Store(folder / "runs"), content().training
    assert training is not None
    folders = {"model": found.model, "data": found.data, "checkpoint": found.checkpoint}
    for kind in ("plan", "metrics", "evaluation"):
        folders[kind] = folder / f"made-{kind}"
        folders[kind].mkdir()
    (folders["plan"] / "plan.json").write_text("{}")
    json_io.write(training, folders["metrics"] / "training.json")
    json_io.write(scores(), folders["evaluation"] / "evaluation.json")
    made_by = {
        "prepare": ("model", "data"),
        "plan": ("plan",),
        "train": ("checkpoint", "metrics"),
        "evaluate": ("evaluation",),
    }
    stages, known = [], dict[str, str]()
    for name, kinds in made_by.items():
        settings = {f"config.{key}": text for key, text in flatten_config({"rounds": 3}, "training").items()}
        ingredients = {"stage": name, "package.torch": "1", **settings}
        key, inputs = stage_key(ingredients), dict(known)
        outputs = {kind: store.put(kind, folders[kind], stage_key=key, inputs=inputs) for kind in kinds}
        store.keep_key(key, KeyRecord(stage=name, run=found.run.id, outputs=outputs, ingredients=ingredients))
        stages.append(StageRecord(stage=name, key=key, state="done", inputs=inputs, outputs=outputs))
        known.update(outputs)
    record = replace(found.run, stages=tuple(stages))
    store.runs.save(record)
    write_receipt(store, record)
    return store, record


def scores() -> EvaluationMetrics:
    """Scores before and after."""
    return EvaluationMetrics(
        scores=(Score(name="accuracy", before=0.25, after=0.75, better="higher"),),
        samples=13,
        forecast_round_s=1.0,
        measured_round_s=1.0,
        forecast_error=0.0,
        bytes_per_round=0,
        peak_memory_bytes=(),
    )


def plain(path: Path) -> Any:
    """A file of JSON."""
    return json.loads(path.read_text())
