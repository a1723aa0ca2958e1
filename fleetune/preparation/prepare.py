"""Everything that training will read besides the plan: data, graph, configuration and starting weights."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fleetune.contracts.run_config import DataRequest, ModelRequest
from fleetune.contracts.task import Progress
from fleetune.data import InputSpec, PreparedData, prepare_data
from fleetune.models.graph import Graph, graph_text
from fleetune.models.init_weights import INIT_WEIGHTS, write_init_weights
from fleetune.models.recorder import record_model
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration, input_spec
from fleetune.models.units import fold_into_units, leaf_modules, merge_uncuttable

RECORDED_SAMPLES = 4  # any number above 1 will do: shapes are symbolic in it


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFolders:
    """Where preparation writes."""

    profile: Path
    """Gets graph.json, start.safetensors and model/config.json."""
    data: Path
    """Gets the prepared data."""


def prepare_inputs(
    model: ModelRequest, data: DataRequest, seed: int, folders: PreparedFolders, progress: Progress
) -> tuple[Graph, nn.Module]:
    """Write it all; returns the graph and the model without weights."""
    if not (folders.data / "data.json").exists():
        prepare_data(data, input_needs(model), folders.data, seed, progress)
    prepared = PreparedData(folders.data)
    config = configuration(model, prepared.labels, prepared.info.pad_token_id)
    module = skeleton(config, model)
    rows = prepared.rows("train", [index % prepared.size("train") for index in range(RECORDED_SAMPLES)])
    samples = {name: torch.from_numpy(array) for name, array in rows.items() if name != "labels"}
    graph = merge_uncuttable(fold_into_units(record_model(module, samples, leaf_modules(module, model.granularity))))
    folders.profile.mkdir(parents=True, exist_ok=True)
    (folders.profile / "graph.json").write_text(graph_text(graph), encoding="utf-8")
    config.save_pretrained(folders.profile / "model")
    write_init_weights(config, model, seed, folders.profile / INIT_WEIGHTS)
    return graph, module


def input_needs(model: ModelRequest) -> InputSpec:
    """What the model asks of its data."""
    found = input_spec(model)
    return InputSpec(
        task=model.task,
        tokenizer=found.tokenizer,
        pretrained=model.source is not None,
        labels=found.labels,
        image_processor=found.image_processor,
        vocab_size=found.vocab_size,
        max_positions=found.max_positions,
        image_size=found.image_size,
        channels=found.channels,
        precision=model.precision,
    )
