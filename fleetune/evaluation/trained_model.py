"""The trained model, loaded from its folder by transformers and PEFT alone, and its scores on a whole split."""

import dataclasses
import functools
import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn
from transformers import GenerationConfig, PretrainedConfig

from fleetune.contracts.metrics import ClassScore
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.task import Progress, ignore_progress
from fleetune.contracts.tasks import predicts_labels, predicts_number, predicts_tokens
from fleetune.data.answer_ends import folder_ends
from fleetune.data.prepared_data import PreparedData
from fleetune.errors import Refused, first_line
from fleetune.evaluation.token_loss import samples_at_once, summed_loss
from fleetune.models.base_files import check_base_files
from fleetune.models.export import copy_tokenizer
from fleetune.models.generation_settings import generating_configuration, save_model
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model
from fleetune.models.loss import count_targets
from fleetune.models.model_class import model_class
from fleetune.models.nf4 import PACKED, rounded
from fleetune.models.pretrained import quiet
from fleetune.models.skeleton import DTYPES, saved_configuration, skeleton
from fleetune.models.source import GENERATION, source_folder
from fleetune.models.units import tied_adapter_layers
from fleetune.models.weight_files import weight_files

MODEL, ADAPTER, ADAPTER_SETTINGS = "model", "adapter", "adapter_config.json"
WEIGHTS, ADAPTER_WEIGHTS = "model.safetensors", "adapter_model.safetensors"
SHARDS = "model.safetensors.index.json"


def result_folder(checkpoint: Path) -> Path:
    """Return model/ or adapter/ of a checkpoint; Refused if it has neither."""
    for name in (MODEL, ADAPTER):
        if (checkpoint / name).is_dir():
            return checkpoint / name
    raise Refused(f"{checkpoint}: holds neither {MODEL}/ nor {ADAPTER}/; train again or verify the run")


def load_result(checkpoint: Path, model_folder: Path, request: ModelRequest, note: Callable[[str], None]) -> nn.Module:
    """Return the model of a checkpoint; an adapter is applied to its base, which is read anew.

    model_folder: of the `model` artifact from which training started; note: told what of the base cannot be compared.
    """
    folder = result_folder(checkpoint)
    with quiet():  # a base without its head is reported, although the adapter has it
        if folder.name != ADAPTER:
            return load_trained_model(folder, request.task)
        config = saved_configuration(model_folder / MODEL)
        whole = dataclasses.replace(request, quantization=None)
        if request.source is None:  # random weights have no files: the initial weights are the base
            model = load_adapter(initial_model(config, whole, model_folder / INIT_WEIGHTS).unload(), folder)
        else:
            check_base_files(request, model_folder, note)
            model = load_adapter(load_base_model(config, request, folder), folder)
        if request.quantization is not None:
            saved = json.loads((folder / ADAPTER_SETTINGS).read_bytes()).get("modules_to_save")
            _round_frozen_layers(model, skeleton(config, request, saved or ()))
        return model


def _round_frozen_layers(model: nn.Module, trained: nn.Module) -> None:
    """Give a model the frozen weights that training computed with. trained: as it was trained, without weights."""
    packed = {name for name, parameter in trained.named_parameters() if parameter.dtype == PACKED}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in packed:
                parameter.copy_(rounded(parameter))


def write_merged(
    checkpoint: Path, model_folder: Path, request: ModelRequest, target: Path, note: Callable[[str], None]
) -> None:
    """Write the trained model as a plain Hugging Face folder: an adapter's weights are added to those of its base.

    note: as in `load_result` and `folder_ends`. Refused for an adapter of a weight that two layers share, because
    both would change.
    """
    folder = result_folder(checkpoint)
    model: Any = load_result(checkpoint, model_folder, request, note)
    if folder.name == ADAPTER:
        shared = ", ".join(tied_adapter_layers(model))
        if shared:
            raise Refused(
                f"{folder}: it adapts {shared}, whose weight another layer shares, so that merging would change both; "
                f"export the adapter without --merge, or leave {shared} out of lora.targets and train again"
            )
        with one_thread():  # the same sums whoever merges again
            model, base = model.merge_and_unload(), source_folder(request)
        config = generating_configuration(saved_configuration(model_folder / MODEL), request)
    else:  # what it has of its base is in its folder; the base itself may be gone, or another by now
        config, base = model.config, folder
    with quiet():
        save_model(model, config, base, target)
    copy_tokenizer(folder, target, functools.partial(folder_ends, note=note))


