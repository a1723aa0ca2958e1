"""Compares what training starts from with what transformers loads of the same folder, tensor by tensor.

The two are read by different code, so this also guards folders and families that were never tried. Only transformers'
model is held; of ours, a portion at a time.
"""

from pathlib import Path

import psutil
import torch
from torch import nn
from transformers import PretrainedConfig

from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.tasks import predicts_tokens
from fleetune.errors import Refused, first_line
from fleetune.formatting import gigabytes
from fleetune.models.model_class import model_class
from fleetune.models.pretrained import TEXT_PART, Pretrained, quiet
from fleetune.models.skeleton import DTYPES, base_skeleton, canonical_names, skeleton
from fleetune.models.source import adapter_folder, is_text_part, requested_configuration, source_folder
from fleetune.models.weight_portions import portions
from fleetune.models.weights import MODULES_TO_SAVE, WeightReader, pretrained_name

HEADROOM = 1.2
"""Free memory that is needed, as a multiple of the model's weights."""


def compare_start(config: PretrainedConfig, request: ModelRequest, start: Path) -> str | None:
    """Refuse a start that is not transformers' own of the same folder, but for what is drawn and for adapters.

    start: the file that `write_init_weights` wrote. Returns a sentence if the two could not be compared.
    """
    folder = source_folder(request)
    if folder is None:
        return None
    base = base_skeleton(config, request)
    needed = int(HEADROOM * sum(tensor.nbytes for tensor in (*base.parameters(), *base.buffers())))
    free = psutil.virtual_memory().available
    if needed > free:
        return (
            "the start was not compared with what transformers loads of the same folder: that takes about "
            f"{gigabytes(needed, 1)} of this machine's memory, and {gigabytes(free, 1)} are free"
        )
    try:
        theirs, missing = _loaded(config, request, folder)
    except Exception as error:  # any of transformers' own
        return (
            f"the start was not compared with what transformers loads of {folder}, because it does not load it by "
            f"itself ({first_line(error)[:160]})"
        )
    drawn = missing - Pretrained(base, folder).given  # what only they draw differs
    whole = skeleton(config, request)
    reader = WeightReader(base, folder, start)
    given = {
        **dict(theirs.named_parameters(remove_duplicate=False)),
        **dict(theirs.named_buffers(remove_duplicate=False)),
    }
    adapted = adapter_folder(request) is not None
    named = {
        name: pretrained_name(name)
        for name in sorted(set(canonical_names(whole).values()))
        if "lora_" not in name and not (MODULES_TO_SAVE in name and adapted)  # those are the adapter's own
    }
    _refuse_without_partner(set(canonical_names(base)), set(canonical_names(theirs)), folder)
    _refuse_other_ties(canonical_names(base), canonical_names(theirs), folder)
    known = {name: given[pretrained] for name, pretrained in named.items() if pretrained not in drawn}
    numbers = dict(theirs.named_parameters(remove_duplicate=False))  # a buffer may mask by infinity
    for group in portions(known):
        for name, tensor in sorted(reader.read(group).items()):
            if named[name] in numbers and not bool(tensor.isfinite().all()):
                raise Refused(
                    f"model: {name} of {folder} holds NaN or infinity, from which nothing can be trained; fetch the "
                    "model again, or save one from before its training diverged"
                )
            _refuse_other_values(name, tensor, known[name], folder, named[name] in missing)
    return None


def _loaded(config: PretrainedConfig, request: ModelRequest, folder: Path) -> tuple[nn.Module, set[str]]:
    """Return the model that transformers loads, and the names of the tensors that it draws."""
    plain = requested_configuration(request)  # without what is set for training alone
    if not predicts_tokens(request.task):
        plain.id2label, plain.label2id = config.id2label, config.label2id
    part = {TEXT_PART.pattern: ""} if is_text_part(config, folder) else None
    with quiet(), torch.random.fork_rng(devices=[]):
        model, found = model_class(config, request.task).from_pretrained(
            folder,
            config=plain,
            dtype=DTYPES[request.precision],
            key_mapping=part,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    return model, {*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])}


def _refuse_without_partner(ours: set[str], theirs: set[str], folder: Path) -> None:
    odd = sorted(ours ^ theirs)
    if odd:
        whose, by = ("trained", "transformers") if odd[0] in ours else ("loaded by transformers", "what is trained")
        raise Refused(
            f"model: {odd[0]} is {whose} of {folder} ({len(odd)} such tensor(s) in all), and {by} has none of that "
            "name to compare it with; load the folder with transformers and save it again with save_pretrained"
        )


def _refuse_other_ties(ours: dict[str, str], theirs: dict[str, str], folder: Path) -> None:
    other = next((name for name in sorted(ours) if theirs[name] != ours[name]), None)
    if other is not None:
        raise Refused(
            f"model: {other} would be trained as {ours[other]}, but transformers loads it of {folder} as "
            f"{theirs[other]}; this folder cannot be trained here as it is, so save it again with save_pretrained"
        )


def _refuse_other_values(name: str, ours: torch.Tensor, theirs: torch.Tensor, folder: Path, drawn: bool) -> None:
    """drawn: transformers did not find theirs, and a model that it saves has random values there."""
    same = ours.shape == theirs.shape and bool(((ours == theirs) | ((ours != ours) & (theirs != theirs))).all())
    if drawn and not same:
        raise Refused(
            f"model: transformers finds no {name} in {folder}, whose files have it by another name, and would start it "
            "from random values; rename the tensors of the files as save_pretrained names them in a model of this class"
        )
    if not same:
        raise Refused(
            f"model: {name} would start from other values than transformers loads of {folder}; this folder cannot be "
            "trained here as it is, so load it with transformers and save it again with save_pretrained"
        )
