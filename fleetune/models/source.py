"""Sources of a model's configuration, tokenizer and pretrained weights, and the digest of their content."""

import copy
import dataclasses
import hashlib
import importlib.util
import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetune.contracts import json_io
from fleetune.contracts.checkpoint_path import CARD
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.tasks import head_of, predicts_tokens, problem_type
from fleetune.errors import Refused, TryAgain, first_line
from fleetune.filesystem import check_symlinks, is_hub_snapshot
from fleetune.hub import COMMIT, MODEL, HubSilence, commit_of
from fleetune.models.rotary_settings import rotary_advice, rotary_places, set_setting
from fleetune.models.stored_codes import SETTING, dequantise_when_read
from fleetune.models.weight_files import weight_names

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PACKAGE = "package:"
MAIN = "main"
"""The branch of a name on the hub that none is given for."""
ANY_SHAPE = "siglip2"
"""The type of a model that is given an image's patches and their places, and so images of any shape."""
SCALED_OTHERWISE = {"aya_vision", "cohere2_vision"}
"""Models whose text part by itself computes other logits than the whole model does of a text."""
IGNORED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".ot", ".pkl", ".pyc")
TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer_config.json",
)
"""A folder with one of these has a tokenizer."""
SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.spm", "bpe.codes", "*.tokenizer")
"""Patterns of settings and tokenizers on the hub; Marian, BERTweet and ProphetNet have the last three."""
DTYPE = {"dtype", "torch_dtype"}
PROCESSORS = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
GENERATION = "generation_config.json"


def source_folder(request: ModelRequest) -> Path | None:
    """Return the folder with config.json and safetensors; None for a model described by its config alone."""
    source = request.source
    if source is None:
        return None
    if not _is_hub_name(source) and request.revision is not None:
        raise Refused(f"model: revision {request.revision!r} is for names on the hub; {source} is read as it is")
    if source.startswith(PACKAGE):
        return _in_package(source.removeprefix(PACKAGE))
    if Path(source).is_dir():
        folder = Path(source).resolve()
        check_symlinks(folder, "model")
        return folder
    return _from_hub(source, request.revision)


def pin_revision(request: ModelRequest) -> ModelRequest:
    """Return the request with the current commit of its hub name as the revision; the snapshot is downloaded."""
    if request.source is None or not _is_hub_name(request.source):
        return request
    folder = _hub_snapshot(request.source, request.revision)
    return dataclasses.replace(request, revision=folder.name) if COMMIT.fullmatch(folder.name) else request


def with_local_source(request: ModelRequest) -> ModelRequest:
    """Return the request with a hub name replaced by its local folder, since workers may have no network."""
    folder = source_folder(request)
    if folder is None or str(request.source).startswith(PACKAGE):
        return request
    return dataclasses.replace(request, source=str(folder), revision=None)


def local_folders(request: ModelRequest) -> tuple[Path, ...]:
    """Return the local folders that the model is read from, except those inside an installed package."""
    start = str(adapter_folder(request) or "")
    source = None if str(request.source).startswith(PACKAGE) else source_folder(request)
    return tuple(Path(folder).resolve() for folder in (source, start) if folder)


def adapter_folder(request: ModelRequest) -> Path | None:
    """Return the folder of the adapter that training starts from; None if the request names none."""
    if not request.lora or not request.lora.start:
        return None
    folder = Path(request.lora.start)
    check_symlinks(folder, "model: lora.start")
    return folder


def configuration(
    request: ModelRequest, labels: tuple[str, ...] = (), pad_token_id: int | None = None
) -> "PretrainedConfig":
    """Return the model's own configuration with the request's changes, and the labels and padding of the data."""
    return _for_training(requested_configuration(request), request, labels, pad_token_id)


