"""Images: decoding, resizing, channels, and folders named after classes."""

import csv
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.images import as_image, convert_channels, resize
from fleetune.data.prepared_data import PreparedData
from fleetune.data.sources import content_digest
from fleetune.data.unlabelled import asked_images
from fleetune.errors import Refused
from tests.support.data.samples import TEXT, every_byte, json_lines, prepared, whole


def test_growing_interpolates_between_pixel_centres() -> None:
    """Two pixels grown to four: the ends repeat, the middle mixes a quarter and three quarters."""
    image = np.array([[0.0, 1.0]] * 2)[:, :, None]
    assert np.allclose(resize(image, 4)[:, :, 0], [[0, 0.25, 0.75, 1]] * 4)


def test_shrinking_counts_every_pixel() -> None:
    """A chequered image shrunk by half is grey everywhere, so every pixel counts."""
    chequered = (np.indices((8, 8)).sum(axis=0) % 2).astype(float)[:, :, None]
    assert np.allclose(resize(chequered, 4)[1:-1, 1:-1], 0.5)


def test_flat_stays_flat_and_equal_size_is_untouched() -> None:
    """Resize weights sum to one, and an image of the right size is returned as is."""
    assert np.allclose(resize(np.full((5, 9, 3), 0.3), 7), 0.3)
    image = np.random.default_rng(0).random((6, 6, 1))
    assert resize(image, 6) is image


def test_channels_are_made_to_fit() -> None:
    """Grey is repeated, colour becomes luminance, alpha is dropped; other conversions are refused."""
    grey, colour = np.full((1, 1, 1), 0.5), np.array([[[1.0, 0.0, 0.0]]])
    assert convert_channels("x", grey, 3).tolist() == [[[0.5, 0.5, 0.5]]]
    assert convert_channels("x", colour, 1)[0, 0, 0] == pytest.approx(0.299)
    assert convert_channels("x", np.ones((1, 1, 4)), 3).shape == (1, 1, 3)
    with pytest.raises(Refused, match="3 channels, but the model takes 2"):
        convert_channels("x", colour, 2)


def test_whole_numbers_are_bytes_and_fractions_are_kept() -> None:
    """Integers are scaled from 0..255 and floats are kept: 255 and 1.0 are both white."""
    assert as_image("x", [[0, 255]], None)[0, :, 0].tolist() == [0, 1]
    assert as_image("x", [[0.0, 1.0]], None)[0, :, 0].tolist() == [0, 1]


def test_paths_are_read_inside_the_folder_only(tmp_path: Path) -> None:
    """A .npy beside the table is read; a path that leaves the folder is refused."""
    folder = tmp_path / "set"
    folder.mkdir()
    for place in (folder / "a.npy", tmp_path / "outside.npy"):
        np.save(place, np.full((2, 2), 255, dtype=np.uint8))
    assert as_image("x", "a.npy", folder).min() == 1
    for path in ("../outside.npy", str(tmp_path / "outside.npy"), "gone.npy"):
        with pytest.raises(Refused, match="inside"):
            as_image("x", path, folder)
    (folder / "b.npy").write_bytes(b"nonsense")
    with pytest.raises(Refused, match=r"\(b\.npy\): cannot be read"):
        as_image("x", "b.npy", folder)


def test_own_images_are_prepared(tmp_path: Path) -> None:
    """Nested lists of a JSON lines file become normalised images in the size of the first image."""
    rows = [{"image": [[n * 10, 0, 0], [0, 0, 0]], "label": "dark" if n < 6 else "light"} for n in range(12)]
    spec = InputSpec(task="image-classification", channels=1)
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), spec)
    pixels = whole(data, "train")["pixel_values"]
    assert pixels.shape[1:] == (1, 3, 3)
    assert pixels.min() >= -1
    assert pixels.max() < 1
    assert data.labels == ("dark", "light")


def test_request_decides_the_side(tmp_path: Path) -> None:
    """image_size of the data section overrides the model's own."""
    spec = InputSpec(task="image-classification", image_size=16)
    data = prepared(tmp_path / "d", "digits", spec, image_size=12, train_samples=4, test_samples=4)
    assert whole(data, "test")["pixel_values"].shape == (4, 3, 12, 12)


