"""What a pretrained folder holds of a model, by transformers' own rules: names, conversions, ties, quantised weights.

transformers loads the folder once into a copy of the model on the meta device, from tensors that have shapes and no
values. That tells which tensors of the files make which of the model's, what is missing and what is left over, without
memory. Tensors are then read one by one.
"""

import copy
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    convert_and_load_state_dict_in_model,
    rename_source_key,
)
from transformers.modeling_utils import LoadStateDictConfig
from transformers.quantizers.auto import AutoHfQuantizer
from transformers.utils import logging

from fleetune.contracts.tasks import predicts_tokens
from fleetune.errors import Refused
from fleetune.models.source import is_text_part
from fleetune.models.weight_files import weight_files

os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")  # one reader: the peak is one tensor, not a pool of them

HEADS = ("classifier", "score")
"""Names of the head in most classification models."""
TEXT_PART = re.compile(r"(?:language_model|text_model)\.")
"""Part of the names of tensors in folders of models of several parts, such as text and vision."""
CODES = re.compile(
    r"[._](scales?|scale_inv|weight_scale\w*|zero_points?|SCB|weight_format|qweight|qzeros|g_idx|weight_packed|"
    r"weight_shape|blocks|absmax|quant_map|quant_state\S*|codebooks?|codes)$"
)
"""Ends of the names of what belongs to a quantised weight."""
ROWS = 4096
"""Rows of two tensors that are compared at once."""


