"""The files of a model's folder that transformers loads weights from, by its rules."""

from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.record import check_file_name
from fleetune.errors import Refused
from fleetune.filesystem import is_hub_snapshot

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the safetensors files that transformers loads of a model folder: that which its config.json names, else
    model.safetensors, else those of the index. Refused if an adapter lies beside them, which it applies to them."""
    if (folder / "adapter_config.json").exists():
        raise Refused(
            f"model: {folder} holds adapter_config.json: transformers would put that adapter on the weights beside it, "
            "or load the base that it names. Move the file out of a model's folder, give an adapter as lora.start "
            "with its base as source, or merge it into its base with PEFT and give that as source"
        )
    own = _own_weights(folder)
    first = own or (WHOLE if (folder / WHOLE).exists() else INDEX)
    if not (folder / first).is_file():
        raise Refused(
            f"model: {folder} has no {own or 'model.safetensors (or its index)'}, from which transformers loads its "
            f"weights; save the model with save_pretrained, which writes it{_converted(folder)}"
        )
    names = _indexed(folder, first)
    lost = [name for name in names if not (folder / name).is_file()]
    if lost:
        raise Refused(f"model: {folder} lacks {lost[0]}, which its index names; fetch the model again")
    return tuple(folder / name for name in names)


def _converted(folder: Path) -> str:
    """Where the weights of a name on the hub may be as safetensors, and the lines that write them; empty elsewhere."""
    if not is_hub_snapshot(folder):
        return ""
    name = folder.parents[1].name.removeprefix("models--").replace("--", "/")
    config = json_io.parse_plain((folder / "config.json").read_bytes(), name)
    kind = next(iter(config.get("architectures") or ()), "AutoModel")
    return (
        f". A pull request on {name}'s page may hold converted ones, which model.revision: refs/pr/N takes; else write "
        f"them to a folder, and give it as source: transformers.{kind}.from_pretrained({name!r}).save_pretrained("
        f"FOLDER), and transformers.AutoTokenizer.from_pretrained({name!r}).save_pretrained(FOLDER)"
    )


def weight_names(settings: Path) -> list[str]:
    """Return the names of the weights that may be there, by a folder's settings: not of those that other programs have
    beside them, such as consolidated.safetensors."""
    own = _own_weights(settings)
    if own:
        return _indexed(settings, own)
    return [WHOLE, *(_indexed(settings, INDEX) if (settings / INDEX).exists() else [])]


def _own_weights(folder: Path) -> str | None:
    """Return the name of the weights, or of their index, that a folder's config.json gives."""
    config = folder / "config.json"
    own = json_io.parse_plain(config.read_bytes(), str(config)).get("transformers_weights") if config.exists() else None
    if own:
        check_file_name(f"model: {config}", str(own))
    return str(own) if own else None


def _indexed(folder: Path, first: str) -> list[str]:
    """Return the names that an index of weight files gives, or that of the file itself."""
    if not first.endswith(".index.json"):
        return [first]
    index = folder / first
    try:
        names = sorted(set(json_io.parse_plain(index.read_bytes(), str(index))["weight_map"].values()))
        for name in names:
            check_file_name(f"model: {index}", name)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(f"model: {index} is not an index of weight files; fetch the model again") from None
    return names
