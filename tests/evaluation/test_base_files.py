"""An adapter is evaluated and merged on the files of its base as training read them, and on no others."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import BertForSequenceClassification, DebertaV2Config, DebertaV2ForSequenceClassification

from fleetune.contracts import json_io
from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.errors import Refused
from fleetune.evaluation.trained_model import WEIGHTS, load_result, write_merged
from fleetune.filesystem import file_digest
from fleetune.models.base_files import BaseFiles, write_base_files
from fleetune.models.nf4 import rounded
from tests.support.evaluation.instances import BERT, LORA, model_folder, moved, started

IDS = {"input_ids": torch.arange(5, 17).reshape(2, 6)}


def base(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    """Save a finished classifier of three classes; returns its tensors."""
    from transformers import BertConfig

    torch.manual_seed(seed)
    settings = {key: value for key, value in BERT.items() if key != "model_type"}
    BertForSequenceClassification(BertConfig(**settings, num_labels=3)).save_pretrained(folder)
    tensors: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return tensors


def trained_run(folder: Path, source: Path) -> tuple[ModelRequest, Path, nn.Module]:
    """Train an adapter on a base; returns its request, the `model` artifact, and the model in memory."""
    request = ModelRequest(task="sequence-classification", source=str(source), lora=LORA)
    start = model_folder(folder / "start", request)
    write_base_files(request, start)
    model = moved(started(start, request))
    model.save_pretrained(folder / "checkpoint" / "adapter")
    return request, start, model.eval()


def plain(folder: Path, tensors: dict[str, torch.Tensor], adapter: Path) -> torch.Tensor:
    """Logits of a base in memory with an adapter, by transformers and PEFT alone."""
    model = BertForSequenceClassification.from_pretrained(folder / "whole")
    model.load_state_dict(tensors)
    with torch.no_grad():
        logits: torch.Tensor = PeftModel.from_pretrained(model, adapter).eval()(**IDS).logits
    return logits


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by an older name
def test_an_adapter_is_put_on_the_weights_it_was_trained_on(tmp_path: Path) -> None:
    """A pickle beside the weights is never read."""
    source = tmp_path / "base"
    tensors = base(source, 3)
    base(tmp_path / "whole", 4)
    torch.save(load_file(tmp_path / "whole" / "model.safetensors"), source / "pytorch_model.bin")
    request, start, model = trained_run(tmp_path, source)
    loaded = load_result(tmp_path / "checkpoint", start, request, pytest.fail).eval()
    with torch.no_grad():
        logits = loaded(**IDS).logits
        assert torch.equal(logits, model(**IDS).logits)
    assert torch.equal(logits, plain(tmp_path, tensors, tmp_path / "checkpoint" / "adapter"))


@pytest.mark.parametrize("change", ["other values", "another file"])
def test_a_base_that_was_changed_after_training_is_refused(change: str, tmp_path: Path) -> None:
    """An adapter on other weights of the same shapes gives other scores without a word; the changed file is named."""
    source = tmp_path / "base"
    tensors = base(source, 3)
    request, start, _ = trained_run(tmp_path, source)
    load_result(tmp_path / "checkpoint", start, request, pytest.fail)
    if change == "other values":
        save_file(
            {name: tensor + 1 for name, tensor in tensors.items()}, source / "model.safetensors", {"format": "pt"}
        )
    else:
        (source / "model.safetensors").rename(source / "weights.safetensors")
        index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "weights.safetensors")}
        (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Refused, match="is not what the run was trained on.*put the base back as it was, or train"):
        load_result(tmp_path / "checkpoint", start, request, pytest.fail)


GENERATION, PROCESSOR = "generation_config.json", "preprocessor_config.json"


@pytest.mark.parametrize("change", ["config.json", f"{GENERATION} added", f"{PROCESSOR} changed", f"{PROCESSOR} gone"])
def test_settings_of_a_base_that_were_changed_after_training_are_refused(change: str, tmp_path: Path) -> None:
    """Bug: they are read again when a model is handed over, and what was read silently became part of it; the changed
    file is named. What nothing reads may change."""
    source, name = tmp_path / "base", change.partition(" ")[0]
    base(source, 3)
    (source / PROCESSOR).write_text("{}")
    request, start, _ = trained_run(tmp_path, source)
    (source / "README.md").write_text("mine")
    load_result(tmp_path / "checkpoint", start, request, pytest.fail)
    if change.endswith("gone"):
        (source / name).unlink()
    else:
        settings = json.loads((source / name).read_text()) if (source / name).exists() else {}
        (source / name).write_text(json.dumps({**settings, "top_k": 5}))
    with pytest.raises(Refused, match=f"base/{name} is not what the run was trained on .1 of the base's files differ"):
        write_merged(tmp_path / "checkpoint", start, request, tmp_path / "merged", pytest.fail)


@pytest.mark.parametrize("weights", [True, False])
def test_what_an_older_run_did_not_keep_of_its_base_is_told(weights: bool, tmp_path: Path) -> None:
    """A run whose `model` artifact has digests of the weights alone, or none at all, goes on to be used: what it has is
    compared, and the rest is no silent yes."""
    source, notes = tmp_path / "base", list[str]()
    tensors = base(source, 3)
    request, start, _ = trained_run(tmp_path, source)
    if weights:
        json_io.write(BaseFiles(files={WEIGHTS: file_digest(source / WEIGHTS)}), start / "base.json")
    else:
        (start / "base.json").unlink()
    load_result(tmp_path / "checkpoint", start, request, notes.append)
    lacking, version = ("settings", "versions up to 3 of prepare") if weights else ("files", "version 1 of prepare")
    assert len(notes) == 1 and f"whether the {lacking} of {source}" in notes[0] and version in notes[0]
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, source / WEIGHTS, {"format": "pt"})
    with pytest.raises(Refused, match=f"{WEIGHTS} is not what") if weights else nullcontext():
        load_result(tmp_path / "checkpoint", start, request, notes.append)


def test_weights_of_a_name_that_transformers_does_not_read_are_refused(tmp_path: Path) -> None:
    """Bug: such a file was trained on, and the pickle beside it evaluated."""
    source = tmp_path / "base"
    torch.save(base(source, 3), source / "pytorch_model.bin")
    (source / "model.safetensors").rename(source / "weights.safetensors")
    with pytest.raises(Refused, match="base has no model.safetensors"):
        trained_run(tmp_path, source)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by an older name
@pytest.mark.parametrize("whole", [True, False])
def test_what_training_held_packed_is_rounded(whole: bool, tmp_path: Path) -> None:
    """Bug: a head that an older version left frozen, and thus packed, was read with other numbers than were trained,
    since it is trained whole today. What an adapter itself has trained whole was never packed."""
    settings = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    made = DebertaV2ForSequenceClassification(DebertaV2Config(vocab_size=60, num_labels=3, **settings))  # type: ignore[arg-type]
    made.save_pretrained(tmp_path / "base")
    request = ModelRequest(
        task="sequence-classification", source=str(tmp_path / "base"), lora=Lora(targets=("query_proj",))
    )
    request = replace(request, quantization="nf4")
    start = model_folder(tmp_path / "start", request)
    write_base_files(request, start)
    started(start, replace(request, quantization=None)).save_pretrained(adapter := tmp_path / "checkpoint" / "adapter")
    if not whole:
        kept = json.loads((adapter / "adapter_config.json").read_text())
        kept["modules_to_save"].remove("pooler")
        (adapter / "adapter_config.json").write_text(json.dumps(kept))
        tensors = load_file(adapter / "adapter_model.safetensors")
        save_file({n: t for n, t in tensors.items() if "pooler" not in n}, adapter / "adapter_model.safetensors")
    found = load_result(tmp_path / "checkpoint", start, request, print)
    pooler = {name: tensor for name, tensor in found.state_dict().items() if "pooler" in name and "weight" in name}
    own = made.pooler.dense.weight
    wanted = own if whole else rounded(own)
    assert pooler and not torch.equal(own, rounded(own))
    assert all(torch.equal(tensor, wanted) for name, tensor in pooler.items() if "original_module" not in name)
