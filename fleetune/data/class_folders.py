"""Images in folders that are named after their classes: FOLDER/CLASS/*.png, or FOLDER/train/CLASS/*.png."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetune.contracts.run_config import DataRequest
from fleetune.data.table import Source
from fleetune.errors import Refused

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".npy", ".png", ".tif", ".tiff", ".webp")
TRAIN = "train"
TEST_FOLDERS = ("test", "validation", "valid", "val", "dev", "eval")
"""Folders that serve as test data; the first that is there is taken."""


@dataclass(frozen=True, kw_only=True)
class ClassFolders:
    """The images of one split, sorted by class and name; paths are relative to the source's folder."""

    owner: str
    columns: tuple[str, str]
    files: tuple[tuple[str, str], ...]
    """(path, class) of each."""
    counted: str = "image"

    def names(self, column: str) -> tuple[str, ...]:
        """Folders give classes names and no numbers."""
        return ()

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Numbered from 1."""
        for number, row in enumerate(self.files, start=1):
            yield number, dict(zip(self.columns, row, strict=True))


def class_folders(folder: Path, request: DataRequest) -> Source | None:
    """The splits of such a folder; None where no folder in it holds an image.

    A class is a folder; what lies deeper belongs to it. With a folder `train` beside none but other splits, classes
    are inside those.
    """
    inside = _folders(folder)
    named = {place.name.lower(): place for place in inside}
    split = TRAIN in named and set(named) <= {TRAIN, *TEST_FOLDERS}
    test = next((named[name] for name in TEST_FOLDERS if name in named), None) if split else None
    train = _table(folder, named[TRAIN] if split else folder, request)
    if not train.files:
        return None
    return Source(
        train=(train,),
        test=(_table(folder, test, request),) if test else (),
        image_column=request.image_column,
        label_column=request.label_column,
        folder=folder,
    )


def _table(root: Path, split: Path, request: DataRequest) -> ClassFolders:
    classes = {place.name: _images(root, place) for place in _folders(split)}
    empty = [name for name, files in classes.items() if not files]
    if empty and len(empty) < len(classes):
        raise Refused(f"{split / empty[0]}: no image in it; allowed are {', '.join(IMAGES)}, or remove the folder")
    return ClassFolders(
        owner=str(split),
        columns=(request.image_column, request.label_column),
        files=tuple((file, name) for name, files in classes.items() for file in files),
    )


def _folders(place: Path) -> list[Path]:
    return [one for one in sorted(place.iterdir()) if one.is_dir() and not one.name.startswith(".")]


def _images(root: Path, place: Path) -> list[str]:
    found = [one for one in place.rglob("*") if one.suffix.lower() in IMAGES and not one.name.startswith(".")]
    return sorted(one.relative_to(root).as_posix() for one in found if one.is_file())
