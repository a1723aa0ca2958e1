"""Images in folders named after their classes."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fleetune.contracts.run_config import DataRequest
from fleetune.data import InputNeeds, PreparedData, content_digest
from fleetune.errors import Refused
from tests.data.instances import every_byte, prepared, whole

NEEDS = InputNeeds(task="image-classification", image_size=4)
SHADES = {"cat": 40, "dog": 120, "ant": 200}


def picture(path: Path, shade: int) -> None:
    """A grey square in a file of the suffix's format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 6, 3), shade, dtype=np.uint8), "RGB").save(path)


def zoo(folder: Path, count: int = 5) -> Path:
    """`count` images of each animal; ants lie one folder deeper and one file has a suffix in capitals."""
    for name, shade in SHADES.items():
        for n in range(count):
            place = folder / name / "deeper" if name == "ant" else folder / name
            picture(place / f"{n}.{'PNG' if n == 0 else 'png'}", shade + n)
    return folder


def shades(data: PreparedData, split: str) -> set[tuple[int, str]]:
    """(grey level, name of the class) of every image of a split."""
    rows = whole(data, split)
    levels = np.rint((rows["pixel_values"][:, 0, 0, 0] * 0.5 + 0.5) * 255).astype(int)
    return {(int(level), data.labels[label]) for level, label in zip(levels, rows["labels"], strict=True)}


def expected(count: int = 5) -> set[tuple[int, str]]:
    """What a zoo holds."""
    return {(shade + n, name) for name, shade in SHADES.items() for n in range(count)}


def test_folders_are_classes(tmp_path: Path) -> None:
    """FOLDER/CLASS/*.png was refused; it is the most common way to keep images."""
    data = prepared(tmp_path / "d", zoo(tmp_path / "set"), NEEDS)
    assert data.labels == ("ant", "cat", "dog")
    assert shades(data, "train") | shades(data, "test") == expected()
    assert (data.size("train"), data.size("test")) == (12, 3)


@pytest.mark.parametrize("test", ["test", "validation", "val"])
def test_splits_may_be_above_the_classes(test: str, tmp_path: Path) -> None:
    """With train/ and test/ on top each split keeps its own images."""
    zoo(tmp_path / "set" / "train", 3)
    picture(tmp_path / "set" / test / "dog" / "x.jpg", 7)
    data = prepared(tmp_path / "d", tmp_path / "set", NEEDS)
    assert shades(data, "train") == expected(3)
    assert shades(data, "test") == {(7, "dog")}


def test_a_class_called_test_is_a_class(tmp_path: Path) -> None:
    """Names of splits are splits only where one of them is train and nothing else is there."""
    zoo(tmp_path / "set")
    picture(tmp_path / "set" / "test" / "x.png", 250)
    assert prepared(tmp_path / "d", tmp_path / "set", NEEDS).labels == ("ant", "cat", "dog", "test")


def test_order_is_that_of_names(tmp_path: Path) -> None:
    """Files written in another order give the same arrays, byte for byte."""
    zoo(tmp_path / "one")
    for file in sorted((tmp_path / "one").rglob("*.*"), reverse=True):
        place = tmp_path / "two" / file.relative_to(tmp_path / "one")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
    made = []
    for name in ("one", "two"):
        prepared(tmp_path / f"d-{name}", tmp_path / name, NEEDS)
        made.append({k: v for k, v in every_byte(tmp_path / f"d-{name}").items() if k != "data.json"})
    assert made[0] == made[1]


def test_every_image_counts_for_the_digest(tmp_path: Path) -> None:
    """One changed pixel is other data."""
    request = DataRequest(source=str(zoo(tmp_path / "set")))
    before = content_digest(request)
    picture(tmp_path / "set" / "cat" / "1.png", 99)
    assert content_digest(request) != before


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    """The message has the file, not only its number."""
    (zoo(tmp_path / "set") / "cat" / "3.png").write_bytes(b"no image")
    with pytest.raises(Refused, match=r"set: image 9, image \(3\.png\): cannot be read as an image"):
        prepared(tmp_path / "d", tmp_path / "set", NEEDS)


def test_a_class_without_images_is_refused(tmp_path: Path) -> None:
    """A folder that lost its images would be a class that is never learned."""
    (zoo(tmp_path / "set") / "eel").mkdir()
    (tmp_path / "set" / "eel" / "notes.txt").write_text("gone")
    with pytest.raises(Refused, match=r"set/eel: no image in it"):
        prepared(tmp_path / "d", tmp_path / "set", NEEDS)


@pytest.mark.parametrize("link", ["eel", "cat/link.png"])
def test_links_that_leave_the_folder_are_refused(link: str, tmp_path: Path) -> None:
    """What is read lies in the folder that was named, or nothing is read."""
    zoo(tmp_path / "set")
    zoo(tmp_path / "elsewhere")
    (tmp_path / "set" / link).symlink_to(tmp_path / "elsewhere" / ("dog" if link == "eel" else "dog/1.png"))
    with pytest.raises(Refused, match="is a link to .*, outside of"):
        prepared(tmp_path / "d", tmp_path / "set", NEEDS)