def requested_configuration(request: ModelRequest) -> "PretrainedConfig":
    """Return the model's own configuration with the request's changes alone; of the text part, if only that is
    trained."""
    from transformers import AutoConfig  # takes seconds, which a digest of the model does not need

    folder = source_folder(request)
    changes = copy.deepcopy(dict(request.config or {}))  # configurations write into what they are given
    if DTYPE & set(changes):
        raise Refused(
            f"model: config.{min(DTYPE & set(changes))} has no effect on training, whose numbers are float32 or "
            "float64: leave it out and set model.precision, or model.mixed_precision for half of their bits"
        )
    if folder is None:
        kind = str(changes.pop("model_type"))
        try:
            config = AutoConfig.for_model(kind)
        except ValueError:
            raise Refused(f"model: config.model_type is {kind!r}, which transformers does not know") from None
    else:
        try:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:  # as below: "dtype": "evil" is an AttributeError
            reason = " ".join(str(error).split())[:200]
            raise Refused(f"model: {folder} has no usable config.json ({reason})") from None
    for key, value in changes.items():
        if not _has_setting(config, key, folder is None):
            raise Refused(
                f"model: config.{key} is not a setting of {type(config).__name__}; {rotary_advice(config, key)}"
            )
        try:
            set_setting(config, key, copy.deepcopy(value))
        except Exception as error:  # each configuration class raises its own kind of error
            reason = " ".join(str(error).split())[:160]
            raise Refused(f"model: config.{key} cannot be {value!r} ({reason})") from None
    if folder is None:  # rebuild it, since some settings are derived from others
        try:
            config = type(config)(**changes)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise Refused(f"model: config does not make a {type(config).__name__} ({reason})") from None
    made = _for_task(config, request)
    settings = dequantise_when_read(config, folder) if folder is not None else None
    if settings is not None:
        made.quantization_config = settings
    elif folder is not None:
        vars(made).pop(SETTING, None)  # an empty one, with which transformers loads nothing
    return made


