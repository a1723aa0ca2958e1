"""Where a model's configuration, tokenizer and pretrained weights come from, and what identifies their content."""

import dataclasses
import hashlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig, PretrainedConfig

from fleetune.contracts.config.model import ModelRequest
from fleetune.errors import Refused

PACKAGE = "package:"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model expects of its data; None where the model does not care."""

    tokenizer: Path | None
    vocab_size: int | None
    max_positions: int | None
    image_size: int | None
    channels: int


def source_folder(request: ModelRequest) -> Path | None:
    """The folder with config.json and safetensors; None for a model described by its config alone."""
    if request.source is None:
        return None
    if request.source.startswith(PACKAGE):
        return _in_package(request.source.removeprefix(PACKAGE))
    if Path(request.source).is_dir():
        return Path(request.source).resolve()
    return _from_hub(request.source)


def settled(request: ModelRequest) -> ModelRequest:
    """The same model without a name of the hub in it, which a worker without a network could not look up."""
    folder = source_folder(request)
    if folder is None or str(request.source).startswith(PACKAGE):
        return request
    return dataclasses.replace(request, source=str(folder))


def folders(request: ModelRequest) -> tuple[Path, ...]:
    """Folders of this machine that the model is read from; those of a package come with the package."""
    start = request.lora.start if request.lora else None
    source = None if str(request.source).startswith(PACKAGE) else source_folder(request)
    return tuple(Path(folder).resolve() for folder in (source, start) if folder)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a model folder, in order of name: those of its index, model.safetensors, or all."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists():
        return (folder / "model.safetensors",)
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Refused(f"model: {index} is not an index of weight files; fetch the model again") from None
        lost = [name for name in names if not (folder / name).is_file()]
        if lost:
            raise Refused(f"model: {folder} lacks {lost[0]}, which its index names; fetch the model again")
        return tuple(folder / name for name in names)
    files = tuple(sorted(p for p in folder.glob("*.safetensors") if not p.name.startswith("adapter")))
    if not files:
        raise Refused(f"model: {folder} has no .safetensors file; save the model with safe_serialization=True")
    return files


def configuration(
    request: ModelRequest, labels: tuple[str, ...] = (), pad_token_id: int | None = None
) -> PretrainedConfig:
    """The model's own configuration with the request's changes, and the labels and padding of the data."""
    folder = source_folder(request)
    changes = dict(request.config or {})
    if folder is None:
        kind = str(changes.pop("model_type"))
        try:
            config = AutoConfig.for_model(kind)
        except ValueError:
            raise Refused(f"model: config.model_type is {kind!r}, which transformers does not know") from None
    else:
        try:
            config = AutoConfig.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise Refused(f"model: {folder} has no usable config.json ({str(error).splitlines()[0]})") from None
    for key, value in changes.items():
        if not hasattr(config, key):
            raise Refused(f"model: config.{key} is not a setting of {type(config).__name__}; see its documentation")
        try:
            setattr(config, key, value)
        except Exception as error:  # configurations check themselves, each with an error of its own
            reason = " ".join(str(error).split())[:160]
            raise Refused(f"model: config.{key} cannot be {value!r} ({reason})") from None
    if folder is None:  # built anew: some settings are worked out from others
        try:
            config = type(config)(**changes)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise Refused(f"model: config does not make a {type(config).__name__} ({reason})") from None
    return _for_training(config, request, labels, pad_token_id)


def needs(request: ModelRequest) -> Needs:
    """What the data must look like for this model."""
    config = configuration(request)
    folder = source_folder(request)
    has_tokenizer = folder is not None and any(
        (folder / n).exists() for n in ("tokenizer.json", "vocab.txt", "vocab.json")
    )
    size = getattr(config, "image_size", None)
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if positions and getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert"):
        positions -= int(config.pad_token_id or 0) + 1  # their positions start after the padding index
    if request.task == "image-classification" and size is None:
        size = 32  # convolutional networks take any size; this is the smallest that every family here can halve
    return Needs(
        tokenizer=folder if has_tokenizer else None,
        vocab_size=getattr(config, "vocab_size", None),
        max_positions=positions,
        image_size=int(size) if size is not None else None,
        channels=int(getattr(config, "num_channels", 3)),
    )


def content_digest(request: ModelRequest) -> str:
    """A hash over every byte the model is read from; equal requests on changed files differ."""
    digest = hashlib.sha256()
    folders = [source_folder(request), Path(request.lora.start) if request.lora and request.lora.start else None]
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder is not None and folder.is_dir() else ():
            if path.is_file():
                digest.update(path.name.encode() + b"\0")
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _for_training(
    config: PretrainedConfig, request: ModelRequest, labels: tuple[str, ...], pad_token_id: int | None
) -> PretrainedConfig:
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if request.task != "causal-lm" and labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: index for index, label in enumerate(labels)}
        config.problem_type = "single_label_classification"
    if request.task == "sequence-classification" and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = pad_token_id or 0  # tells a decoder's head which token is the last
    return config


def _in_package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise Refused(f"model: package {name!r} is not installed; install it or give a folder or a hub name")
    root = Path(next(iter(found.submodule_search_locations)))
    configs = sorted(root.rglob("config.json"), key=lambda path: (len(path.parts), str(path)))
    for config in configs:
        if any(config.parent.glob("*.safetensors")):
            return config.parent
    raise Refused(f"model: package {name!r} carries no config.json beside a .safetensors file")


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns)).resolve()
    except Exception as error:  # the client raises many kinds: no such name, no network, no permission
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise Refused(
            f"model: source {name!r} is neither a folder here nor readable from the hub ({reason[:200]})"
        ) from None
