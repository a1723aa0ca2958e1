"""Reads exactly the requested tensors, from a model folder and from the file that `init_weights` wrote.

Names are those of the model that is trained (PEFT's names if it has adapters). Files on the hub often use older names,
which transformers' own conversion tables translate.
"""

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    convert_and_load_state_dict_in_model,
    rename_source_key,
)
from transformers.modeling_utils import LoadStateDictConfig

from fleetune.errors import Refused
from fleetune.models.nf4 import as_held
from fleetune.models.source import weight_files

os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")  # one reader: the peak is one tensor, not a pool of them


TEXT_PART = re.compile(r"(?:language_model|text_model)\.")
"""Part of the names of tensors in folders of models of several parts, such as text and vision."""


def base_name(name: str) -> str:
    """Return the name that a tensor of the model with adapters has in the model without them."""
    plain = name.removeprefix("base_model.model.")
    return plain.replace(".base_layer.", ".").replace(".original_module.", ".")


class WeightReader:
    """Reads tensors from the initial weights first, then from the pretrained folder."""

    def __init__(self, base: PreTrainedModel, folder: Path | None, start: Path) -> None:
        self._base = base
        self._start = start
        self._files = weight_files(folder) if folder is not None else ()
        self._loaded: set[str] = set()

    def read(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Return tensors by name, on the CPU; Refused if no file holds one. Nothing else is read into memory."""
        with _open(self._start) as file:
            kept = set(file.keys())
            found: dict[str, torch.Tensor] = {name: file.get_tensor(name) for name in names if name in kept}
        wanted = {base_name(name): name for name in names if name not in kept}
        if wanted:
            loaded = load_pretrained(self._base, self._files, set(wanted))
            self._loaded.update(loaded)
            found.update({wanted[name]: tensor for name, tensor in loaded.items()})
        missing = sorted(set(names) - set(found))
        if missing:
            raise Refused(f"model: no file holds {missing[0]} (and {len(missing) - 1} more); the folder is incomplete")
        return found

    def forget(self) -> None:
        """Let go of what was read of the pretrained folder, so that converted tensors are held without their source."""
        for name, parameter in list(self._base.named_parameters(remove_duplicate=False)):
            if name in self._loaded:
                assign_tensor(self._base, name, torch.empty_like(parameter, device="meta"))
        self._loaded.clear()
        self._base.tie_weights()


def load_pretrained(base: PreTrainedModel, files: Collection[Path], wanted: set[str]) -> dict[str, torch.Tensor]:
    """Load the wanted parameters and buffers of `base` (its own names) from safetensors files; the rest stays meta."""
    mapping = _conversions(base)
    state = base.state_dict()
    chosen: dict[str, Any] = {}
    opened = [_open(path) for path in files]
    for file in opened:
        for key in file.keys():
            target = _model_name(key, base, mapping, state)
            if target in wanted and _shape_matches(file, key, state[target], mapping, base, state):
                chosen[key] = file.get_slice(key)
    settings = LoadStateDictConfig(weight_mapping=mapping, dtype=next(base.parameters()).dtype)
    convert_and_load_state_dict_in_model(base, chosen, settings, None)
    base.tie_weights()
    now = {**dict(base.named_parameters(remove_duplicate=False)), **dict(base.named_buffers(remove_duplicate=False))}
    return {name: now[name].detach() for name in wanted if name in now and not now[name].is_meta}


def available_names(base: PreTrainedModel, files: Collection[Path]) -> set[str]:
    """Return the names in `base` that the files hold in the right shape; Refused if the body has another shape."""
    body = f"{base.base_model_prefix}."
    mapping = _conversions(base)
    state = base.state_dict()
    found: set[str] = set()
    for path in files:
        with _open(path) as file:
            for key in file.keys():
                target = _model_name(key, base, mapping, state)
                if target not in state:
                    continue
                if _shape_matches(file, key, state[target], mapping, base, state):
                    found.add(target)
                elif target.startswith(body):
                    raise Refused(
                        f"{path}: {key} is {file.get_slice(key).get_shape()}, but the model's {target} is "
                        f"{list(state[target].shape)}; change model.config to fit the weights"
                    )
    if files and not any(name.startswith(body) for name in found) and any(name.startswith(body) for name in state):
        raise Refused(
            f"{next(iter(files)).parent}: no tensor of the body of {type(base).__name__} is in its files; give the "
            "folder of such a model"
        )
    return found


def assign_tensor(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Replace a parameter or buffer by a tensor, keeping requires_grad and persistence."""
    *path, last = name.split(".")
    owner = module.get_submodule(".".join(path))
    old = owner._parameters.get(last)
    if old is not None:
        owner._parameters[last] = nn.Parameter(tensor, requires_grad=old.requires_grad)
    else:
        owner._buffers[last] = tensor


def fill_model(model: nn.Module, names: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Assign tensors (by canonical name) to every name that `names` maps to them; tied names share one parameter."""
    made: dict[str, nn.Parameter] = {}
    for name, canonical in names.items():
        if canonical in tensors:
            *path, last = name.split(".")
            parameters = model.get_submodule(".".join(path))._parameters
            held = parameters.get(last)
            assign_tensor(model, name, tensors[canonical] if held is None else as_held(tensors[canonical], held))
            if last in parameters:
                parameters[last] = made.setdefault(canonical, parameters[last])


def _conversions(base: PreTrainedModel) -> list[Any]:
    """Return transformers' table of older names; for a model without parts also the names of text parts."""
    found: list[Any] = get_model_conversion_mapping(base)
    whole = not any(TEXT_PART.search(name) for name in base.state_dict())
    return [WeightRenaming(TEXT_PART.pattern, ""), *found] if whole else found


def _model_name(key: str, base: PreTrainedModel, mapping: list[Any], state: Mapping[str, torch.Tensor]) -> str:
    renamings = [m for m in mapping if isinstance(m, WeightRenaming)]
    converters = [m for m in mapping if isinstance(m, WeightConverter)]
    renamed, _ = rename_source_key(key, renamings, converters, base.base_model_prefix, dict(state))
    if renamed not in state and key in state:
        return key
    return str(renamed)


def _shape_matches(
    file: Any, key: str, target: torch.Tensor, mapping: list[Any], base: PreTrainedModel, state: Any
) -> bool:
    """Return False for a head of another size, which is drawn anew; converted tensors change shape when loaded."""
    converters = [m for m in mapping if isinstance(m, WeightConverter)]
    _, pattern = rename_source_key(key, [], converters, base.base_model_prefix, dict(state))
    return pattern is not None or list(file.get_slice(key).get_shape()) == list(target.shape)


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise Refused(f"{path}: not a readable safetensors file ({error})") from None
