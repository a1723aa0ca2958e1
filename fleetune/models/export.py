"""Writes a trained model in its own standard format: a Hugging Face folder, or a PEFT adapter folder."""

import dataclasses
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig

from fleetune.contracts.run_config import ModelRequest
from fleetune.models.readme import readme
from fleetune.models.skeleton import base_skeleton, canonical_names, skeleton
from fleetune.models.source import PACKAGE, source_folder
from fleetune.models.weights import Weights, base_name, fill

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "preprocessor_config.json",
)


def export_model(
    config: PretrainedConfig, request: ModelRequest, start: Path, trained: Mapping[str, torch.Tensor], folder: Path
) -> Path:
    """Write `folder/model` (or `folder/adapter` when only adapters were trained) and return it.

    trained: tensors that training moved, by name; the others come from where training started.
    """
    model = skeleton(config, request)
    adapter_only = request.lora is not None
    names = canonical_names(model)
    wanted = {c for c in names.values() if not adapter_only or _of_adapter(c)}
    weights = Weights(base_skeleton(config, request), source_folder(request), start)
    tensors = {**weights.tensors(wanted - set(trained)), **{n: t for n, t in trained.items() if n in wanted}}
    fill(model, names, tensors)
    target = folder / ("adapter" if adapter_only else "model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT asks the hub whether an embedding changed; there may be no network
        if adapter_only:
            base = source_folder(request)
            if base is None:  # nobody else has these random weights: the adapter is nothing without them
                _export_base(config, request, start, folder)
            named = _base_path(request, base)
            model.peft_config["default"].base_model_name_or_path = named
            model.peft_config["default"].revision = request.revision
            model.save_pretrained(target, save_embedding_layers=False)
            config.save_pretrained(target)  # PEFT keeps no labels
            (target / "README.md").write_text(readme(request, named), encoding="utf-8")
        else:
            model.save_pretrained(target)
    return target


def _base_path(request: ModelRequest, base: Path | None) -> str:
    """Where an adapter's reader finds the base: the hub's name, a folder, or `base` beside the adapter."""
    if base is None:
        return "../base"
    local = request.source is None or request.source.startswith(PACKAGE) or Path(request.source).is_dir()
    return str(base) if local else str(request.source)


def _export_base(config: PretrainedConfig, request: ModelRequest, start: Path, folder: Path) -> None:
    """Write the frozen model below an adapter to `folder/base`."""
    plain = dataclasses.replace(request, lora=None, freeze=())
    tensors = {base_name(name): tensor for name, tensor in load_file(start).items() if ".modules_to_save." not in name}
    base_start = folder / "base.part"
    save_file({name: tensor for name, tensor in tensors.items() if "lora_" not in name}, base_start)
    written = export_model(config, plain, base_start, {}, folder)
    base_start.unlink()
    written.rename(folder / "base")


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the files of a tokenizer or image processor where there are any."""
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


def _of_adapter(name: str) -> bool:
    return "lora_" in name or ".modules_to_save." in name
