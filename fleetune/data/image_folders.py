"""Folders of images: a folder per class, below a folder per split where there are splits, as `imagefolder` has them."""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

from fleetune.contracts.run_config import DataRequest
from fleetune.data.data_cards import check_one_set
from fleetune.data.public_words import Told
from fleetune.data.splits import TEST_NAMES, TRAIN, held_out_splits, joined_names, split_names, unread_notes
from fleetune.data.tables import DataSource, Table
from fleetune.errors import Refused
from fleetune.formatting import shortlist

IMAGE_SUFFIXES = (
    *(".apng", ".bmp", ".dib", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".j2c", ".j2k", ".jp2", ".jpc", ".jpf"),
    *(".jpx", ".npy", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
)
"""Those of the formats that fleetune.data.images decodes."""
OTHER_IMAGES = (
    *(".arw", ".avif", ".avifs", ".cr2", ".cr3", ".dcm", ".dds", ".dng", ".exr", ".hdr", ".heic", ".heif", ".jxl"),
    *(".mpo", ".nef", ".npz", ".orf", ".pcx", ".pfm", ".psd", ".qoi", ".rw2", ".sgi", ".svg", ".tga"),
)
"""Those of images that cannot be read."""
NEARLY = 0.9
"""Share of the rows of a table that name an image and its folder; lists on the web have a few faults."""


@dataclass(frozen=True, kw_only=True)
class ImageFolderTable:
    """The image files of one split, sorted by class and name; paths are relative to the source's folder."""

    name: str
    columns: tuple[str, str]
    files: tuple[tuple[str, str], ...]
    """(path, class) of each image."""
    row_noun: str = "image"

    def class_names(self, column: str) -> tuple[str, ...]:
        """Empty: labels are already class names."""
        return ()

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield (number from 1, column -> value) of every image."""
        for number, row in enumerate(self.files, start=1):
            yield number, dict(zip(self.columns, row, strict=True))


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A folder and the images in it at any depth."""

    path: Path
    images: tuple[str, ...]
    """Paths relative to the folder, sorted."""

    @property
    def beside(self) -> tuple[str, ...]:
        """Images directly in the folder."""
        return tuple(image for image in self.images if "/" not in image)

    @property
    def folders(self) -> tuple["_Place", ...]:
        """The folders in it that hold images, by name."""
        found: dict[str, list[str]] = {}
        for image in self.images:
            name, slash, rest = image.partition("/")
            if slash:
                found.setdefault(name, []).append(rest)
        return tuple(_Place(path=self.path / name, images=tuple(found[name])) for name in sorted(found))


def image_folder_source(folder: Path, request: DataRequest, needs_train: bool = True) -> DataSource | None:
    """Open FOLDER/CLASS/*.png or FOLDER/train/CLASS/*.png; None if there is no image.

    Each subfolder is a class and includes its own subfolders. A folder whose name has a split word is a split if all
    others do too, or if it trains and has folders of classes. A folder that holds nothing but one other, of folders,
    counts as that. Raises Refused for images that would not be read, for a test split that has no class of those that
    train, and if `needs_train` and none trains; a test split without classes is left out, and a note says so.
    """
    if others := _images(folder, OTHER_IMAGES):
        raise Told(
            "{}: images such as {} cannot be read, and none is left out in silence; save them as PNG or JPEG, or take "
            "them out of the folder",
            folder,
            shortlist(others),
        )
    whole = _Place(path=folder, images=_images(folder))
    if not whole.images:
        return None
    check_one_set(folder, [folder / image for image in whole.images])
    place = _innermost(whole)
    splits = _splits(place)
    without = [name for name, places in splits.items() if not any(one.folders for one in places)]
    read = {name: places for name, places in splits.items() if name not in without}
    if TRAIN in without or not read:
        raise _no_classes(splits[TRAIN if TRAIN in without else without[0]][0])
    if TRAIN not in read and needs_train:
        raise Told(
            "{}: no train images, only those of {}; keep what to train on in {}, in a folder per class",
            place.path,
            ", ".join(splits),
            place.path / TRAIN,
        )
    held_out = held_out_splits(name for name in TEST_NAMES if name in read)
    for name in filter(None, held_out if TRAIN in read else ()):
        _check_alike(read[TRAIN], name, read[name])
    train, test, validation = (
        tuple(_table(folder, one, request) for one in read.get(name, ())) for name in (TRAIN, *held_out)
    )
    return DataSource(
        train=train,
        test=test,
        validation=validation,
        image_column=request.image_column,
        label_column=request.label_column,
        folder=folder,
        split_notes=(*unread_notes(folder.resolve().name, read, *held_out), *map(_unlabelled_note, without)),
    )


def repeats_folders(table: Table, classes: Collection[str]) -> bool:
    """Whether a table only repeats folders of images: each in a row, or as a column beside nearly all paths of images.

    What else it says must follow from the folder, name the image, or be a split. Case and spaces make no difference.
    """
    wanted, rows = set(map(_plain, classes)), [row for _, row in table.rows()]
    columns = [[_plain(row.get(column, "")) for row in rows] for column in table.columns]
    if len(rows) == len(wanted):
        return any({*cells} == wanted for cells in columns)
    for paths, cells in product(columns, repeat=2):
        folders = (PurePosixPath(path).parent.name for path in paths)
        if sum(one == cell and cell in wanted for one, cell in zip(folders, cells, strict=True)) > NEARLY * len(rows):
            others = [one for one in columns if one is not paths and len({*one}) < len(rows)]
            followed = len({*cells})
            return all(len({*zip(cells, one, strict=True)}) == followed or all(map(split_names, one)) for one in others)
    return False


def _plain(value: object) -> str:
    return " ".join(str(value).casefold().replace("_", " ").split())


def _innermost(place: _Place, split: frozenset[str] = frozenset(), classes: Collection[str] = frozenset()) -> _Place:
    """Go down from a folder that holds one folder of folders and nothing else, unless its name is that of a split or of
    a class; in the folder of a split also to one of its own name."""
    inside = place.folders
    only = inside[0] if len(inside) == 1 and not place.beside else None
    if only is None or split_names(only.path.name) - split:
        return place
    doubled = bool(split) and only.path.name == place.path.name
    stays = only.beside or only.path.name in classes
    return place if stays and not doubled else _innermost(only, split, classes)


def _splits(place: _Place) -> dict[str, tuple[_Place, ...]]:
    """Split name -> its folders; the folder itself is `train` if what it holds are classes."""
    _check_beside(place)
    names = {one: split_names(one.path.name) for one in place.folders}
    trains = any(words == {TRAIN} and one.folders for one, words in names.items())
    if not names or not (trains or all(names.values())):
        _check_classes(place)
        return {TRAIN: (place,)}
    splits: dict[str, tuple[_Place, ...]] = {}
    classes = {one: {each.path.name for each in _innermost(one, words).folders} for one, words in names.items()}
    for one, words in names.items():
        if len(words) != 1:
            raise _unclear(one, words)
        others = set().union(*(found for other, found in classes.items() if other is not one))
        (word,), inner = words, _innermost(one, words, others)
        _check_beside(inner)
        splits[word] = (*splits.get(word, ()), inner)
    return splits


def _check_alike(train: tuple[_Place, ...], name: str, test: tuple[_Place, ...]) -> None:
    """Refuse a test split that has no class of those that train: its classes may lie in it, or beside it."""
    known, found = ({each.path.name for one in places for each in one.folders} for places in (train, test))
    if known.isdisjoint(found):
        raise Told(
            "{}: none of the classes of {name} ({}) is one of {train} ({}); keep the images of each class in a folder "
            "of its own, of the same name in both, or take {name} out of the folder",
            test[0].path,
            shortlist(sorted(found)),
            shortlist(sorted(known)),
            name=name,
            train=TRAIN,
        )


def _check_classes(place: _Place) -> None:
    """Refuse folders that may be those of splits, as some of their names say: each holds only folders, and the same, or
    one trains."""
    inside = [{each.path.name for each in one.folders} for one in place.folders]
    joined = {joined_names(one.path.name) for one in place.folders}
    alike = len(inside[0]) > 1 and all(names == inside[0] for names in inside) if inside[1:] else False
    if not any(one.beside for one in place.folders) and len(joined) > 1 and (alike or {TRAIN} in joined):
        raise Told(
            "{}: it is not clear whether {} are classes or splits, since they hold nothing but folders ({}); call "
            "splits {train} and {tests}, or move the images of each class out of its folders",
            place.path,
            shortlist([one.path.name for one in place.folders]),
            shortlist(sorted(set().union(*inside))),
            train=TRAIN,
            tests=TEST_NAMES[0],
        )


def _unclear(place: _Place, words: frozenset[str]) -> Refused:
    meant = f"names {' and '.join(sorted(words))}" if words else "names no split, and others beside it do"
    return Told(
        "{}: it {}, so its images would not be read; begin its name with {train} or a test split ({tests}) alone, or "
        "take it out of the folder",
        place.path,
        meant,
        train=TRAIN,
        tests=", ".join(TEST_NAMES),
    )


def _check_beside(place: _Place) -> None:
    """Refuse images that lie beside the folders of the classes."""
    if place.beside and place.folders:
        raise Told(
            "{}: {} lies in no folder of a class, so it has no label and would not be read; move it into one ({}), "
            "or out of this folder",
            place.path,
            shortlist(place.beside),
            shortlist([one.path.name for one in place.folders]),
        )


def _no_classes(place: _Place) -> Refused:
    return Told(
        "{}: its images ({}) lie in no folder of a class, so they have no labels; keep them in a folder per class, "
        "such as {}/cat, or name image and label in the rows of a table",
        place.path,
        shortlist(place.images),
        place.path.name,
    )


def _unlabelled_note(split: str) -> str:
    return f"the images of {split} lie in no folder of a class, so they have no labels and are not read"


def _table(root: Path, split: _Place, request: DataRequest) -> ImageFolderTable:
    classes = {one.path.name for one in split.folders}
    there = (one for one in sorted(split.path.iterdir()) if one.is_dir() and not one.name.startswith("."))
    if empty := next((one for one in there if one.name not in classes), None):
        raise Told(
            "{}: no image in it; add one ({suffixes}) or remove the folder",
            empty,
            suffixes=", ".join(IMAGE_SUFFIXES),
        )
    below = split.path.relative_to(root)
    return ImageFolderTable(
        name=str(split.path),
        columns=(request.image_column, request.label_column),
        files=tuple(
            ((below / one.path.name / image).as_posix(), one.path.name) for one in split.folders for image in one.images
        ),
    )


def _images(folder: Path, suffixes: tuple[str, ...] = IMAGE_SUFFIXES) -> tuple[str, ...]:
    """Paths of all images in a folder, relative to it and sorted; not those that are hidden."""
    found: list[str] = []
    for where, folders, names in os.walk(folder, followlinks=True):
        here = Path(where)
        folders[:] = [name for name in folders if not name.startswith(".") and not _is_above(here / name, here)]
        images = (here / name for name in names if not name.startswith(".") and name.lower().endswith(suffixes))
        found += [image.relative_to(folder).as_posix() for image in images if image.is_file()]
    return tuple(sorted(found))


def _is_above(place: Path, here: Path) -> bool:
    """True for a link to a folder that it lies in."""
    return place.is_symlink() and here.resolve().is_relative_to(place.resolve())