class Pretrained:
    """The tensors of a model (its own names) that a folder holds."""

    def __init__(self, base: PreTrainedModel, folder: Path) -> None:
        self._base = base
        self._folder = folder
        self._quantizer = _quantizer(base.config)
        self._mapping = _conversions(base, self._quantizer)
        self._renamings = [m for m in self._mapping if isinstance(m, WeightRenaming)]
        self._converters = [m for m in self._mapping if isinstance(m, WeightConverter)]
        self._state = base.state_dict()
        self._places: dict[str, Path] = {}
        self._keys: dict[str, list[str]] = {}
        self._untied = _no_longer_tied(base)
        described: dict[str, torch.Tensor] = {}
        for path in weight_files(folder):
            with opened(path) as file:
                for key in file.keys():
                    described[key] = _without_values(file, key)
                    self._places[key] = path
        for key in described:
            for name in self._made_of(key):
                self._keys.setdefault(name, []).append(key)
        scratch = copy.deepcopy(base)
        with quiet():
            found = self._convert(scratch, described, "meta")
            placeless = found.unexpected_keys
            scratch._adjust_missing_and_unexpected_keys(found)
        self._is_part = is_text_part(base.config, folder)  # classes of parts ignore the tensors of others
        self._left_over = sorted(placeless if self._is_part else found.unexpected_keys)
        self._mismatched = {name: list(shape) for name, shape, _ in found.mismatched_keys}
        self._errors = found.conversion_errors
        self._given = {name for name in self._keys if name not in self._mismatched}
        buffers = dict(base.named_buffers())
        self._lacking = {
            name
            for name in found.missing_keys - self._given
            if not name.endswith("num_batches_tracked") and (name in buffers or _entry(base, name).requires_grad)
        }
        read = [(described[key], key, name) for name in self._given for key in self._keys.get(name, ())]
        plain = read if self._quantizer is None else []
        self._coded = [key for stored, key, name in plain if _is_coded(stored, self._state[name])]
        self._bytes = {
            key: stored.dtype
            for stored, key, _ in plain
            if stored.dtype.is_floating_point and stored.element_size() == 1
        }

    @property
    def given(self) -> set[str]:
        """Names of the model's tensors whose values the folder holds, under this name or one that is tied to it."""
        return {name for names in _tied(self._base).values() if self._given & names for name in names}

    def tie(self) -> None:
        """Tie the model's weights as `from_pretrained` does: not two that its configuration ties and its files hold
        with different values."""
        scratch = copy.deepcopy(self._base)
        for group in _to_be_tied(self._base):
            kinds: list[str] = []
            for name in sorted(group & self._given):
                kind = next((n for n, other in enumerate(kinds) if self._same(name, other)), len(kinds))
                kinds += [name] if kind == len(kinds) else []
                owner, _, last = name.rpartition(".")
                stand_in = torch.nn.Parameter(torch.tensor([float(kind)]))  # compared in place of the whole tensor
                setattr(scratch.get_submodule(owner), last, stand_in)
        with quiet():
            scratch.tie_weights(missing_keys=set(self._state) - self._given, recompute_mapping=False)
        self._base.all_tied_weights_keys = scratch.all_tied_weights_keys
        self._base.tie_weights(recompute_mapping=False)
        self._untied = _no_longer_tied(self._base)

    def load(self, wanted: Collection[str]) -> dict[str, torch.Tensor]:
        """Return the wanted parameters and buffers that the folder holds, in the model's type, on the CPU."""
        groups = _tied(self._base)
        first = {id(names): next((n for n in sorted(names) if n in self._given), None) for names in groups.values()}
        stored = {name: first[id(groups[name])] for name in wanted if name in groups}
        held = {name for name in stored.values() if name is not None}
        keys = {key for name in held for key in self._keys[name]}
        files = {path: opened(path) for path in {self._places[key] for key in keys}}
        before = {name: _entry(self._base, name) for key in keys for name in self._made_of(key)}
        try:
            slices = {key: files[self._places[key]].get_slice(key) for key in keys}
            with quiet():
                self._convert(self._base, slices, "cpu")
            found = {name: _entry(self._base, name).detach() for name in held}
        finally:
            for name, tensor in before.items():
                _put(self._base, name, tensor)
        return {name: found[at] for name, at in stored.items() if at is not None and not found[at].is_meta}

    def refuse_unfit(self, task: str) -> None:
        """Refuse a folder that holds too little of the model, or in a way in which it cannot be read."""
        whose = type(self._base).__name__
        for name, said in self._errors.items():
            reason = " ".join(str(said).split())[:160]
            raise Refused(
                f"model: {self._folder}: transformers cannot convert {name} ({reason}); fetch the model again"
            )
        coded = sorted(self._coded) + [
            key
            for key in self._left_over
            if (CODES.search(key) and self._has_owner(key)) or (self._bytes and "scale" in key)
        ]
        if coded:
            raise Refused(
                f"model: {self._folder}: {coded[0]} belongs to a quantised weight ({len(coded)} in all), and "
                "config.json has no quantization_config by which transformers would read it; give the model with plain "
                "weights (float16, bfloat16 or float32) as source"
            )
        for name, shape in sorted(self._mismatched.items()):
            if 0 in shape:
                raise Refused(
                    f"{self._places[self._keys[name][0]]}: {self._keys[name][0]} is {shape}, without a number: the "
                    "checkpoint was saved without gathering its parts, as DeepSpeed's ZeRO-3 leaves them; gather them "
                    "with its zero_to_fp32.py, or save it with stage3_gather_16bit_weights_on_model_save"
                )
            if predicts_tokens(task) or not self._is_head(name):
                key = self._keys[name][0]
                raise Refused(
                    f"{self._places[key]}: {key} is {shape}, but the model's {name} is "
                    f"{list(self._state[name].shape)}; change model.config to fit the weights"
                )
        body = {name for name in self._state if not self._is_head(name)}
        if body and not self.given & body:
            raise Refused(
                f"{self._folder}: no tensor of the body of {whose} is in its files; give the folder of such a model"
            )
        part = self._is_part and predicts_tokens(task)
        lacking = [n for n in self._really_lacking() if part or not self._is_head(n)]
        if lacking:
            raise Refused(
                f"model: {self._folder} has no tensor for {lacking[0]} ({len(lacking)} in all) of "
                f"{'its text part, a ' if self._is_part else ''}{whose}, which would start from random values; fetch "
                "the model again, or save it again from a model that has it"
            )

    def notes(self) -> tuple[str, ...]:
        """Return a sentence for each way in which the model does not start from the folder as it is."""
        whose, said = type(self._base).__name__, []
        new = sorted({*self._really_lacking(), *self._mismatched})
        if new:
            said.append(
                f"{_some(new)} of {whose} start from random values and are trained: {self._folder} does not hold them, "
                "or in another shape"
            )
        if self._bytes:
            key, dtype = min(self._bytes.items())
            said.append(
                f"{_some(sorted(self._bytes))} of {self._folder} are stored as {str(dtype).removeprefix('torch.')} "
                "without scales, and their numbers are taken as they are, as transformers loads them"
            )
        for name, source in sorted(self._untied.items()):
            said.append(
                f"{self._folder} holds {name} with other values than {source}, to which its configuration ties it; "
                "they are trained apart, as transformers loads them"
            )
        if self._left_over and self._is_part:
            said.append(
                f"of the parts of {self._folder}, the text part alone is trained and saved, as a {whose}: "
                f"{_some(self._left_over)} are of others, such as vision, which the trained model does not have"
            )
        elif self._left_over:
            said.append(f"{self._folder}: {_some(self._left_over)} have no place in {whose} and are not used")
        return tuple(said)

    def _really_lacking(self) -> list[str]:
        return sorted(self._lacking - self.given - set(self._mismatched))

    def _is_head(self, name: str) -> bool:
        """Return whether a tensor is of the task's head, or of the pooler below it, which a new task may draw."""
        parts, prefix = name.split("."), self._base.base_model_prefix
        if prefix and isinstance(getattr(self._base, prefix, None), torch.nn.Module):
            return parts[0] != prefix or parts[1] == "pooler"
        output = self._base.get_output_embeddings()
        return parts[0] in HEADS or (output is not None and getattr(self._base, parts[0], None) is output)

    def _has_owner(self, key: str) -> bool:
        """Return whether a name of the files begins with that of a layer of the model."""
        modules = dict(self._base.named_modules())
        owner = next((m for n, _ in enumerate(key) if key[-n - 1] == "." and (m := modules.get(key[: -n - 1]))), None)
        return owner is not None and next(owner.children(), None) is None

    def _made_of(self, key: str) -> list[str]:
        """Names in the model that are made of a tensor of the files."""
        prefix, state = self._base.base_model_prefix, self._state
        name, pattern = rename_source_key(key, self._renamings, self._converters, prefix, state)
        if name not in state and key in state:
            name, pattern = rename_source_key(key, [], [], prefix, state)
        converter = next((c for c in self._converters if pattern is not None and pattern in c.source_patterns), None)
        patterns = [""] if converter is None else converter.target_patterns
        return [made for other in patterns if (made := name.replace(patterns[0], other)) in state]

    def _convert(self, model: PreTrainedModel, tensors: dict[str, Any], device: str) -> Any:
        settings = LoadStateDictConfig(
            weight_mapping=self._mapping,
            hf_quantizer=self._quantizer,
            dtype=next(model.parameters()).dtype,
            device_map={"": device},
        )
        return convert_and_load_state_dict_in_model(model, tensors, settings, None)[0]

    def _same(self, name: str, other: str) -> bool:
        """Return whether two tensors of the files have the same values, a part of them at a time."""
        if len(self._keys[name]) > 1 or len(self._keys[other]) > 1:
            loaded = self.load([name, other])
            return bool(torch.equal(loaded[name], loaded[other]))
        key, second = self._keys[name][0], self._keys[other][0]
        dtype = self._state[name].dtype
        with opened(self._places[key]) as file, opened(self._places[second]) as beside:
            a, b = file.get_slice(key), beside.get_slice(second)
            if a.get_shape() != b.get_shape():
                return False
            rows = range(0, a.get_shape()[0], ROWS)
            return all(torch.equal(a[n : n + ROWS].to(dtype), b[n : n + ROWS].to(dtype)) for n in rows)