def load_trained_model(folder: Path, task: str) -> nn.Module:
    """Load the model of a standard Hugging Face folder; Refused, naming the file, if one is missing or damaged."""
    stored = _weight_files(folder)
    try:
        model, found = _from_files(saved_configuration(folder), task, folder, stored)
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
    settings = {"dtype": DTYPES[request.precision], "ignore_mismatched_sizes": True}
    model, found = _from_files(config, request.task, source, weight_files(source), **settings)
    carried = _tensor_names(adapter / ADAPTER_WEIGHTS)
    drawn = {*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])}
    lacking = [name for name in sorted(drawn) if f"base_model.model.{name}" not in carried]
    if lacking:
        raise Refused(
            f"{adapter / ADAPTER_WEIGHTS}: {lacking[0]} is neither in the adapter nor in {source} "
            f"({len(lacking)} tensor(s) in all); the adapter alone does not give the trained model"
        )
    return model


def _from_files(
    config: PretrainedConfig, task: str, folder: Path, files: Sequence[Path], **settings: Any
) -> tuple[Any, dict[str, Any]]:
    """Load a model from exactly these safetensors files, and how it generates from its folder.

    transformers is not given the folder: it would choose among the weights there by rules of its own, pickles too, and
    go on to another model that an adapter_config.json names.
    """
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    config.architectures = config.architectures or []  # transformers looks for the class among them
    with torch.device("meta"):
        made = model_class(config, task).from_config(config, dtype=torch.float32, trust_remote_code=False)
    model, found = type(made).from_pretrained(  # its configuration: of some models the text part's
        None, config=made.config, state_dict=tensors, trust_remote_code=False, output_loading_info=True, **settings
    )
    if model.can_generate() and (folder / GENERATION).exists():
        model.generation_config = GenerationConfig.from_dict(json.loads((folder / GENERATION).read_bytes()))
    return model, found


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


BETTER = {
    "accuracy": "higher",
    "micro_f1": "higher",
    "macro_f1": "higher",
    "r2": "higher",
    "mae": "lower",
    "loss": "lower",
    "perplexity": "lower",
}
"""All scores in the order of the tables, with the direction that is better."""
LARGEST_EXPONENT = 700.0
"""Larger exponents overflow a float."""


@dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """Settings for scoring a split."""

    split: str = "test"
    batch_samples: int = 32
    """At most so many at once; fewer where their logits would fill the memory."""
    accelerator: str = "cpu"
    progress: Progress = ignore_progress


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of a model on a split."""

    values: dict[str, float]
    """Classification: accuracy, macro_f1 (over the classes that occur or are predicted), loss (mean per sample).
    causal-lm and seq2seq: loss (mean per predicted token), perplexity (its exponential)."""
    classes: tuple[ClassScore, ...] = ()


def score(model: nn.Module, data: PreparedData, scoring: ScoringOptions, what: str = "model") -> Scores:
    """Score every sample of the split, with the model in evaluation mode, without gradients, on one thread.

    what: the model's name in messages. Refused if the loss is not finite or the split has no targets.
    """
    samples = data.size(scoring.split)
    loss, targets = 0.0, 0
    predicted: list[np.ndarray] = []
    wanted: list[np.ndarray] = []
    model.to(scoring.accelerator).eval()
    with torch.no_grad(), one_thread(), without_cache(model):
        together = samples_at_once(model, data, scoring.batch_samples)
        for first in range(0, samples, together):
            last = min(first + together, samples)
            rows = data.rows(scoring.split, np.arange(first, last))
            labels = rows.pop("labels")
            inputs = {name: torch.from_numpy(array).to(scoring.accelerator) for name, array in rows.items()}
            logits = model(**inputs).logits
            loss += summed_loss(logits, torch.from_numpy(labels).to(scoring.accelerator), data.task)
            targets += count_targets(labels, data.task)
            if not predicts_tokens(data.task):
                predicted.append(_said(logits, data.task).cpu().numpy())
                wanted.append(labels)
            del logits  # before the next batch's are made
            scoring.progress(f"scoring the {what}", last, samples, "samples")
    if not math.isfinite(loss):
        raise Refused(f"evaluation: the loss of the {what} is {loss}; training diverged, lower training.learning_rate")
    if not targets:
        raise Refused(f"{data.folder}: nothing to predict in split {scoring.split!r}; give longer texts")
    mean = loss / targets
    if predicts_tokens(data.task):
        return Scores(values={"loss": mean, "perplexity": math.exp(min(mean, LARGEST_EXPONENT))})
    taken, given = np.concatenate(predicted), np.concatenate(wanted)
    if predicts_number(data.task):
        return Scores(values={**number_scores(taken, given), "loss": mean})
    if predicts_labels(data.task):
        return Scores(values={**label_scores(taken, given), "loss": mean})
    return Scores(
        values={**classification_scores(taken, given), "loss": mean}, classes=class_scores(taken, given, data.labels)
    )


def _said(logits: torch.Tensor, task: str) -> torch.Tensor:
    """Return the class, the number, or for each label whether a sample has it, which is by half of the probability."""
    if predicts_number(task):
        return logits[:, 0]
    return logits > 0 if predicts_labels(task) else logits.argmax(dim=-1)


def number_scores(predicted: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """Return mae, and r2 where the wanted numbers differ; both of shape [samples]."""
    from sklearn.metrics import mean_absolute_error, r2_score

    found = {"mae": float(mean_absolute_error(wanted, predicted))}
    return {"r2": float(r2_score(wanted, predicted)), **found} if np.ptp(wanted) > 0 else found


def label_scores(predicted: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """Return accuracy (all labels of a sample are right), micro_f1 and macro_f1; both of shape [samples, labels]."""
    from sklearn.metrics import f1_score

    given = wanted.astype(bool)
    f1 = {f"{how}_f1": float(f1_score(given, predicted, average=how, zero_division=0)) for how in ("micro", "macro")}
    if given.shape[1] == 1:  # scikit-learn takes one column for classes
        f1 = dict.fromkeys(f1, float(f1_score(given[:, 0], predicted[:, 0], zero_division=0)))
    return {"accuracy": float((given == predicted).all(axis=1).mean()), **f1}


def classification_scores(predicted: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """Return accuracy and macro_f1 of predicted class numbers, shape [samples]."""
    from sklearn.metrics import accuracy_score, f1_score

    macro = f1_score(wanted, predicted, average="macro", zero_division=0)
    return {"accuracy": float(accuracy_score(wanted, predicted)), "macro_f1": float(macro)}


def class_scores(predicted: np.ndarray, wanted: np.ndarray, names: tuple[str, ...]) -> tuple[ClassScore, ...]:
    """Return precision, recall and F1 of every class, in order of number, from class numbers of shape [samples]."""
    from sklearn.metrics import precision_recall_fscore_support

    numbers = list(range(len(names)))
    found = precision_recall_fscore_support(wanted, predicted, labels=numbers, zero_division=0)
    return tuple(
        ClassScore(name=name, samples=int(samples), precision=float(precision), recall=float(recall), f1=float(f1))
        for name, precision, recall, f1, samples in zip(names, *found, strict=True)
    )


@contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """Keep forwards of whole texts from storing keys and values for tokens to come, which would fill the memory."""
    configs = {id(each): each for module in model.modules() if (each := getattr(module, "config", None)) is not None}
    caching = [each for each in configs.values() if getattr(each, "use_cache", False)]
    for each in caching:
        each.use_cache = False
    try:
        yield
    finally:
        for each in caching:
            each.use_cache = True


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread, so that the order of additions is the same on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
