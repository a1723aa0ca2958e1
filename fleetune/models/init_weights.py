"""Initial weights that the pretrained files lack: a new head, adapters, buffers, or a whole random model.

They are drawn once, by one seed, and saved beside the model's graph; every worker reads its own part, so the starting
point does not depend on how the model is cut.
"""

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.tasks import predicts_tokens
from fleetune.errors import Refused
from fleetune.models.pretrained import HEADS, Pretrained, quiet
from fleetune.models.skeleton import base_skeleton, canonical_names, skeleton
from fleetune.models.source import adapter_folder, source_folder
from fleetune.models.start_adapter import refuse_other_settings, setting
from fleetune.models.weights import MODULES_TO_SAVE, base_name, fill_model, pretrained_name, weight_reader

FILE_MODE = 0o644
INIT_WEIGHTS = "start.safetensors"
PEFT_PREFIX = "base_model.model."


def write_init_weights(config: PretrainedConfig, request: ModelRequest, seed: int, path: Path) -> tuple[str, ...]:
    """Draw every tensor that the pretrained files do not hold and write them to `path`.

    Returns sentences about what starts otherwise than the pretrained folder has it.
    """
    adapter = adapter_folder(request)
    base = base_skeleton(config, request)
    folder = source_folder(request)
    pretrained = Pretrained(base, folder) if folder is not None else None
    given = pretrained.given if pretrained is not None else set()
    torch.manual_seed(seed)
    _draw_missing(base, given)
    # some models create parameters outside the meta device; those that the files hold are not drawn
    drawn = {name: t for name, t in _named_tensors(base).items() if not t.is_meta and name not in given}
    tensors = dict(drawn)
    if request.lora is not None:
        whole = skeleton(config, request)
        if adapter is not None:
            refuse_other_settings(adapter, request.lora, whole)
        tensors = {name: drawn[base_name(name)] for name in _named_tensors(whole) if base_name(name) in drawn}
        heads = _pretrained_heads(whole, drawn)
        known = {**drawn, **pretrained.load(heads)} if heads and pretrained is not None else drawn
        tensors.update(_draw_adapters(whole, known, seed))
        if adapter is not None:
            loaded = _load_adapters(adapter, whole, not predicts_tokens(request.task), heads)
            repeated = {base_name(name): loaded.pop(name) for name in list(loaded) if _is_base(name)}
            first = canonical_names(base)
            own = pretrained.load({first[name] for name in repeated}) if pretrained is not None else {}
            _refuse_other_base(adapter, repeated, {name: {**drawn, **own}[first[name]] for name in repeated})
            tensors.update(loaded)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: t.detach().clone().contiguous() for name, t in tensors.items()}, path)
    path.chmod(FILE_MODE)  # safetensors writes files for their owner only; workers may run as another user
    return pretrained.notes() if pretrained is not None else ()


def initial_model(config: PretrainedConfig, request: ModelRequest, start: Path, device: str = "cpu") -> nn.Module:
    """Return the whole model with exactly the weights that training starts from, in evaluation mode."""
    model = skeleton(config, request)
    names = canonical_names(model)
    weights = weight_reader(config, request, start)
    fill_model(model, names, weights.read(set(names.values())))
    return model.to(device).eval()


def _draw_missing(base: PreTrainedModel, given: set[str]) -> None:
    """Initialise all tensors that `given` does not name, as transformers initialises them."""
    for name, tensor in _named_tensors(base).items():
        tensor._is_hf_initialized = name in given
    base._move_missing_keys_from_meta_to_device(set(base.state_dict()) - given, None, None, None)
    missing = {
        name: tensor
        for name, tensor in _named_tensors(base).items()
        if name not in given and not tensor.is_meta and tensor.is_floating_point()
    }
    with torch.no_grad():
        for tensor in missing.values():
            tensor.fill_(torch.nan)
    base._initialize_missing_keys(False)
    _construct(base, {name: tensor for name, tensor in missing.items() if bool(tensor.isnan().any())})
    base.tie_weights(recompute_mapping=False)


