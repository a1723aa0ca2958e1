"""Activations of frozen units, computed once: what is trained on top of them trains as in the whole model.

The control is the unsplit model in plain PyTorch, whose frozen units run in every round, in evaluation mode.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.data.prepared_data import PreparedData, check_files
from fleetune.errors import Refused
from fleetune.models.graph import parse_graph
from fleetune.preparation.prepare import prepare
from tests.support.preparation.instances import PreparedFolders, preparation_task
from tests.support.training.control_comparison import FP32, FP64, Comparison, difference, whole_model
from tests.support.training.control_runs import cut_run, request
from tests.support.training.model_families import BY_NAME, TEXT, data_request, model_request
from tests.support.training.runs import Prepared, plan, prepared
from tests.support.training.unsplit_training import Control, Order, train_unsplit

FROZEN = {
    "bert": ("bert.embeddings", r"bert\.encoder\.layer\.0\."),
    "gpt2": ("transformer.wte", "transformer.wpe", r"transformer\.h\.0\."),
    "llama": ("model.embed_tokens", r"model\.layers\.0\."),
    "vit": ("vit.embeddings", r"vit\.layers\.0\."),
    "resnet": ("resnet.embedder", r"resnet\.encoder\.stages\.0\."),
}
"""Family -> what is frozen: the embeddings and the first block, or stage."""
ADAPTERS = Lora(r=4, alpha=8, dropout=0.1, targets=r".*layer\.1\.attention\.self\.(query|value)")


def cached(model: ModelRequest, data: DataRequest, folder: Path, seed: int = 3) -> Prepared:
    """Prepare a model whose frozen units are replaced by stored activations, which have their digests, too."""
    prepare(preparation_task(folder, model, data, seed))
    folders = PreparedFolders.below(folder)
    check_files(folders.data)
    arrays = {f"train/{file.name}" for file in (folders.data / "train").iterdir()}
    assert arrays <= PreparedData(folders.data).info.files.keys()
    return Prepared(parse_graph((folders.model / "graph.json").read_bytes(), "graph.json"), model, folders, seed)


def both(name: str, folder: Path, **changes: Any) -> tuple[Prepared, Prepared]:
    """Prepare a family as it is, and with stored activations."""
    family = BY_NAME[name]
    data = data_request(family, folder)
    changes = {"freeze": FROZEN[name], **changes}
    plain = prepared(model_request(family, dropout=True, **changes), data, folder / "plain")
    stored = cached(model_request(family, dropout=True, cache_activations=True, **changes), data, folder / "cached")
    return plain, stored


def in_evaluation(model: nn.Module, names: Sequence[str]) -> nn.Module:
    """Keep these modules in evaluation mode whatever mode the model is set to."""
    for name in names:
        module = model.get_submodule(name)
        module.eval()
        module.train = lambda mode=True, module=module: module  # type: ignore[method-assign,misc]
    return model


def control(plain: Prepared, stored: Prepared, training: Any) -> Control:
    """Train the unsplit model; the units that are not in the stored graph are in evaluation mode."""
    gone = [name for name in plain.units if name not in stored.units]
    model = in_evaluation(whole_model(plain), gone)
    data = PreparedData(plain.folders.data)
    return train_unsplit(model, data, training, plain.seed, stored.units, Order([(0, 8)]))


def compared(plain: Prepared, stored: Prepared, shares: list[list[int]], folder: Path) -> Comparison:
    """Train a pipeline of the units that are left, and the control."""
    training = request(rounds=6, clip_norm=0.5)
    run = cut_run(stored, plan(stored.units, [1] if len(shares) > 1 else [], shares), training, folder)
    theirs = control(plain, stored, training)
    return Comparison(difference(plain, run, theirs), lambda: difference(plain, theirs, theirs))


@pytest.mark.parametrize("name", [name for name in FROZEN if name != "resnet"])
def test_what_is_trained_trains_as_in_the_whole_model(name: str, tmp_path: Path) -> None:
    """With dropout in the trained units, on two segments or one and uneven shares, within 1e-10 in float64."""
    plain, stored = both(name, tmp_path, precision="float64")
    assert len(stored.units) < len(plain.units)
    shares = [[3, 5], [8]] if len(stored.units) > 1 else [[3, 5]]
    found = compared(plain, stored, shares, tmp_path / "run")
    assert found.within(FP64), found.found


def test_running_statistics_of_frozen_units_stay_and_serve(tmp_path: Path) -> None:
    """A ResNet's frozen stages normalise by the statistics that it started from."""
    plain, stored = both("resnet", tmp_path, precision="float64")
    found = compared(plain, stored, [[8]], tmp_path / "run")
    assert found.within(FP64), found.found


def test_adapters_of_the_last_block_train_on_stored_activations(tmp_path: Path) -> None:
    """LoRA on the second of BERT's two blocks: everything before it is frozen without being named."""
    plain, stored = both("bert", tmp_path, freeze=(), lora=ADAPTERS)
    assert [name for name in stored.units if "layer.0" in name or "embeddings" in name] == []
    found = compared(plain, stored, [[8], [8]], tmp_path / "run")
    assert found.within(FP32), found.found


def test_masks_and_positions_are_computed_and_not_stored(tmp_path: Path) -> None:
    """Of what crosses the cut only the hidden state depends on weights; the mask comes from the ids' own array."""
    _, stored = both("bert", tmp_path)
    data = PreparedData(stored.folders.data)
    (train, test) = data.info.splits
    assert [each.name for each in test.arrays] == ["input_ids", "attention_mask", "labels"]
    (array,) = [each for each in train.arrays if each.name.startswith("cached_")]
    assert array.shape == (data.size("train"), 24, 32) and array.dtype == "float32"
    assert set(stored.graph.inputs) == {"attention_mask", array.name}
    assert "stored" in data.info.notes[-1] and "dropout" in data.info.notes[-1]


@pytest.mark.parametrize("granularity", ["block", "layer"])
def test_every_sample_has_the_activations_of_its_own_row(granularity: str, tmp_path: Path) -> None:
    """Row k of the array is what the frozen units make of row k alone, in evaluation.

    Bug: units of granularity `layer` call torch's own dropout and attention, whose mode is part of the recording, so
    that one mask of training was stored with each sample.
    """
    plain, stored = both("bert", tmp_path, granularity=granularity)
    data = PreparedData(stored.folders.data)
    rows = data.rows("train", [17])
    model = whole_model(plain).eval()
    with torch.no_grad():
        hidden = model(
            input_ids=torch.from_numpy(rows["input_ids"]),
            attention_mask=torch.from_numpy(rows["attention_mask"]),
            output_hidden_states=True,
        ).hidden_states[1]
    (name,) = [each for each in rows if each.startswith("cached_")]
    np.testing.assert_allclose(rows[name], hidden.numpy(), rtol=1e-4, atol=1e-6)


def test_a_model_that_is_trained_from_its_first_unit_on_is_refused(tmp_path: Path) -> None:
    """The sentence says what to freeze."""
    family = BY_NAME["bert"]
    model = model_request(family, dropout=True, cache_activations=True)
    assert family.task == TEXT
    with pytest.raises(Refused, match=r"model\.freeze"):
        cached(model, data_request(family, tmp_path), tmp_path / "cached")