def _for_task(config: "PretrainedConfig", request: ModelRequest) -> "PretrainedConfig":
    """Return the text part of a model of several parts that cannot do the task as a whole; else the configuration."""
    from transformers.models.auto import modeling_auto  # takes seconds, as above

    known = {
        "causal-lm": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        "sequence-classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    }.get(head_of(request.task), {})
    part = text_part(config)
    if part is config or part.model_type not in known:
        return config
    if config.model_type in known:  # of one class for both, transformers makes the part, for adapters, too
        return part if known[config.model_type] == known[part.model_type] else config
    seeing = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.keys()
    composite = seeing | modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.keys()
    if config.model_type not in composite - SCALED_OTHERWISE:
        return config
    if request.lora is not None:
        raise Refused(
            f"model: {request.source or config.model_type} has several parts, of which only the text part "
            f"({part.model_type}) can do {request.task}, and an adapter of a part fits no saved model. Leave lora "
            "out, or save the text part as a folder of its own and give that as source"
        )
    if hasattr(config, "tie_word_embeddings"):
        part.tie_word_embeddings = config.tie_word_embeddings  # the whole model decides
    return part


def content_digest(request: ModelRequest) -> str:
    """Return a digest of every file that the model may be read from."""
    digest = hashlib.sha256()
    for name, path in _read_files(request):
        digest.update(name.encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def content_marks(request: ModelRequest) -> tuple[tuple[str, int, int, int, int], ...]:
    """Return what shows that a file of `content_digest` was touched: path, inode, size, and when it was changed, in ns.
    Files of packages and of the hub's cache can be changed as others can."""
    return tuple(
        (str(path), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        for _, path in _read_files(request)
        for found in (path.stat(),)
    )


def _read_files(request: ModelRequest) -> Iterator[tuple[str, Path]]:
    """Yield (relative name, path) of the files of a request's model and adapter. Of a name on the hub, those that are
    fetched for it: other programs put more into the same snapshot of the cache."""
    source, adapter = (
        folder if folder is not None and folder.is_dir() else None
        for folder in (source_folder(request), adapter_folder(request))
    )
    if source is not None:
        patterns = (*SMALL_FILES, *weight_names(source)) if is_hub_snapshot(source) else ("*",)
        yield from (each for each in _model_files(source) if any(fnmatch(each[0], pattern) for pattern in patterns))
    if adapter is not None:
        yield from _model_files(adapter)


def _model_files(folder: Path) -> list[tuple[str, Path]]:
    """Return (relative name, path) of a model folder's files, subfolders included, since an index may name any of them.

    Hidden folders, and formats that could run code, are never read and are left out.
    """
    found, seen = [], {folder.resolve()}
    for where, folders, names in os.walk(folder, followlinks=True):
        here = Path(where)
        folders[:] = [name for name in folders if not name.startswith(".") and (here / name).resolve() not in seen]
        seen.update((here / name).resolve() for name in folders)
        paths = [here / name for name in names if not name.endswith(IGNORED_SUFFIXES)]
        found += [(path.relative_to(folder).as_posix(), path) for path in paths if path.is_file()]
    return sorted(found)


def _for_training(
    config: "PretrainedConfig", request: ModelRequest, labels: tuple[str, ...], pad_token_id: int | None
) -> "PretrainedConfig":
    for part in (config, text_part(config)):
        if hasattr(part, "use_cache"):
            part.use_cache = False
    if not predicts_tokens(request.task) and labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: index for index, label in enumerate(labels)}
        config.problem_type = problem_type(request.task)
    if head_of(request.task) == "sequence-classification":
        given = pad_token_id is not None and _reads_last_token(config)
        for part in (config, text_part(config)):
            if given or getattr(part, "pad_token_id", None) is None:
                part.pad_token_id = pad_token_id or 0
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        start = getattr(getattr(config, "decoder", None), "bos_token_id", None)  # as T5Gemma's code has it
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) if start is None else start  # as T5's
    _refuse_router_loss(config)
    return config


def _reads_last_token(config: "PretrainedConfig") -> bool:
    """Return whether a classifier of this kind is a decoder, which finds the last token of a text by what pads it.

    Others keep the token of their configuration, from which RoBERTa counts its positions.
    """
    from transformers.models.auto import modeling_auto  # takes seconds, as above

    decoder = config.model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return decoder and config.model_type not in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES


def text_part(config: "PretrainedConfig") -> "PretrainedConfig":
    """Return the configuration of the text model in one of several parts, such as text and vision; else the whole."""
    try:
        return config.get_text_config()
    except ValueError:  # there are several, such as an encoder's and a decoder's
        return config


def is_text_part(config: "PretrainedConfig", folder: Path) -> bool:
    """Return whether a configuration is of one part of the model in a folder."""
    whole = json_io.parse_plain((folder / "config.json").read_bytes(), str(folder / "config.json"))
    return bool(whole.get("model_type", config.model_type) != config.model_type)


def _has_setting(config: "PretrainedConfig", key: str, made_anew: bool) -> bool:
    """Return whether a configuration has a setting, which layers may have for themselves if it is made anew."""
    from transformers.integrations.heterogeneity.configuration_utils import AmbiguousGlobalPerLayerAttributeError

    try:
        return hasattr(config, key) or bool(rotary_places(config, key))
    except Exception as error:
        if made_anew and isinstance(error, AmbiguousGlobalPerLayerAttributeError):
            return True
        reason = f"config.{key} is no single setting of this {type(config).__name__} ({first_line(error)[:99]})"
        raise Refused(f"model: {reason}; leave it out") from None


def _refuse_router_loss(config: "PretrainedConfig") -> None:
    """Refuse a configuration whose models add a router's auxiliary loss to their own loss.

    That loss depends on all tokens of a batch at once, so it is no sum over the samples of several devices.
    """
    if any(getattr(part, "output_router_logits", False) for part in (config, text_part(config))):
        raise Refused(
            "model: config.output_router_logits is true, which adds the router's auxiliary loss to the model's own; it "
            "is not trained here. Set model.config.output_router_logits to false, as transformers does by default"
        )


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


def _is_hub_name(source: str) -> bool:
    return not source.startswith(PACKAGE) and not Path(source).is_dir()


def _from_hub(name: str, revision: str | None) -> Path:
    """Return the folder of a model on the hub; a downloaded commit is read from the cache without a request."""
    if revision is not None and COMMIT.fullmatch(revision):
        try:
            folder = _hub_snapshot(name, revision, local=True)
        except Refused:
            folder = None
        if folder is not None and (folder / "config.json").exists():
            return folder
    return _hub_snapshot(name, revision)


def _hub_snapshot(name: str, revision: str | None, local: bool = False) -> Path:
    """Return the folder of a commit, or of the one to which a branch or tag points now."""
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise Refused(f"model: source {name} is gone: there is no such folder; put it back, or give another as source")
    from huggingface_hub import snapshot_download

    try:
        commit = commit_of(MODEL, name, revision or MAIN)
        given: dict[str, Any] = {"repo_id": name, "revision": commit or revision, "local_files_only": local}
        found = Path(snapshot_download(allow_patterns=[*SMALL_FILES, CARD], **given))
        snapshot_download(allow_patterns=weight_names(found), **given)
    except Refused:
        raise
    except HubSilence as error:
        older = f"; model.revision={error.cached} takes what the cache has" if error.cached else ""
        raise TryAgain(
            f"model: the hub does not tell the commit of {name} at {revision or MAIN} ({error}); try again{older}"
        ) from None
    except Exception as error:  # the client raises many kinds: unknown name, no network, no permission
        reason = first_line(error) or type(error).__name__
        at = f" at revision {revision!r}" if revision else ""
        raise Refused(
            f"model: source {name!r} is neither a folder here nor readable from the hub{at} ({reason})"
        ) from None
    return found.resolve()
