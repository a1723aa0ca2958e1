"""Writes everything that training reads besides the plan: data, graph, configuration and initial weights."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from fleetune.contracts.run_config import DataRequest, ModelRequest
from fleetune.contracts.task import Progress, ignore_progress
from fleetune.data.job import Preparation
from fleetune.data.local_data import LocalSurvey
from fleetune.data.prepared_data import LocalSource, PreparedData
from fleetune.data.writer import ensure_data
from fleetune.formatting import shortlist
from fleetune.models.base_files import write_base_files
from fleetune.models.earlier_run import is_continued
from fleetune.models.graph import Graph, graph_text
from fleetune.models.init_weights import INIT_WEIGHTS, write_init_weights
from fleetune.models.model_inputs import check_image_size, input_spec
from fleetune.models.skeleton import saved_configuration, skeleton
from fleetune.models.source import adapter_folder, configuration, source_folder
from fleetune.models.start_adapter import classes_of, other_base
from fleetune.models.unit_graph import record_units
from fleetune.models.units import refuse_tied_adapters
from fleetune.models.weights import weight_reader
from fleetune.preparation.activation_cache import CachedModel, cache_activations
from fleetune.preparation.start_comparison import compare_start
from fleetune.preparation.step_comparison import RECORDED_SAMPLES, compare_recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationTask:
    """The whole input of the prepare stage."""

    model: ModelRequest
    data: DataRequest
    seed: int
    """Splits the data and draws initial weights."""
    model_folder: Path
    """Gets graph.json, start.safetensors and model/config.json."""
    data_folder: Path
    """Gets the prepared data."""
    progress: Progress = ignore_progress
    note: Callable[[str], None] = lambda sentence: None
    local: Mapping[str, LocalSurvey] = field(default_factory=dict)
    """Device -> what it reports of data of its own, which are trained on instead; empty: there are none."""
    data_digest: str | None = None
    """Expected content digest of the source; TryAgain if a file or folder has another. None: not checked."""


def prepare(task: PreparationTask) -> None:
    """Write data, graph and initial weights, and compare one step of the graph with the model's own.

    Refused when the steps differ by more than rounding.
    """
    graph, module = write_artifacts(task)
    prepared = PreparedData(task.data_folder)
    for sentence in (*prepared.info.notes, *_adapter_notes(task.model, prepared.labels), *_renamed_notes(task.model)):
        task.note(sentence)
    config = saved_configuration(task.model_folder / "model")
    uncompared = compare_start(config, task.model, task.model_folder / INIT_WEIGHTS)
    skipped = compare_recorded(graph, module, task.model, task.model_folder, PreparedData(task.data_folder), task.seed)
    for sentence in (*filter(None, (uncompared,)), *skipped):
        task.note(sentence)
    if task.model.cache_activations:
        _cache(task, graph)


def _adapter_notes(model: ModelRequest, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Sentences if training starts from an adapter that names another base than the model, or no classes where nobody
    else says which of its head's is which."""
    start = adapter_folder(model)
    if start is None:
        return ()
    unnamed = ""
    if labels not in (tuple(map(str, range(len(labels)))), input_spec(model).labels) and not classes_of(start):
        unnamed = (
            f"the adapter of lora.start ({start}) does not name the classes of its head, which are taken to be the "
            f"labels in this order: {shortlist(labels)}; if it was trained with another, give model.config.id2label"
        )
    return tuple(filter(None, (other_base(start, model.source), unnamed)))


def _renamed_notes(model: ModelRequest) -> Iterator[str]:
    """A sentence if the head of an earlier run gets other names for its classes, which stay what it learned."""
    start = adapter_folder(model) or source_folder(model)
    if start is not None and "id2label" in (model.config or {}) and is_continued(model):
        own, given = classes_of(start), input_spec(model).labels
        if own != given and len(own) == len(given):
            yield (
                f"the model to start from is that of an earlier run, whose head stays: its classes {shortlist(own)} "
                f"are called {shortlist(given)}, by number; for a new head begin from the base model"
            )


def _cache(task: PreparationTask, graph: Graph) -> None:
    """Replace the graph by that of the units behind the frozen ones, whose activations are stored with the data."""
    config = saved_configuration(task.model_folder / "model")
    start = task.model_folder / INIT_WEIGHTS
    model = CachedModel(
        graph=graph,
        module=lambda: skeleton(config, task.model),
        weights=weight_reader(config, task.model, start),
        progress=task.progress,
    )
    left = cache_activations(model, task.data_folder)
    (task.model_folder / "graph.json").write_text(graph_text(left), encoding="utf-8")
    task.note(PreparedData(task.data_folder).info.notes[-1])


def data_preparation(task: PreparationTask) -> Preparation:
    """Return what the data of a task are written by."""
    surveys = task.local.items()
    return Preparation(
        request=task.data,
        spec=input_spec(task.model),
        seed=task.seed,
        progress=task.progress,
        expected_digest=task.data_digest,
        local=tuple(LocalSource(device=d, digest=found.digest, samples=found.samples) for d, found in surveys),
        local_labels=tuple(dict.fromkeys(name for _, found in surveys for name in found.labels)),
    )


def write_artifacts(task: PreparationTask) -> tuple[Graph, nn.Module]:
    """Write everything without comparing; returns the graph and the model on the meta device."""
    check_image_size(task.model, task.data.image_size)
    ensure_data(data_preparation(task), task.data_folder)
    prepared = PreparedData(task.data_folder)
    config = configuration(task.model, prepared.labels, prepared.info.pad_token_id)
    module = skeleton(config, task.model)
    refuse_tied_adapters(module, task.model.lora)
    rows = prepared.rows("train", [index % prepared.size("train") for index in range(RECORDED_SAMPLES)])
    samples = {name: torch.from_numpy(array) for name, array in rows.items() if name != "labels"}
    graph = record_units(module, samples, task.model.granularity, task.note, task.model.compute)
    task.model_folder.mkdir(parents=True, exist_ok=True)
    (task.model_folder / "graph.json").write_text(graph_text(graph), encoding="utf-8")
    config.save_pretrained(task.model_folder / "model")
    write_base_files(task.model, task.model_folder)
    for sentence in write_init_weights(config, task.model, task.seed, task.model_folder / INIT_WEIGHTS):
        task.note(sentence)
    return graph, module
