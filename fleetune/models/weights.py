"""Reads exactly the requested tensors, from a model folder and from the file that `init_weights` wrote.

Names are those of the model that is trained (PEFT's names if it has adapters).
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from fleetune.contracts.run_config import ModelRequest
from fleetune.errors import Refused
from fleetune.models.nf4 import as_held
from fleetune.models.pretrained import Pretrained, opened
from fleetune.models.skeleton import base_skeleton
from fleetune.models.source import source_folder

MODULES_TO_SAVE = ".modules_to_save.default."


def base_name(name: str) -> str:
    """Return the name that a tensor of the model with adapters has in the model without them."""
    plain = name.removeprefix("base_model.model.")
    while ".base_layer." in plain:  # one for each adapted parameter of a module of experts
        plain = plain.replace(".base_layer.", ".")
    return plain.replace(".original_module.", ".")


def pretrained_name(name: str) -> str:
    """Return the name that a tensor has in the pretrained model, also that of a trained copy beside adapters."""
    return base_name(name.replace(MODULES_TO_SAVE, "."))


class WeightReader:
    """Reads tensors from the initial weights first, then from the pretrained folder."""

    def __init__(self, base: PreTrainedModel | None, folder: Path | None, start: Path) -> None:
        """base: what the pretrained folder, if there is one, holds the weights of."""
        self._pretrained = Pretrained(base, folder) if base is not None and folder is not None else None
        self._start = start

    def read(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Return tensors by name, on the CPU; Refused if no file holds one. Nothing else is read into memory."""
        with opened(self._start) as file:
            kept = {name: name for name in file.keys()}
            plain = {base_name(name): name for name in kept}
            # an older version trained fewer modules whole, and its start has no copies of the others
            held = {name: kept.get(name) or plain.get(pretrained_name(name)) for name in names}
            found: dict[str, torch.Tensor] = {name: file.get_tensor(key) for name, key in held.items() if key}
        wanted = {name: pretrained_name(name) for name in names if name not in found}
        if wanted and self._pretrained is not None:
            loaded = self._pretrained.load(set(wanted.values()))
            found.update({name: loaded[plain] for name, plain in wanted.items() if plain in loaded})
        missing = sorted(set(names) - set(found))
        if missing:
            raise Refused(f"model: no file holds {missing[0]} (and {len(missing) - 1} more); the folder is incomplete")
        return found


def weight_reader(config: PretrainedConfig, request: ModelRequest, start: Path) -> WeightReader:
    """Return what reads the weights that training starts from; a model without a pretrained folder needs no base."""
    folder = source_folder(request)
    return WeightReader(None if folder is None else base_skeleton(config, request), folder, start)


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