def png(width: int, height: int) -> bytes:
    """PNG header for an image of that size, with hardly any content."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    ends = chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + ends


@pytest.mark.parametrize("side", [8200, 9600, 14000, 60000])
def test_a_decompression_bomb_is_refused(side: int) -> None:
    """Regression: a kilobyte could fill the memory; oversized images are refused before decoding."""
    with pytest.raises(Refused, match=f"x: (an image of {side * side} pixels, allowed are|cannot be read as an image)"):
        as_image("x", png(side, side), None)


def test_an_array_that_promises_more_than_it_holds(tmp_path: Path) -> None:
    """An oversized shape in a .npy header is refused without allocating memory."""
    for count in (1 << 20, 1 << 40):
        with (tmp_path / "a.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "|u1", "fortran_order": False, "shape": (count, 1 << 10)}
            )
        with pytest.raises(Refused, match="cannot be read as an array"):
            as_image("x", "a.npy", tmp_path)
    with (tmp_path / "a.npy").open("r+b") as file:  # sparse: as large as it says, and nothing on disk
        file.seek(0)
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": (1 << 15, 1 << 15)}
        )
        file.truncate(file.tell() + (1 << 30))
    with pytest.raises(Refused, match="an image of 268435456 pixels"):
        as_image("x", "a.npy", tmp_path)


@pytest.mark.parametrize(
    "content", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", png(4, 4)[:40], b"BM" + b"\xff" * 60]
)
def test_what_pillow_would_hand_on_or_stumble_over(content: bytes) -> None:
    """PostScript, which Pillow would run in another program, and damaged files are refused in one sentence."""
    with pytest.raises(Refused, match="x: cannot be read as an image"):
        as_image("x", content, None)


DEEP = {
    "16 bits": (np.uint16, "PNG", [0, 6554, 32768, 65535]),
    "16 bits, the other way round": (">u2", "TIFF", [0, 6554, 32768, 65535]),
    "32 bits": (np.int32, "TIFF", [0, 6554, 32768, 65535]),
    "fractions": (np.float32, "TIFF", [0, 0.1, 0.5, 1]),
}


def encoded(pixels: list[float], dtype: Any, format: str) -> bytes:
    """A file with a row of these grey levels."""
    content = io.BytesIO()
    Image.fromarray(np.array([pixels], dtype=dtype)).save(content, format)
    return content.getvalue()


@pytest.mark.parametrize("case", DEEP)
def test_grey_of_more_than_8_bits_keeps_its_levels(case: str) -> None:
    """Bug: everything above 255 became white, and fractions black; levels are scaled from 0..65535 or taken as is."""
    dtype, format, pixels = DEEP[case]
    found = as_image("x", encoded(pixels, dtype, format), None)
    assert found.shape == (1, 4, 1)
    assert np.allclose(found[0, :, 0], [0, 0.1, 0.5, 1], atol=1e-4)


@pytest.mark.parametrize(
    ("white", "inverted", "told"), [(4095, False, True), (4095, True, True), (65535, False, False)]
)
def test_sixteen_bits_that_hold_twelve_are_told(white: int, inverted: bool, told: bool, tmp_path: Path) -> None:
    """Bug: images of a camera of 12 bits were read as nearly black ones without a word. Where 0 is white, they are
    nearly white; and a set that uses its 16 bits may have a dark image."""
    for number in range(10):
        path = tmp_path / "set" / "ab"[number % 2] / f"{number}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        levels = np.array([[0, white // 2], [white, number]], dtype=np.uint16) // (1 if number else 20)
        Image.fromarray(levels).save(path, tiffinfo={262: 0} if inverted else {})
    notes = prepared(tmp_path / "d", tmp_path / "set", SPEC).info.notes
    assert any("10 of 10 images are all but black" in note and "12 or fewer" in note for note in notes) == told


@pytest.mark.parametrize(
    ("dtype", "pixels"),
    [(np.int32, [0, 70000]), (np.int32, [-1, 5]), (np.float32, [0, 255]), (np.float32, [0, float("nan")])],
)
def test_grey_beyond_its_levels_is_refused(dtype: Any, pixels: list[float]) -> None:
    """What is no fraction and no level of 16 bits has no known white."""
    with pytest.raises(Refused, match=r"x: .* neither whole numbers 0\.\.65535 nor fractions 0\.\.1; scale them"):
        as_image("x", encoded(pixels, dtype, "TIFF"), None)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_deep_images_are_upright(kind: str, orientation: int) -> None:
    """An image of 16 bits is turned as the same image of 8 bits."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = []
    for levels in (
        np.arange(6, dtype=np.uint8).reshape(2, 3) * 40,
        np.arange(6, dtype=np.uint16).reshape(2, 3) * 40 * 257,
    ):
        content = io.BytesIO()
        Image.fromarray(levels).save(content, kind, exif=exif)
        found.append(as_image("x", content.getvalue(), None))
    assert found[0].shape == ((3, 2, 1) if orientation > 4 else (2, 3, 1))
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "I;16"])
def test_an_image_of_pillow_is_that_of_its_file(mode: str) -> None:
    """The datasets package hands over images that it has decoded: numbers of a palette are no levels of grey."""
    colours = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3) * 5)
    levels = Image.fromarray(np.arange(16, dtype=np.uint16).reshape(4, 4) * 4000)
    made = levels if mode == "I;16" else colours.convert(mode)
    content = io.BytesIO()
    made.save(content, "TIFF")
    assert np.array_equal(as_image("x", made, None), as_image("x", content.getvalue(), None))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_white_may_be_zero(dtype: Any) -> None:
    """A TIFF file says whether 0 is white or black, at any depth."""
    white = 1.0 if dtype is np.float32 else float(np.iinfo(dtype).max)
    levels = np.array([[0, 0.25, 0.5, 1]]) * white
    content = io.BytesIO()
    Image.fromarray(levels.astype(dtype)).save(content, "TIFF", tiffinfo={262: 0})
    stored = content.getvalue()
    found = as_image("x", stored, None)[0, :, 0]
    with Image.open(io.BytesIO(stored)) as opened:
        assert opened.tag_v2[262] == 0  # type: ignore[attr-defined]  # of TIFF files
    shown = [0, 0.25, 0.5, 1] if dtype is np.uint8 else [1, 0.75, 0.5, 0]  # Pillow writes those of 8 bits turned around
    assert np.allclose(found, shown, atol=0.004)


