"""The pretrained files that a run starts from, by digest: later readers read the same or refuse."""

from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.record import record
from fleetune.contracts.run_config import ModelRequest
from fleetune.errors import Refused
from fleetune.filesystem import file_digest
from fleetune.models.source import source_folder, weight_files

BASE_FILES = "base.json"


@record
class BaseFiles:
    """`base.json` in the `model` artifact of a run on pretrained weights."""

    files: dict[str, str]
    """Name in the pretrained folder -> sha256 of the weight files that are read."""


def write_base_files(request: ModelRequest, model_folder: Path) -> None:
    """Write the digests of the pretrained weights; nothing for random ones."""
    source = source_folder(request)
    if source is not None:
        json_io.write(_base_files(source), model_folder / BASE_FILES)


def check_base_files(request: ModelRequest, model_folder: Path) -> None:
    """Refuse pretrained weights that are not those which training started from.

    model_folder: of the `model` artifact; older versions wrote no digests into it.
    """
    source, known = source_folder(request), model_folder / BASE_FILES
    if source is None or not known.exists():
        return
    then, now = json_io.read(BaseFiles, known).files, _base_files(source).files
    changed = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    if changed:
        raise Refused(
            f"model: {source / changed[0]} is not what the run was trained on ({len(changed)} of the base's weight "
            "files differ); put the base back as it was, or train again"
        )


def _base_files(source: Path) -> BaseFiles:
    return BaseFiles(files={path.relative_to(source).as_posix(): file_digest(path) for path in weight_files(source)})
