"""The PEFT adapter that training starts from: what its folder says of the function that its weights make."""

import re
from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.run_config import Lora
from fleetune.errors import Refused

SETTINGS = "adapter_config.json"
NOT_HERE = (
    "use_rslora",
    "use_dora",
    "rank_pattern",
    "alpha_pattern",
    "lora_bias",
    "use_qalora",
    "use_bdlora",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
)
"""Settings of PEFT that change what an adapter computes, and that `model.lora` does not have."""
NO_NAMES = ("", "..", "base", "model")
"""Folders that this project writes, whatever the model in them."""
HARMLESS_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights that leave the weights of the base as they are; others, such as pissa, change them."""


def refuse_other_settings(folder: Path, lora: Lora, whole: Any) -> None:
    """Refuse an adapter whose weights make another function by its own settings than by those of the request.

    whole: PEFT's model for the request; PEFT gives experts that are one parameter a rank of their own.
    """
    path = folder / SETTINGS
    if not path.is_file():
        raise Refused(f"model: lora.start: {folder} has no {SETTINGS}; give the folder of a PEFT adapter")
    own = _plain(path)
    kind = own.get("peft_type")
    if kind != "LORA":
        raise Refused(f"{path}: peft_type is {kind!r}, but only LORA can be trained on; give another lora.start")
    settings = whole.peft_config["default"]
    usual = type(settings)()  # by which PEFT reads a file that leaves them out
    for name, ours, wanted in (("r", "r", lora.r), ("lora_alpha", "alpha", lora.alpha)):
        given, how = own.get(name, getattr(usual, name)), "" if name in own else " by default"
        if given != wanted:
            raise Refused(
                f"{path}: {name} is {given}{how}, but model.lora.{ours} is {wanted:g}, by which the adapter would "
                f"compute something else; give lora.{ours}: {given}"
            )
    made = settings.to_dict()
    odd = next((name for name in NOT_HERE if own.get(name) and not _same(own[name], made.get(name))), None)
    if own.get("bias", "none") != "none":
        odd = "bias"
    if own.get("init_lora_weights") not in HARMLESS_STARTS:
        odd = "init_lora_weights"
    if odd is not None:
        raise Refused(
            f"{path}: {odd} is {own[odd]!r}, which model.lora does not have, so that the adapter would compute "
            "something else; merge it into its base with PEFT and give that as source, or give another lora.start"
        )


def _same(stored: Any, made: Any) -> bool:
    """Return whether a setting is the same as a file and as PEFT hold it, which has sets where the file has lists."""
    return (
        sorted(stored) == sorted(made) if isinstance(made, set) and isinstance(stored, list) else bool(stored == made)
    )


def setting(folder: Path, name: str) -> Any:
    """Return a setting of an adapter, such as `target_modules`: the layers that it adapts, or a pattern."""
    return _plain(folder / SETTINGS).get(name)


def other_base(folder: Path, source: str | None) -> str:
    """Return a sentence if an adapter names another base than the model's source by its last component; else empty.

    Where either says no name of a model, as a folder called `model` does, nothing is known.
    """
    named = str(_plain(folder / SETTINGS).get("base_model_name_or_path") or "")
    made_for, here = _model_name(named), _model_name(source or "")
    if not made_for or not here or made_for == here:
        return ""
    return (
        f"the adapter of lora.start ({folder}) was made for {named}, and model.source is {source}; on another model "
        "its weights mean nothing, so give the model that it was made for, unless these are the same"
    )


def _model_name(named: str) -> str:
    """Last component of a hub name or path, in small letters; empty if that is no name of a model."""
    if named.startswith("package:"):
        return ""
    parts = Path(named).parts
    cached = re.fullmatch(r"models--(?:.+--)?(.+)", parts[-3]) if parts[2:] and parts[-2] == "snapshots" else None
    name = cached[1] if cached else Path(named).name
    return "" if name in NO_NAMES else name.lower()


def classes_of(folder: Path) -> tuple[str, ...]:
    """Return the names of the classes of an adapter's head by number; () where its folder does not tell."""
    path = folder / "config.json"
    named = _plain(path).get("id2label") if path.is_file() else None
    try:
        return tuple(str(name) for _, name in sorted((int(number), name) for number, name in (named or {}).items()))
    except (ValueError, AttributeError):
        raise Refused(f"{path}: id2label is no table of numbers and names; save the adapter again") from None


def _plain(path: Path) -> dict[str, Any]:
    found = json_io.parse_plain(path.read_bytes(), str(path))
    if not isinstance(found, dict):
        raise Refused(f"{path}: not a configuration; save the adapter again")
    return found
