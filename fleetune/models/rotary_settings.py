"""Settings of rotary positions, which transformers 5 holds in `rope_parameters`. config.json of transformers 4 has them
one by one: `rope_theta`, Gemma 3's `rope_local_base_freq`, GPT-NeoX's `rotary_pct`."""

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

WHOLE = ("rope_scaling", "rope_parameters")
KEPT = ("rope_theta", "partial_rotary_factor")
OLDER = (
    *KEPT, "rope_local_base_freq", "global_rope_theta", "local_rope_theta", "swa_rope_theta", "rotary_emb_base",
    "rotary_pct",
)  # fmt: skip
"""Single settings of transformers 4 of which some configuration class of transformers 5 makes rotary parameters."""
SCALED = ("linear", "dynamic", "yarn", "llama3")
"""Scalings that transformers 4 reads as transformers 5 writes them."""
WORDS = ("rope", "rotary")
"""One of them is in the name of each such setting."""
TRIED = (0.5, 0.25)
"""Numbers that each of them may be."""


def rotary_places(config: "PretrainedConfig", key: str) -> list[tuple[dict[str, Any], str]]:
    """Return the rotary parameters that transformers makes of a single setting: a dictionary of a configuration, and
    the name in it. None of most settings, and of those that the configuration does not use."""
    if not any(word in key for word in WORDS):
        return []
    try:
        made = [_parts(type(config)(**{key: number})) for number in TRIED]
    except Exception:  # each configuration class raises its own kind of error for what may be no number
        return []
    return [
        (part, name)
        for kind, part in _parts(config).items()
        for name in part
        if tuple(each.get(kind, {}).get(name) for each in made) == TRIED
    ]


def older_settings(part: dict[str, Any], scalings: Iterable[Any]) -> dict[str, Any]:
    """Return what transformers 4 has for the rotary parameters in a part of config.json; transformers 5 reads that part
    alike with it. scalings: those of the base, kept as they are where nothing changed them."""
    config = _read(part)
    if config is None or not (known := _parts(config)):
        return {}
    found = dict[str, Any]()
    for key in OLDER:
        values = [place[name] for place, name in rotary_places(config, key)]
        if values and key not in part and values.count(values[0]) == len(values):
            found[key] = values[0]
    flat = known.get("", {})
    plain = {name: value for name, value in flat.items() if name not in KEPT}
    for scaling in (*scalings, plain if flat.get("rope_type") in SCALED else None):
        if scaling and "rope_scaling" not in part:
            again = _read({**part, **found, "rope_scaling": scaling})
            if again is not None and again.rope_parameters == config.rope_parameters:
                return {**found, "rope_scaling": scaling}
    return found


def rotary_advice(config: "PretrainedConfig", key: str) -> str:
    """Say what to do about a setting that a configuration does not have."""
    known = getattr(config, "rope_parameters", None)
    named = known and any(word in key for word in WORDS)
    return f"it has model.config.rope_parameters: {known}" if named else "see its documentation"


def set_setting(config: "PretrainedConfig", key: str, value: Any) -> None:
    """Set any setting. ValueError: one of rotary positions cannot be this; what it leaves out of them stays the base's,
    as config.json of transformers 4 has them apart."""
    if key in WHOLE and isinstance(value, dict) and (known := _parts(config)):
        if "" not in known and not known.keys() & value.keys():
            raise ValueError(f"layers have their own; give rope_parameters of {' and '.join(known)}")
        kept = {name: known[""][name] for name in KEPT if name in known.get("", {})}
        config.rope_parameters = {**kept, **value}
        config.standardize_rope_params()
        return
    places = rotary_places(config, key)
    if places and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
        raise ValueError("it is a number above 0")
    for part, name in places:
        part[name] = value
    if not places or hasattr(config, key):
        setattr(config, key, value)


def rotary_parameters(part: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Return what transformers reads of rotary positions in config.json or a part of it; None if it does not know it by
    itself."""
    config = _read({**part})
    return None if config is None else _parts(config)


def _parts(config: "PretrainedConfig") -> dict[str, dict[str, Any]]:
    """Return the rotary parameters by kind of layer, or all of one kind without a name."""
    known = getattr(config, "rope_parameters", None)
    if not isinstance(known, dict):
        return {}
    return {kind: part for kind, part in known.items() if isinstance(part, dict)} or {"": known}


def _read(part: dict[str, Any]) -> "PretrainedConfig | None":
    """Return the configuration of a part of config.json; None if transformers does not know it by itself."""
    from transformers import CONFIG_MAPPING  # takes seconds

    try:
        return CONFIG_MAPPING[part["model_type"]].from_dict(copy.deepcopy(part))
    except Exception:  # each configuration class raises its own kind of error
        return None
