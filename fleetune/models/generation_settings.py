"""How a saved model generates: by the settings of its base, of which training knows nothing, and with a cache."""

import copy
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PretrainedConfig

from fleetune.contracts import json_io
from fleetune.contracts.run_config import ModelRequest
from fleetune.models.rotary_settings import older_settings
from fleetune.models.skeleton import canonical_names
from fleetune.models.source import (
    GENERATION,
    PROCESSORS,
    TOKENIZERS,
    is_text_part,
    requested_configuration,
    text_part,
)
from fleetune.models.stored_codes import SETTING, holds_codes

CODE = ("auto_map", "custom_pipelines", "trust_remote_code")
"""Settings by which transformers finds code in a model's folder or on the hub, or is told to run it."""


def generating_configuration(config: PretrainedConfig, request: ModelRequest) -> PretrainedConfig:
    """Return a trained model's configuration for its folder: training computes without a cache, and generation with
    that of the base, or of the request."""
    own, found = requested_configuration(request), copy.deepcopy(config)
    vars(found).pop(SETTING, None)  # what is trained is written as it is, not as codes
    for part, before in ((found, own), (text_part(found), text_part(own))):
        if hasattr(part, "use_cache"):
            part.use_cache = getattr(before, "use_cache", True)
    return found


def save_model(model: Any, config: PretrainedConfig, base: Path | None, target: Path) -> None:
    """Write a model's standard folder, which generates as `base`, the folder of another one, if it generates at all.

    base: None for a model of random weights, which generates by its configuration.
    """
    model.config = config
    name_untied(model, config)
    coded = base is not None and holds_codes(base)  # transformers would quantise again what it read of codes
    if model.can_generate():
        model.generation_config = GenerationConfig()  # the folder's are written below
    model.save_pretrained(target, save_original_format=not coded)
    name_rope(target, base)
    write_generation(model, config, base, target)
    if base is not None and not is_text_part(config, base):
        for name in PROCESSORS:  # of what the model reads beside texts; training writes over its own
            if (base / name).exists():
                shutil.copyfile(base / name, target / name)
    name_no_code(target)


def write_generation(model: Any, config: PretrainedConfig, base: Path | None, target: Path) -> None:
    """Write how `base` generates beside a model or an adapter of it, if it generates at all."""
    if not model.can_generate():
        return
    if base is not None and (base / GENERATION).exists():
        # as it is: transformers writes none that it finds contradictory
        shutil.copyfile(base / GENERATION, target / GENERATION)
    else:
        _settings(config, base).to_json_file(target / GENERATION)  # contradictory ones, too


def write_ends(folder: Path, source: Path, ends: Callable[[Path], Iterable[int]]) -> None:
    """Add to a folder's generation settings the tokens that training put behind texts and answers: the settings of its
    base may not know them, and the model would run on.

    source: the folder of the tokenizer of training, if there is one; ends: gives such tokens of it.
    """
    file = folder / GENERATION
    if not file.exists() or not any((source / name).exists() for name in TOKENIZERS):
        return
    settings = json_io.parse_plain(file.read_bytes(), str(file))
    known = settings.get("eos_token_id")
    before = known if isinstance(known, list) else [] if known is None else [known]
    if new := sorted(set(ends(source)) - set(before)):
        found = [*before, *new]
        settings["eos_token_id"] = found if len(found) > 1 else found[0]
        file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def name_untied(model: Any, config: PretrainedConfig) -> None:
    """Take out of a model's configuration that it ties weights, if none of those is tied: its files hold them apart,
    and a reader that goes by the configuration would leave one out.

    Where transformers 5 ties by the files alone, as for T5, others take the setting for that of the output layer.
    """
    told, names = model.get_expanded_tied_weights_keys(all_submodels=True), canonical_names(model)
    head = None if _heeds_ties(config) else model.get_output_embeddings()
    if head is not None:
        own = {name for name, each in model.named_parameters(remove_duplicate=False) if each is head.weight}
        told = {name: source for name, source in told.items() if name in own}
    if told and all(names[name] != names[source] for name, source in told.items()):
        for part in (config, text_part(config)):
            if getattr(part, "tie_word_embeddings", False):
                part.tie_word_embeddings = False


def _heeds_ties(config: PretrainedConfig) -> bool:
    """Return whether a configuration class takes over from config.json whether weights are tied."""
    try:
        return not getattr(type(config)(tie_word_embeddings=False), "tie_word_embeddings", False)
    except Exception:  # each configuration class raises its own kind of error for what it lacks
        return True


def name_rope(target: Path, base: Path | None) -> None:
    """Name a model's rotary positions as transformers 4 does, too: it and others that do not know `rope_parameters`
    compute with a default of theirs without a word."""
    file, place = target / "config.json", None if base is None else base / "config.json"
    settings = json.loads(file.read_bytes())
    whole = {} if place is None else json_io.parse_plain(place.read_bytes(), str(place))
    scalings = [part.get("rope_scaling") for part in _parts(whole)]
    for part in _parts(settings):
        part.update(older_settings(part, scalings))
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _parts(settings: Any) -> Iterator[dict[str, Any]]:
    """Yield a model's settings, and those of its parts before them."""
    if isinstance(settings, dict):
        for each in settings.values():
            yield from _parts(each)
        yield settings


def name_no_code(folder: Path) -> None:
    """Take out of a folder's settings which Python files are to be run: none of them is in the folder, and a reader
    that trusts it would run those of its base."""
    for path in folder.glob("*config.json"):
        settings = json.loads(path.read_bytes())
        if (plain := _without_code(settings)) != settings:
            path.write_text(json.dumps(plain, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _without_code(value: Any) -> Any:
    """Return settings without those that name code, at any depth."""
    if isinstance(value, list):
        return [_without_code(each) for each in value]
    if isinstance(value, dict):
        plain = {key: each for key, each in value.items() if key not in CODE}
        return {key: each if key == "label2id" else _without_code(each) for key, each in plain.items()}
    return value


def _settings(config: PretrainedConfig, base: Path | None) -> GenerationConfig:
    """Return what a base's configuration says about generation, as those of older models do."""
    if base is None:
        return GenerationConfig.from_model_config(config)
    file = base / "config.json"
    try:
        return GenerationConfig.from_model_config(json_io.parse_plain(file.read_bytes(), str(file)))
    except ValueError:  # of a wrong type, and so transformers would not load the model
        return GenerationConfig.from_model_config(config)