@pytest.mark.parametrize(
    ("orientation", "turned"), [(1, [[0, 1], [2, 3]]), (6, [[2, 0], [3, 1]]), (3, [[3, 2], [1, 0]])]
)
def test_photos_are_upright(orientation: int, turned: list[list[int]]) -> None:
    """A camera that was held upright writes pixels that lie, and says so: viewers turn them, and so does training."""
    exif, content = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    levels = np.array([[0, 60], [120, 240]], dtype=np.uint8)
    Image.fromarray(levels).save(content, "PNG", exif=exif)
    found = np.rint(as_image("x", content.getvalue(), None)[:, :, 0] * 255)
    assert np.array_equal(found, levels.reshape(-1)[np.array(turned)])


SPEC = InputSpec(task="image-classification", image_size=4)
SHADES = {"cat": 40, "dog": 120, "ant": 200}


def picture(path: Path, shade: int) -> None:
    """A grey square in a file of the suffix's format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 6, 3), shade, dtype=np.uint8), "RGB").save(path)


def zoo(folder: Path, count: int = 5) -> Path:
    """`count` images per animal; ants are one folder deeper and one file has an upper-case suffix."""
    for name, shade in SHADES.items():
        for n in range(count):
            place = folder / name / "deeper" if name == "ant" else folder / name
            picture(place / f"{n}.{'PNG' if n == 0 else 'png'}", shade + n)
    return folder


def shades(data: PreparedData, split: str) -> set[tuple[int, str]]:
    """(grey level, class name) of every image of a split."""
    rows = whole(data, split)
    levels = np.rint((rows["pixel_values"][:, 0, 0, 0] * 0.5 + 0.5) * 255).astype(int)
    return {(int(level), data.labels[label]) for level, label in zip(levels, rows["labels"], strict=True)}


def expected(count: int = 5) -> set[tuple[int, str]]:
    """The (grey level, class name) pairs of a zoo."""
    return {(shade + n, name) for name, shade in SHADES.items() for n in range(count)}


def test_folders_are_classes(tmp_path: Path) -> None:
    """FOLDER/CLASS/*.png is read with the folder names as classes."""
    data = prepared(tmp_path / "d", zoo(tmp_path / "set"), SPEC)
    assert data.labels == ("ant", "cat", "dog")
    assert shades(data, "train") | shades(data, "test") == expected()
    assert (data.size("train"), data.size("test")) == (12, 3)


@pytest.mark.parametrize("suffix", ["jfif", "jpe", "ppm", "jp2", "JPEG", "dib", "apng"])
def test_every_suffix_of_a_format_that_is_decoded_is_an_image(suffix: str, tmp_path: Path) -> None:
    """Bug: these were left out without a word, of a folder of classes and of one that is asked about."""
    for name, shade in SHADES.items():
        for number in range(2):
            picture(tmp_path / "set" / name / f"{number}.png", shade + number)
        picture(tmp_path / "set" / name / "2.png", shade + 2)
        (tmp_path / "set" / name / "2.png").rename(tmp_path / "set" / name / f"2.{suffix}")
    data = prepared(tmp_path / "d", tmp_path / "set", SPEC)
    assert shades(data, "train") | shades(data, "test") == expected(3)
    assert len(list(asked_images([tmp_path / "set" / "cat"]))) == 3


@pytest.mark.parametrize("name", ["cat/9.heic", "dog/9.AVIF", "9.jxl"])
def test_images_that_cannot_be_read_are_refused(name: str, tmp_path: Path) -> None:
    """Bug: they were left out without a word; with nothing else in the folder they are named, too."""
    for folder in (zoo(tmp_path / "set"), tmp_path / "alone"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
        with pytest.raises(Refused, match=rf"images such as {name} cannot be read.*; save them as PNG or JPEG"):
            prepared(tmp_path / "d", folder, SPEC)
        with pytest.raises(Refused, match=f"{Path(name).name}: cannot be read; save it as PNG or JPEG"):
            list(asked_images([(folder / name).parent]))


@pytest.mark.parametrize("test", ["test", "validation", "val"])
def test_splits_may_be_above_the_classes(test: str, tmp_path: Path) -> None:
    """With train/ and test/ above the classes, each split keeps its own images."""
    zoo(tmp_path / "set" / "train", 3)
    picture(tmp_path / "set" / test / "dog" / "x.jpg", 7)
    data = prepared(tmp_path / "d", tmp_path / "set", SPEC)
    assert shades(data, "train") == expected(3)
    assert shades(data, "test") == {(7, "dog")}


@pytest.mark.parametrize(("train", "test"), [("training", "testing"), ("train_set", "val_set"), ("Train", "Test")])
def test_folders_with_a_split_word_are_splits(train: str, test: str, tmp_path: Path) -> None:
    """Bug: `training` and `testing` were two classes. Folders without images beside them, and hidden images, are none,
    and folders around the splits may have any names."""
    zoo(tmp_path / "set" / "v1" / train, 3)
    picture(tmp_path / "set" / "v1" / test / "dog" / "x.jpg", 7)
    picture(tmp_path / "set" / "v1" / train / "dog" / ".thumbs" / "x.jpg", 8)
    (tmp_path / "set" / "v1" / "annotations").mkdir()
    data = prepared(tmp_path / "d", tmp_path / "set", SPEC)
    assert shades(data, "train") == expected(3)
    assert shades(data, "test") == {(7, "dog")}


def test_classes_may_lie_one_folder_deeper(tmp_path: Path) -> None:
    """Bug: of a folder that holds nothing but one folder of classes, that one folder was the only class."""
    assert prepared(tmp_path / "d", zoo(tmp_path / "set" / "images").parent, SPEC).labels == ("ant", "cat", "dog")


def test_a_class_called_test_is_a_class(tmp_path: Path) -> None:
    """Split names count as splits only if all folders have them, or one that trains has folders of classes."""
    zoo(tmp_path / "set")
    for name in ("test", "train"):
        picture(tmp_path / "set" / name / "x.png", 250)
    assert prepared(tmp_path / "d", tmp_path / "set", SPEC).labels == ("ant", "cat", "dog", "test", "train")


def test_classes_may_have_a_folder_of_one_name(tmp_path: Path) -> None:
    """Classes that each keep their images in a folder `images` are classes. Bug: those that keep them in the same
    folders, such as `left` and `right`, were refused, since these might be the classes."""
    for number, name in enumerate(("cat", "dog", "ant")):
        picture(tmp_path / "set" / name / "images" / "1.png", number)
        picture(tmp_path / "set" / name / "images" / "2.png", number + 9)
        picture(tmp_path / "set" / name / "2023" / "3.png", number + 19)
    assert prepared(tmp_path / "d", tmp_path / "set", SPEC).labels == ("ant", "cat", "dog")


def test_a_test_split_without_classes_is_told(tmp_path: Path) -> None:
    """Bug: images to predict, in `test` without classes, made an empty split; a share of train is tested on instead."""
    zoo(tmp_path / "set" / "train")
    picture(tmp_path / "set" / "test" / "1.png", 250)
    data = prepared(tmp_path / "d", tmp_path / "set", SPEC)
    assert "the images of test lie in no folder of a class, so they have no labels and are not read" in data.info.notes
    assert (data.size("train"), data.size("test")) == (12, 3)


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (("1.png", "2.png"), r"set: its images \(1\.png, 2\.png\) lie in no folder of a class, so they have no labels"),
        (("train/1.png", "test/2.png"), r"set/train: its images \(1\.png\) lie in no folder of a class"),
        (("cat/1.png", "dog/2.png", "3.png"), r"set: 3\.png lies in no folder .* not be read; .* one \(cat, dog\)"),
        (("train/cat/1.png", "train/2.png"), r"set/train: 2\.png lies in no folder of a class"),
        (("train/cat/1.png", "train/dog/2.png", "extra/cat/3.png"), "set/extra: it names no split, and others beside"),
        (("train/cat/1.png", "test-train/dog/2.png"), "set/test-train: it names test and train, so its images would"),
        (
            ("trainset/cat/1.png", "trainset/dog/1.png", "testset/cat/2.png"),
            r"set: it is not clear whether testset, trainset are classes or splits, .* \(cat, dog\)",
        ),
        (
            ("rest/cat/1.png", "rest/dog/2.png", "testset/cat/3.png", "testset/dog/4.png"),
            "not clear whether rest, testset are classes or splits",
        ),
        (("test/cat/1.png", "val/dog/2.png"), "set: no train images, only those of test, val; keep what to train on"),
    ],
)
def test_images_that_would_not_be_read_are_refused(images: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """Images without a class, and those beside the splits, were silently not read, or their folders were classes."""
    for number, name in enumerate(images):
        picture(tmp_path / "set" / name, number)
    with pytest.raises(Refused, match=says):
        prepared(tmp_path / "d", tmp_path / "set", SPEC)


BIRDS = "train/{}/{}.png", "valid/{}/{}.png", "test/{}/{}.png"


def birds(place: Path, *columns: str, classes: tuple[str, ...] = ("ABBOTTS BABBLER", "BARN_OWL")) -> list[list[str]]:
    """Folders of classes in three splits, and the rows of a table of these columns."""
    rows = []
    for number, name in enumerate(classes):
        for shade, image in enumerate(BIRDS):
            for each in range(3):
                path = image.format(name, each)
                picture(place / path, 60 * number + 20 * shade + each)
                cells = {"filepaths": path, "labels": name.replace("_", " ").title(), "class id": str(number)}
                rows.append([{**cells, "data set": path.split("/")[0], "year": str(each)}[one] for one in columns])
    return rows


def listed(place: Path, name: str, *rows: Any) -> None:
    """Write a table."""
    with (place / name).open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def test_a_table_that_repeats_the_folders_stands_aside(tmp_path: Path) -> None:
    """Bug: birds.csv beside folders of classes was read in their place, and with the columns that the refusal asks for,
    the rows of the test images trained, too. A list of the classes is not read, either. A few wrong rows are no sign of
    another set."""
    columns = ("class id", "filepaths", "labels", "data set")
    rows = birds(tmp_path / "set", *columns)
    listed(tmp_path / "set", "birds.csv", columns, *rows, rows[0], ["0", "train/ABBOT/9.png", "Abbot", "train"])
    listed(tmp_path / "set", "classes.csv", ("index", "class"), ("0", "barn owl"), ("1", "Abbotts babbler"))
    data = prepared(tmp_path / "d", tmp_path / "set", SPEC)
    assert [data.size(split) for split in ("train", "validation", "test")] == [6, 6, 6]
    assert data.labels == ("ABBOTTS BABBLER", "BARN_OWL")
    assert any("birds.csv, classes.csv: not read, since it repeats the names" in note for note in data.info.notes)


@pytest.mark.parametrize(
    "case", ["parts", "another label", "imagefolder", "its column", "splits", "columns that are named", "texts"]
)
def test_a_table_that_says_more_is_read(case: str, tmp_path: Path) -> None:
    """Folders of HAM10000 and NIH are parts of a download; years are no diagnosis; tables may be splits. Such data are
    read by table, or refused with the name of what to set, and never trained by the names of folders."""
    columns, name, changes, spec = ("filepaths", "labels"), "list.csv", {}, SPEC
    if case == "parts":
        for number in range(6):
            picture(tmp_path / "set" / f"HAM10000_images_part_{1 + number % 2}" / f"ISIC_{number}.png", number)
        rows = [[f"ISIC_{number}", ("nv", "mel", "bkl")[number % 3]] for number in range(6)]
        columns, name = ("image_id", "dx"), "HAM10000_metadata.csv"
    elif case == "another label":
        columns = ("filepaths", "labels", "year")
        rows = birds(tmp_path / "set", *columns)
    else:
        rows = birds(tmp_path / "set", *columns)
        columns = {"imagefolder": ("file_name", "labels"), "its column": ("image", "labels")}.get(case, columns)
        name = "test.csv" if case == "splits" else name
        changes = {"image_column": "filepaths", "label_column": "labels"} if case == "columns that are named" else {}
        spec = TEXT if case == "texts" else SPEC
    listed(tmp_path / "set", name, columns, *rows)
    if changes:
        assert prepared(tmp_path / "d", tmp_path / "set", spec, **changes).labels == ("Abbotts Babbler", "Barn Owl")
        return
    with pytest.raises(Refused, match=r"(no column '(image|label|text)' for|no train data; name a file train)"):
        prepared(tmp_path / "d", tmp_path / "set", spec)


def test_order_is_that_of_names(tmp_path: Path) -> None:
    """Files written in another order give the same arrays, byte for byte."""
    zoo(tmp_path / "one")
    for file in sorted((tmp_path / "one").rglob("*.*"), reverse=True):
        place = tmp_path / "two" / file.relative_to(tmp_path / "one")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
    made = []
    for name in ("one", "two"):
        prepared(tmp_path / f"d-{name}", tmp_path / name, SPEC)
        made.append({k: v for k, v in every_byte(tmp_path / f"d-{name}").items() if k != "data.json"})
    assert made[0] == made[1]


def test_every_image_counts_for_the_digest(tmp_path: Path) -> None:
    """One changed pixel changes the digest."""
    request = DataRequest(source=str(zoo(tmp_path / "set")))
    before = content_digest(request)
    picture(tmp_path / "set" / "cat" / "1.png", 99)
    assert content_digest(request) != before


def test_an_image_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: each file was opened once more, to see whether it is a pointer of Git LFS."""
    picture(tmp_path / "1.png", 250)
    opened: list[Path] = []
    plain = Path.open

    def counted(path: Path, *mode: Any, **more: Any) -> Any:
        opened.append(path)
        return plain(path, *mode, **more)

    monkeypatch.setattr(Path, "open", counted)
    assert as_image("x", tmp_path / "1.png", None).max() == 250 / 255
    assert opened == [tmp_path / "1.png"]


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    """The refusal names the image file as well as its number."""
    (zoo(tmp_path / "set") / "cat" / "3.png").write_bytes(b"no image")
    with pytest.raises(Refused, match=r"set: image 9, image \(3\.png\): cannot be read as an image"):
        prepared(tmp_path / "d", tmp_path / "set", SPEC)


def test_a_class_without_images_is_refused(tmp_path: Path) -> None:
    """A class folder without images is refused."""
    (zoo(tmp_path / "set") / "eel").mkdir()
    (tmp_path / "set" / "eel" / "notes.txt").write_text("gone")
    with pytest.raises(Refused, match=r"set/eel: no image in it"):
        prepared(tmp_path / "d", tmp_path / "set", SPEC)


@pytest.mark.parametrize("link", ["eel", "cat/link.png"])
def test_links_that_leave_the_folder_are_refused(link: str, tmp_path: Path) -> None:
    """Symbolic links to files outside the folder are refused."""
    zoo(tmp_path / "set")
    zoo(tmp_path / "elsewhere")
    (tmp_path / "set" / link).symlink_to(tmp_path / "elsewhere" / ("dog" if link == "eel" else "dog/1.png"))
    with pytest.raises(Refused, match="is a link to .*, outside of"):
        prepared(tmp_path / "d", tmp_path / "set", SPEC)