def head_modules(base: PreTrainedModel) -> list[str]:
    """Return the names of a classifier's modules outside its body; not of a name that modules of the body end in, too,
    which PEFT would take for them."""
    body = getattr(base, base.base_model_prefix, None) if base.base_model_prefix else None
    if not isinstance(body, torch.nn.Module):
        return [name for name in HEADS if hasattr(base, name)]
    inside = [name for name, _ in body.named_modules()]
    outside = [name for name, each in base.named_children() if each is not body and [*each.parameters()]]
    return [name for name in outside if name in HEADS or not any(other.endswith(name) for other in inside)]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from reporting what it loads; what differs is found out and told here."""
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _quantizer(config: PretrainedConfig) -> Any:
    """Return what dequantises the weights that a configuration says are quantised; None if they are not."""
    settings = getattr(config, "quantization_config", None)
    return None if settings is None else AutoHfQuantizer.from_config(settings, pre_quantized=True)


def _conversions(base: PreTrainedModel, quantizer: Any) -> list[Any]:
    """Return transformers' table of older names; for a model without parts also the names of text parts."""
    whole = not any(TEXT_PART.search(name) for name in base.state_dict())
    found: list[Any] = get_model_conversion_mapping(base, {TEXT_PART.pattern: ""} if whole else None, quantizer)
    return found


def _tied(model: PreTrainedModel) -> dict[str, set[str]]:
    """Return every name of a parameter or buffer -> all names of the same tensor."""
    names: dict[int, set[str]] = {}
    found: dict[str, set[str]] = {}
    for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            found[name] = names.setdefault(id(tensor), set())
            found[name].add(name)
    return found


def _to_be_tied(model: PreTrainedModel) -> list[set[str]]:
    groups: dict[str, set[str]] = {}
    for name, source in model.all_tied_weights_keys.items():
        groups.setdefault(source, {source}).add(name)
    return list(groups.values())


def _no_longer_tied(model: PreTrainedModel) -> dict[str, str]:
    """Return name -> the one that the configuration ties it to, of tensors that are not tied."""
    told = model.get_expanded_tied_weights_keys(all_submodels=True)
    return {name: source for name, source in told.items() if name not in model.all_tied_weights_keys}


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more tensor(s)"


def _entry(model: PreTrainedModel, name: str) -> torch.Tensor:
    owner, _, last = name.rpartition(".")
    module = model.get_submodule(owner)
    held = module._parameters.get(last)
    found = held if held is not None else module._buffers[last]
    assert found is not None
    return found


def _put(model: PreTrainedModel, name: str, tensor: torch.Tensor) -> None:
    owner, _, last = name.rpartition(".")
    module: Any = model.get_submodule(owner)
    (module._parameters if last in module._parameters else module._buffers)[last] = tensor


def _is_coded(stored: torch.Tensor, held: torch.Tensor) -> bool:
    """Return whether a file has whole numbers where the model has others."""
    return held.is_floating_point() and not stored.is_floating_point()


def _without_values(file: Any, key: str) -> torch.Tensor:
    part = file.get_slice(key)
    shape = part.get_shape()
    dtype = (part[:0] if shape else file.get_tensor(key)).dtype
    return torch.empty(shape, dtype=dtype, device="meta")


def opened(path: Path) -> Any:
    """Return an open safetensors file; Refused if it is not one."""
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise Refused(f"{path}: not a readable safetensors file ({error})") from None