def _construct(base: PreTrainedModel, left: Mapping[str, torch.Tensor]) -> None:
    """Give tensors that the model's initialisation leaves out the values that its constructor makes.

    On the meta device these are lost, and memory that nothing has written would be taken for weights: the bias of
    Data2Vec's head, the activations of Apertus.
    """
    if not left:
        return
    made = _named_tensors(type(base)(base.config))
    if unknown := left.keys() - made.keys():
        raise Refused(
            f"model: nothing says with what {min(unknown)} of {type(base).__name__} begins; take another family"
        )
    with torch.no_grad():
        for name, tensor in left.items():
            tensor.copy_(made[name])


def _pretrained_heads(whole: nn.Module, drawn: dict[str, torch.Tensor]) -> set[str]:
    """Return base names of the head's tensors that are trained from pretrained values."""
    heads = {pretrained_name(name) for name in _named_tensors(whole) if MODULES_TO_SAVE in name}
    return heads - set(drawn)


def _draw_adapters(whole: nn.Module, heads: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Return LoRA matrices as PEFT draws them (A Kaiming-uniform, B zero), and the trained copies of heads."""
    from peft.tuners.lora import LoraLayer

    torch.manual_seed(seed + 1)
    found: dict[str, torch.Tensor] = {}
    for name, module in whole.named_modules():
        if isinstance(module, LoraLayer):
            for part in (module.lora_A, module.lora_B, module.lora_embedding_A, module.lora_embedding_B):
                part.to_empty(device="cpu")
            module.reset_lora_parameters("default", True)
            prefix = f"{name}."
            found.update({prefix + n: p.detach() for n, p in module.named_parameters() if "lora_" in n})
    for name in _named_tensors(whole):
        if MODULES_TO_SAVE in name:
            found[name] = heads[pretrained_name(name)]
    return found


def _load_adapters(folder: Path, whole: Any, classifies: bool, heads: Collection[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of a PEFT adapter folder under the model's names; Refused if one has no place in it, or if
    it lacks one that an adapter of the request has.

    heads: base names of what starts from the base's values. PEFT saves the heads of HEADS, and leaves others frozen.
    """
    path = folder / "adapter_model.safetensors"
    try:
        stored = load_file(path)
    except Exception as error:
        raise Refused(f"{path}: not a readable adapter ({error})") from None
    from peft.utils.transformers_weight_conversion import convert_peft_adapter_state_dict_for_transformers

    with quiet():  # older names are translated as PEFT does it
        stored = convert_peft_adapter_state_dict_for_transformers(whole, whole.peft_config["default"], stored)
    tensors = _named_tensors(whole)
    named = {name: tensors[first] for name, first in canonical_names(whole).items()}
    body = f"{PEFT_PREFIX}{whole.get_base_model().base_model_prefix}."
    found: dict[str, torch.Tensor] = {}
    for key, tensor in stored.items():
        of_body = key.replace(PEFT_PREFIX, body, 1)  # as AutoModel has it, which makes bodies without a head
        matched = _place(key, named) or _place(of_body, named)
        if matched is None:
            raise Refused(f"{path}: {key} {_no_place({key, of_body}, whole, folder)}")
        shapes = list(tensor.shape), list(named[matched].shape)
        if shapes[0] != shapes[1]:
            raise Refused(f"{path}: {key} {_misfit(key, *shapes, classifies)}")
        held = tensor.to(named[matched].dtype)
        if not bool(held.isfinite().all()):
            raise Refused(
                f"{path}: {key} holds NaN or infinity, from which nothing can be trained; give an adapter from before "
                "its training diverged as lora.start"
            )
        found[matched] = tensor if _is_base(matched) else held
    frozen = {name for name in tensors if pretrained_name(name) in heads and not _is_usual_head(name)}
    new = {name for name in tensors if "lora_" in name or MODULES_TO_SAVE in name}
    lacking = sorted(new - frozen - found.keys())
    if lacking:
        raise Refused(
            f"{path}: holds nothing for {lacking[0]} ({len(lacking)} tensor(s) in all), which would start anew beside "
            f"those that it holds; the adapter's own lora.targets are {setting(folder, 'target_modules')}: give these, "
            "or save the adapter again with all that was trained"
        )
    return found


def _is_usual_head(name: str) -> bool:
    return name.partition(MODULES_TO_SAVE)[0].rpartition(".")[2] in HEADS


def _is_base(name: str) -> bool:
    """Return whether a tensor of a model with adapters is the base's."""
    return "lora_" not in name and MODULES_TO_SAVE not in name


def _refuse_other_base(folder: Path, repeated: Mapping[str, torch.Tensor], base: Mapping[str, torch.Tensor]) -> None:
    """Refuse an adapter with other tensors than its base has: PEFT saves embeddings, and what it trained whole."""
    other = next((n for n, tensor in repeated.items() if not torch.equal(tensor.to(base[n].dtype), base[n])), None)
    if other is not None:
        saved = setting(folder, "modules_to_save")
        why = f" (its modules_to_save {saved} were)" if saved else ""
        raise Refused(
            f"{folder}: holds {other} with other values than model.source, and the base is not trained with an "
            f"adapter{why}; merge the adapter into its base with PEFT and give that as source"
        )


def _place(key: str, named: Mapping[str, torch.Tensor]) -> str | None:
    """Return the name in the model of a tensor of an adapter, which PEFT saves without the adapter's own name."""
    stem, last = key.rsplit(".", 1)
    owner = stem.rsplit(".", 1)
    options = (
        f"{stem}.default.{last}",
        f"{key}.default",
        f"{stem}.modules_to_save.default.{last}",
        f"{owner[0]}.modules_to_save.default.{owner[-1]}.{last}",
        key,
    )
    return next((option for option in options if option in named), None)


def _no_place(keys: set[str], whole: nn.Module, folder: Path) -> str:
    """Say why a tensor of an adapter has no place in the model: other targets, or another model."""
    modules = {name for name, _ in whole.named_modules()}
    inside = {part for key in keys if ".lora_" in key for part in key.split(".lora_")[0].split(".")}
    trained = next((name for name in whole.peft_config["default"].modules_to_save or () if name in inside), "")
    if trained:
        return (
            f"adapts a layer of {trained}, which is trained whole here; merge the adapter into its base with PEFT and "
            "give that as source"
        )
    if modules & {key.split(".lora_")[0] for key in keys if ".lora_" in key}:
        return f"adapts a layer that lora.targets leaves out; the adapter's own are {setting(folder, 'target_modules')}"
    return (
        "has no place in the model: the adapter was made for another model.source or task, or has other names of layers"
    )


def _misfit(key: str, given: list[int], wanted: list[int], classifies: bool) -> str:
    """Say why a tensor of an adapter, of the shape `given`, does not fit the model: rank, classes or another base."""
    rank = -1 if ".lora_B." in key or ".lora_embedding_B" in key else 0
    if "lora_" in key and given[rank] != wanted[rank]:
        return (
            f"is {given}, but by its own settings and lora.r it has rank {wanted[rank]}, which asks for {wanted}; save "
            "the adapter again, or give another lora.start"
        )
    if "lora_" not in key and given[1:] == wanted[1:] and classifies:
        return (
            f"is {given}: the adapter's head is for {given[0]} classes, but the data have {wanted[0]}; give data with "
            "its classes, or another lora.start"
        )
    return f"is {given}, but the model has {wanted} there: the adapter was made for another model.source"


def _named_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {**dict(model.named_parameters()), **dict(model.named_buffers())}
