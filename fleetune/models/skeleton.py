"""The model's modules without weights: parameters on the meta device, with requires_grad set for training."""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.pytorch_utils import Conv1D

from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.contracts.tasks import head_of, predicts_tokens
from fleetune.errors import Refused
from fleetune.models.batch_norms import keeps_statistics
from fleetune.models.compute_copies import computed_type, halved_parameters
from fleetune.models.experts import use_recordable_experts
from fleetune.models.model_class import model_class
from fleetune.models.naflex import use_recordable_positions
from fleetune.models.nf4 import pack_frozen_layers
from fleetune.models.pretrained import Pretrained, head_modules
from fleetune.models.source import source_folder

PEFT_TASKS = {"sequence-classification": "SEQ_CLS", "causal-lm": "CAUSAL_LM", "seq2seq": "SEQ_2_SEQ_LM"}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def untied_model(config: PretrainedConfig, request: ModelRequest) -> PreTrainedModel:
    """Return the Hugging Face model on the meta device with no weights tied; Refused if it cannot do the task."""
    if config.architectures is None:  # transformers iterates over them if a type has several classes for a task
        config.architectures = []
    use_recordable_experts(config)
    try:
        with torch.device("meta"), init.no_tie_weights():
            made = model_class(config, request.task)
            model: PreTrainedModel = made.from_config(config, dtype=DTYPES[request.precision], trust_remote_code=False)
    except Exception as error:  # unknown task, inconsistent settings or a missing package
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise Refused(f"model: {type(config).__name__} cannot do {request.task} ({reason})") from None
    use_recordable_positions(model)
    return model


def base_skeleton(config: PretrainedConfig, request: ModelRequest) -> PreTrainedModel:
    """Return the Hugging Face model on the meta device, in training mode, its weights tied as its folder has them.

    Refused if it cannot do the task, or if its folder lacks a part of it.
    """
    model, folder = untied_model(config, request), source_folder(request)
    if folder is None:
        model.tie_weights(recompute_mapping=False)
    else:
        pretrained = Pretrained(model, folder)
        pretrained.tie()
        pretrained.refuse_unfit(request.task)
    return model.train()


def skeleton(config: PretrainedConfig, request: ModelRequest, saved: Sequence[str] | None = None) -> nn.Module:
    """Return the model to train, adapters included, on the meta device, with the types that its weights are held in.

    requires_grad marks trained parameters. saved: the modules that an adapter has trained in full; None: those that are
    today.
    """
    base = base_skeleton(config, request)
    model: nn.Module = base
    if request.lora is not None:
        whole = saved_modules(base, request) if saved is None else tuple(saved)
        model = with_adapters(base, request.lora, request.task, whole).to(DTYPES[request.precision])
    for pattern in request.freeze:
        matched = [p for name, p in model.named_parameters() if re.match(pattern, name)]
        if not matched:
            raise Refused(f"model: freeze pattern {pattern!r} matches no parameter of {type(model).__name__}")
        for parameter in matched:
            parameter.requires_grad_(False)
    if not any(p.requires_grad for p in model.parameters()):
        raise Refused("model: freeze leaves nothing to train; let at least one parameter move")
    if request.quantization is not None:
        _pack(model, base, request)
    dtype = computed_type(request.compute)
    if dtype is not None:
        parameters, halved = dict(model.named_parameters()), halved_parameters(model)
        for frozen in (parameters[name] for name in halved if not parameters[name].requires_grad):
            frozen.data = frozen.data.to(dtype)
    return model.train()


def _pack(model: nn.Module, base: PreTrainedModel, request: ModelRequest) -> None:
    head = base.get_output_embeddings()
    if not pack_frozen_layers(model, keep=[head] if head is not None else []):
        raise Refused(
            f"model: quantization {request.quantization} fits no frozen linear layer of {type(base).__name__}; leave "
            "quantization out"
        )


def saved_modules(base: PreTrainedModel, request: ModelRequest) -> tuple[str, ...]:
    """Return the modules that are trained in full and saved with an adapter.

    These are the task's head, norms whose running statistics change in training, as PEFT advises, and all modules that
    the pretrained files lack; not what transformers itself never trains and computes anew, such as Marian's sinusoidal
    positions.
    """
    heads = [] if predicts_tokens(request.task) else head_modules(base)
    heads += [name for name, module in base.named_modules() if keeps_statistics(module)]
    folder = source_folder(request)
    if folder is None:
        return tuple(heads)
    held = Pretrained(base, folder).given
    canonical = canonical_names(base)
    held = {canonical[name] for name in held}
    computed = {name for name, parameter in base.named_parameters() if not parameter.requires_grad}
    drawn = [name for name in base.state_dict() if canonical.get(name, name) not in held and name not in computed]
    owners = dict.fromkeys(name.rpartition(".")[0] for name in drawn)
    return tuple([*heads, *(name for name in owners if name and name.split(".")[0] not in heads)])


def with_adapters(model: nn.Module, lora: Lora, task: str, saved: tuple[str, ...]) -> nn.Module:
    """Wrap a model with PEFT's LoRA layers; `saved` modules have none, are fully trained and saved with it."""
    from peft import LoraConfig, NoMatchingPeftModuleError, get_peft_model

    settings = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.targets if isinstance(lora.targets, str) else list(lora.targets),
        modules_to_save=list(saved) or None,
        task_type=PEFT_TASKS.get(head_of(task)),
    )
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT warns about transposed weights, which it handles
            return get_peft_model(model, settings)
    except ValueError as error:
        if not isinstance(error, NoMatchingPeftModuleError):
            raise Refused(f"model: lora.targets {lora.targets!r}: {str(error).splitlines()[0][:160]}") from None
        fitting = ", ".join(adaptable(model, saved))
        raise Refused(f"model: lora.targets {lora.targets!r} fit no layer; the layers are {fitting}") from None


def adaptable(model: nn.Module, saved: tuple[str, ...] = ()) -> list[str]:
    """Names of the layers to which LoRA can be added, as lora.targets takes them, each once, in the model's order.

    The output layer is left out, and whole modules that are `saved` beside the adapters.
    """
    output = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    found = dict.fromkeys(
        ".".join(parts[-2:] if parts[-1].isdecimal() else parts[-1:])
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d | Conv1D)
        and module is not output
        and not set(parts := name.split(".")) & set(saved)
    )
    return list(found)


def saved_configuration(folder: Path) -> PretrainedConfig:
    """Return the configuration that was saved with the model's graph."""
    return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Return every name of a parameter or buffer -> the first name of the same tensor (tied weights have several)."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            names[name] = first.setdefault(id(tensor), name)
    return names
