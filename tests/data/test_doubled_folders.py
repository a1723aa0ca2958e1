"""Folders of images within folders of a split: what lies in them are classes, and never the split itself."""

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
    ("names", "says"),
    [
        (("train/cat/1.npy", "train/dog/1.npy", "test/all/1.npy"), "set/test: test has one class, all, and the others"),
        (
            ("train/all/1.npy", "test/cat/1.npy", "test/dog/1.npy"),
            "train: train has one class, all, and the .* cat, dog",
        ),
        (
            ("train/cat/1.npy", "train/dog/1.npy", "test/train/a/1.npy"),
            "test has one class, train, and the others have",
        ),
    ],
)
def test_a_split_of_one_class_of_its_own_is_refused(names: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """Such a class is a folder of which nobody knows what it stands for; one that both splits have may be alone."""
    with pytest.raises(Refused, match=says):
        prepared(tmp_path / "d", pictures(tmp_path / "set", *names), IMAGES)
    fine = [name for name in names if "all" not in name and "test/train" not in name]
    fine += ["train/cat/2.npy", "train/dog/2.npy", "test/cat/3.npy"]
    assert prepared(tmp_path / "e", pictures(tmp_path / "fine", *fine), IMAGES).labels == ("cat", "dog")
