"""Whether the data of a request are still the same: a digest over every byte they are made from."""

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path

from fleetune.contracts.run_config import DataRequest
from fleetune.data.hub import hub_digest
from fleetune.data.sources import source_path
from fleetune.data.stdlib import stdlib_files
from fleetune.errors import Refused

DATA_VERSION = 2
"""Goes up when this room would make other arrays from the same source."""


def content_digest(request: DataRequest) -> str:
    """sha256, as hex, over the bytes of the request's source; one changed byte changes it.

    Every byte is read every time: size and time of change do not show an edit in place. A folder counts with the
    names of its files. Built-in sets count with the versions of what carries them.
    """
    if request.source == "digits":
        return _of_texts("digits", version("scikit-learn"))
    if request.source in ("docstrings", "stdlib-sources"):
        files = [f"{name}\0{_of_file(path)}" for name, path in stdlib_files()]
        return _of_texts(request.source, platform.python_version(), *files)
    path = source_path(request.source)
    if path is None:
        return _of_texts("hub", hub_digest(request.source))
    if path.is_file():
        return _of_texts("file", path.suffix.lower(), _of_file(path))
    names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    return _of_texts("folder", *(f"{name}\0{_of_file(path / name)}" for name in names))


def _of_texts(*texts: str) -> str:
    return hashlib.sha256(json.dumps((DATA_VERSION, *texts)).encode()).hexdigest()


def _of_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror}); give a readable file") from None
