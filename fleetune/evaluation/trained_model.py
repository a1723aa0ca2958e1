"""The trained model, loaded from its folder by transformers and PEFT alone."""

import json
import warnings
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import PretrainedConfig

from fleetune.contracts.run_config import ModelRequest
from fleetune.errors import Refused, first_line
from fleetune.models.skeleton import AUTO, DTYPES
from fleetune.models.source import source_folder

MODEL, ADAPTER = "model", "adapter"
WEIGHTS, ADAPTER_WEIGHTS = "model.safetensors", "adapter_model.safetensors"
SHARDS = "model.safetensors.index.json"


def result_folder(checkpoint: Path) -> Path:
    """Return model/ or adapter/ of a checkpoint; Refused if it has neither."""
    for name in (MODEL, ADAPTER):
        if (checkpoint / name).is_dir():
            return checkpoint / name
    raise Refused(f"{checkpoint}: holds neither {MODEL}/ nor {ADAPTER}/; train again or verify the run")


def load_trained_model(folder: Path, task: str) -> nn.Module:
    """Load the model of a standard Hugging Face folder; Refused, naming the file, if one is missing or damaged."""
    stored = _weight_files(folder)
    try:
        model, found = AUTO[task].from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise Refused(f"{folder / 'config.json'}: the model cannot be loaded ({first_line(error)})") from None
    lacking = sorted(found["missing_keys"])
    if lacking:
        raise Refused(f"{stored[0]}: {lacking[0]} is missing ({len(lacking)} tensor(s) in all); verify the run")
    return model


def load_base_model(config: PretrainedConfig, request: ModelRequest, adapter: Path) -> nn.Module:
    """Load the pretrained model that an adapter belongs to.

    Refused if a tensor is in neither: those that the pretrained files lack, or hold for other labels, must be in the
    adapter.
    """
    source = source_folder(request)
    assert source is not None, "a model of random weights has no files"
    dtype = DTYPES[request.precision]
    model, found = AUTO[request.task].from_pretrained(
        source,
        config=config,
        dtype=dtype,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    carried = _tensor_names(adapter / ADAPTER_WEIGHTS)
    drawn = {*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])}
    lacking = [name for name in sorted(drawn) if f"base_model.model.{name}" not in carried]
    if lacking:
        raise Refused(
            f"{adapter / ADAPTER_WEIGHTS}: {lacking[0]} is neither in the adapter nor in {source} "
            f"({len(lacking)} tensor(s) in all); the adapter alone does not give the trained model"
        )
    return model


def load_adapter(base: nn.Module, folder: Path) -> nn.Module:
    """Apply the adapter of a standard PEFT folder to its base; Refused, naming a missing or damaged file."""
    from peft import PeftModel, get_peft_model_state_dict

    stored = _tensor_names(folder / ADAPTER_WEIGHTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT warns about keys, which are compared below
        try:
            model = PeftModel.from_pretrained(base, folder)
        except KeyError as error:  # a head that adapter_config.json names
            raise Refused(f"{folder / ADAPTER_WEIGHTS}: {error.args[0]} is missing; verify the run") from None
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise Refused(f"{folder}: the adapter cannot be loaded ({first_line(error)})") from None
        wanted = set(get_peft_model_state_dict(model, save_embedding_layers=False))
    odd = sorted(wanted ^ stored)
    if odd:
        how = "is missing" if odd[0] in wanted else "has no place in the model"
        raise Refused(f"{folder / ADAPTER_WEIGHTS}: {odd[0]} {how} ({len(odd)} tensor(s) in all); verify the run")
    return model


def _weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a model folder; Refused if one cannot be opened."""
    index = folder / SHARDS
    files = [folder / WEIGHTS]
    if index.is_file():
        try:
            named: dict[str, Any] = json.loads(index.read_bytes())["weight_map"]
        except (ValueError, KeyError) as error:
            raise Refused(f"{index}: cannot be read ({error}); verify the run") from None
        files = [folder / name for name in sorted(set(named.values()))]
    for file in files:
        _tensor_names(file)
    return files


def _tensor_names(file: Path) -> set[str]:
    """Return the names of the tensors in a safetensors file."""
    try:
        with safe_open(file, framework="pt") as opened:
            return set(opened.keys())
    except (OSError, SafetensorError) as error:
        raise Refused(f"{file}: cannot be read ({first_line(error)}); verify the run or train again") from None
