"""Folders of images within folders of a split: what lies in them are classes, and never the split itself."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fleetune.errors import Refused
from tests.support.data.samples import IMAGES, prepared


def pictures(place: Path, *names: str) -> Path:
    """A folder of grey images of these names, each of another level."""
    for number, name in enumerate(names):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(place / name, np.full((8, 8), number, dtype=np.uint8))
    return place


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("training_set/training_set", "test_set/test_set"),
        ("training/training", "validation/validation"),
        ("seg_train/seg_train", "seg_test/seg_test"),
        ("train/images", "test/images"),
        ("train/images", "test"),
        ("set/train/train/v2/images", "set/test"),
    ],
)
def test_a_split_within_its_own_folder_is_no_class(train: str, test: str, tmp_path: Path) -> None:
    """Bug: of doubled folders, as archives unpack them, the split's own name was the class, and `images` was one."""
    names = [f"{split}/{name}/{n}.npy" for split in (train, test) for name in ("cat", "dog") for n in range(3)]
    data = prepared(tmp_path / "d", pictures(tmp_path / "all", *names), IMAGES)
    assert data.labels == ("cat", "dog")
    assert (data.size("train"), data.size("test")) == (6, 6)


def test_a_doubled_folder_without_classes_has_none(tmp_path: Path) -> None:
    """Images to predict in a doubled folder are told, and have no class of the split's name; a doubled folder that is
    alone has classes, too."""
    trains = [f"alphabet_train/alphabet_train/{name}/{n}.npy" for name in "AB" for n in range(5)]
    data = prepared(tmp_path / "a", pictures(tmp_path / "one", *trains), IMAGES)
    assert data.labels == ("A", "B")
    data = prepared(tmp_path / "b", pictures(tmp_path / "two", *trains, "alphabet_test/alphabet_test/A.npy"), IMAGES)
    assert data.labels == ("A", "B")
    assert "the images of test lie in no folder of a class, so they have no labels and are not read" in data.info.notes


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (("train/cat/1.npy", "train/dog/1.npy", "test/cat/in/1.npy", "test/cat/out/1.npy"), ("cat", "dog")),
        (("train/v2/cat/1.npy", "train/v2/dog/1.npy", "test/cat/in/1.npy", "test/cat/out/1.npy"), ("cat", "dog")),
        (("train/cat/1.npy", "train/dog/1.npy", "test/cat/2022/1.npy"), ("cat", "dog")),
        (("train/good/cam1/1.npy", "train/good/cam2/1.npy", "test/good/1.npy", "test/bad/1.npy"), ("bad", "good")),
    ],
)
def test_the_only_class_of_a_split_may_hold_folders(
    names: tuple[str, ...], classes: tuple[str, ...], tmp_path: Path
) -> None:
    """Bug: where a split had one class, the folders in it were taken for the classes, and cameras or years learned."""
    data = prepared(tmp_path / "d", pictures(tmp_path / "set", *names), IMAGES)
    assert (data.labels, data.size("train")) == (classes, 2)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("test/all/1.npy",), r"set/test: none of the classes of test \(all\) is one of train \(cat, dog\)"),
        (("test/chat/1.npy", "test/chien/1.npy"), r"none of the classes of test \(chat, chien\) is one of train"),
        (("test/train/a/1.npy",), r"none of the classes of test \(train\) .* in both, or take test out of the folder"),
    ],
)
def test_a_test_split_of_other_classes_is_refused(names: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """Nobody knows what such folders stand for, as the one that other programs ask for where images have no labels; it
    may be taken out, and a split may have a part of the classes."""
    trains = ("train/cat/1.npy", "train/dog/1.npy", "train/dog/2.npy", "train/cat/2.npy", "train/cat/3.npy")
    with pytest.raises(Refused, match=says):
        prepared(tmp_path / "d", pictures(tmp_path / "set", *trains, *names), IMAGES)
    shutil.rmtree(tmp_path / "set" / "test")
    assert prepared(tmp_path / "e", tmp_path / "set", IMAGES).labels == ("cat", "dog")
    fine = pictures(tmp_path / "fine", *trains, "test/cat/3.npy")
    assert prepared(tmp_path / "f", fine, IMAGES).labels == ("cat", "dog")
