"""The pretrained files that a run starts from, by digest: later readers read the same or refuse."""

from collections.abc import Callable
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.record import record
from fleetune.contracts.run_config import ModelRequest
from fleetune.errors import Refused
from fleetune.filesystem import file_digest
from fleetune.models.source import GENERATION, PROCESSORS, source_folder
from fleetune.models.weight_files import weight_files

BASE_FILES = "base.json"
CONFIG = "config.json"
SETTINGS = ("config.*json", GENERATION, *PROCESSORS)
"""Patterns of the files that are read of a base again beside its weights, when its model is handed over. Tokenizers are
not: prepared data have a copy."""


@record
class BaseFiles:
    """`base.json` in the `model` artifact of a run on pretrained weights."""

    files: dict[str, str]
    """Name in the pretrained folder -> sha256 of the weight files and settings that are read."""


def write_base_files(request: ModelRequest, model_folder: Path) -> None:
    """Write the digests of the pretrained files; nothing for random weights."""
    source = source_folder(request)
    if source is not None:
        json_io.write(BaseFiles(files=_digests(source)), model_folder / BASE_FILES)


def check_base_files(request: ModelRequest, model_folder: Path, note: Callable[[str], None]) -> None:
    """Refuse pretrained files that are not those which training started from; note: told what cannot be compared.

    model_folder: of the `model` artifact, whose digest covers `base.json`: it is missing only where version 1 of the
    stage `prepare` wrote none. Versions 2 and 3 wrote the weight files alone.
    """
    source, known = source_folder(request), model_folder / BASE_FILES
    if source is None:
        return
    then = json_io.read(BaseFiles, known).files if known.exists() else {}
    whole = CONFIG in then
    if not whole:
        lacking, version = ("settings", "versions up to 3") if then else ("files", "version 1")
        note(
            f"model: whether the {lacking} of {source} are still those that the run was trained on is not known, since "
            f"{version} of prepare kept no digests of them; only a new run has them"
        )
    now = _digests(source, whole) if then else {}
    changed = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    if changed:
        raise Refused(
            f"model: {source / changed[0]} is not what the run was trained on ({len(changed)} of the base's files "
            "differ); put the base back as it was, or train again"
        )


def _digests(source: Path, settings: bool = True) -> dict[str, str]:
    found = {path for pattern in SETTINGS if settings for path in source.glob(pattern)}
    return {path.relative_to(source).as_posix(): file_digest(path) for path in sorted({*found, *weight_files(source)})}
