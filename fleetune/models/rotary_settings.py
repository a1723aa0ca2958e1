"""Settings of rotary positions, which transformers 5 holds in `rope_parameters`. config.json of transformers 4 has them
one by one: `rope_theta`, Gemma 3's `rope_local_base_freq`, GPT-NeoX's `rotary_pct`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

WHOLE = ("rope_scaling", "rope_parameters")
KEPT = ("rope_theta", "partial_rotary_factor")
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


def _parts(config: "PretrainedConfig") -> dict[str, dict[str, Any]]:
    """Return the rotary parameters by kind of layer, or all of one kind without a name."""
    known = getattr(config, "rope_parameters", None)
    if not isinstance(known, dict):
        return {}
    return {kind: part for kind, part in known.items() if isinstance(part, dict)} or {"": known}
