"""Several files as one source, and a source or a share that is tested on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleetune.contracts.run_config import DataRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.data.sources import content_digest, open_source, validate_data
from fleetune.data.writer import prepare_data
from fleetune.errors import Refused
from tests.support.data.chat_samples import chat_spec, chats
from tests.support.data.samples import FRUITS, IMAGES, TEXT, json_lines, prepared, texts, whole

OTHER = [{"text": f"plum {n}", "label": "plum"} for n in range(6)]


def made(folder: Path, request: DataRequest) -> PreparedData:
    """Prepare a request for classification of texts."""
    prepare_data(request, TEXT, folder, 0)
    return PreparedData(folder)


@pytest.fixture
def shelves(tmp_path: Path) -> Path:
    """A folder with two files of fruits and one of plums."""
    (tmp_path / "s").mkdir()
    json_lines(tmp_path / "s" / "a.jsonl", FRUITS[:10])
    json_lines(tmp_path / "s" / "b.jsonl", FRUITS[10:])
    json_lines(tmp_path / "s" / "plums.jsonl", OTHER)
    return tmp_path / "s"


def test_files_and_patterns_give_the_rows_of_one_file(shelves: Path, tmp_path: Path) -> None:
    """A list and a pattern give the same arrays as all rows in one file; a file named twice is read once."""
    whole_file = json_lines(tmp_path / "all.jsonl", FRUITS)
    wanted = whole(made(tmp_path / "one", DataRequest(source=str(whole_file), max_length=24)), "train")
    for number, files in enumerate((("a.jsonl", "b.jsonl"), ("?.jsonl",), ("a.jsonl", "?.jsonl"))):
        request = DataRequest(files=tuple(str(shelves / name) for name in files), max_length=24)
        validate_data(request, "sequence-classification")
        data = made(tmp_path / f"d{number}", request)
        assert data.info.source == "a.jsonl, b.jsonl"
        assert all(np.array_equal(wanted[name], rows) for name, rows in whole(data, "train").items())


def test_a_link_counts_by_its_own_name(tmp_path: Path) -> None:
    """Bug: links were read as the split that their target's name has, and those of the hub's cache, whose targets have
    no suffix, were refused. A file that is named twice, once by a link, is read once."""
    for place, name, rows in (("v1_test", "train", FRUITS), ("a1b2", "test", OTHER)):
        json_lines(tmp_path / place, rows)
        (tmp_path / f"{name}.jsonl").symlink_to(tmp_path / place)
    (tmp_path / "other-train.jsonl").symlink_to(tmp_path / "train.jsonl")
    data = made(tmp_path / "d", DataRequest(files=(str(tmp_path / "t*.jsonl"), str(tmp_path / "*.jsonl"))))
    assert (data.size("train"), data.size("test")) == (20, 6)
    assert data.info.source == "test.jsonl, train.jsonl"
    assert made(tmp_path / "e", DataRequest(source=str(tmp_path / "train.jsonl"))).info.source == "train.jsonl"


def test_links_of_two_splits_to_one_file_are_both_read(tmp_path: Path) -> None:
    """The hub's cache keeps equal files once: the test split was then part of the training rows, without a word."""
    json_lines(tmp_path / "a1b2", FRUITS)
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").symlink_to(tmp_path / "a1b2")
    data = made(tmp_path / "d", DataRequest(files=(str(tmp_path / "*.jsonl"),)))
    assert (data.size("train"), data.size("test")) == (20, 20)
    assert "20 of 20 test rows are also training rows" in data.info.notes[0]


def test_links_of_one_split_to_one_file_are_read_once(tmp_path: Path) -> None:
    """Bug: train.csv and a link to it that names no split were both trained on, so that each row counted twice."""
    json_lines(tmp_path / "train.jsonl", FRUITS)
    (tmp_path / "data.jsonl").symlink_to(tmp_path / "train.jsonl")
    data = made(tmp_path / "d", DataRequest(files=(str(tmp_path / "*.jsonl"),)))
    assert data.size("train") + data.size("test") == 20


def test_links_in_folders_of_two_splits_are_both_read(tmp_path: Path) -> None:
    """Bug: train/a.jsonl and test/a.jsonl that are links to one file were read as one, which trained."""
    json_lines(tmp_path / "a1b2", FRUITS)
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").symlink_to(tmp_path / "a1b2")
    data = made(tmp_path / "d", DataRequest(files=(str(tmp_path / "*" / "a.jsonl"),)))
    assert (data.size("train"), data.size("test")) == (20, 20)


def test_a_file_that_joins_a_pattern_is_noticed(shelves: Path) -> None:
    """The digest covers what the pattern matches now, by name and content."""
    request = DataRequest(files=(str(shelves / "?.jsonl"),))
    before = content_digest(request)
    json_lines(shelves / "c.jsonl", OTHER)
    assert content_digest(request) != before


def test_another_source_is_tested_on(shelves: Path, tmp_path: Path) -> None:
    """With a source for validation all rows of the first train; its content is part of the digest."""
    held = json_lines(tmp_path / "held.jsonl", OTHER[:4])
    request = DataRequest(source=str(shelves / "a.jsonl"), validation=str(held), max_length=24, test_samples=4)
    validate_data(request, "sequence-classification")
    data = made(tmp_path / "d", request)
    assert (data.size("train"), data.size("test")) == (10, 4)
    assert all(text.startswith("plum") for text in texts(data, "test")) and "plum" in data.labels
    before = content_digest(request)
    json_lines(held, OTHER[:5])
    assert content_digest(request) != before != content_digest(DataRequest(source=request.source))


def test_images_of_another_folder_are_tested_on(tmp_path: Path) -> None:
    """Paths of images for validation are relative to their own folder."""
    for top, level in (("train", 255), ("held", 0)):
        for kind in ("one", "two"):
            (tmp_path / top / kind).mkdir(parents=True)
            for number in range(3):
                np.save(tmp_path / top / kind / f"{number}.npy", np.full((8, 8), level, dtype=np.uint8))
    request = DataRequest(source=str(tmp_path / "train"), validation=str(tmp_path / "held"))
    prepare_data(request, IMAGES, tmp_path / "d", 0)
    data = PreparedData(tmp_path / "d")
    assert {float(whole(data, split)["pixel_values"].mean()) for split in ("train", "test")} == {-1.0, 1.0}


def test_a_share_is_held_out(shelves: Path, tmp_path: Path) -> None:
    """A number is the share of the samples to test on."""
    request = DataRequest(files=(str(shelves / "?.jsonl"),), validation=0.4, max_length=24)
    data = made(tmp_path / "d", request)
    assert (data.size("train"), data.size("test")) == (12, 8)


@pytest.mark.parametrize(
    ("files", "size"), [(("a",), 10), (("train", "test"), 20), (("test",), 20)], ids=["file", "own split", "test alone"]
)
def test_all_is_tested_on(files: tuple[str, ...], size: int, shelves: Path, tmp_path: Path) -> None:
    """With a share of 1 all rows are scored, or the test split where there is one, also where nothing else is there;
    nothing is said of training."""
    (tmp_path / "both").mkdir()
    for name, rows in (("train", FRUITS[:6]), ("test", FRUITS)):
        if name in files:
            json_lines(tmp_path / "both" / f"{name}.jsonl", rows)
    source = shelves / "a.jsonl" if files == ("a",) else tmp_path / "both"
    request = DataRequest(source=str(source), validation=1.0, max_length=24)
    validate_data(request, "sequence-classification")
    data = made(tmp_path / "d", request)
    assert (data.size("train"), data.size("test")) == (1, size)
    assert not any("train" in note for note in data.info.notes)


def test_what_is_only_tested_is_prepared_once(tmp_path: Path) -> None:
    """Bug: all rows were read and prepared twice, of which nothing was used but the test split."""
    told: dict[str, list[float]] = {}
    rows = [{"text": f"{n}", "label": "no" if n % 2 else "yes"} for n in range(2100)]
    path = json_lines(tmp_path / "rows.jsonl", rows)
    request = DataRequest(source=str(path), validation=1.0, max_length=24)

    def progress(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        told.setdefault(what, []).append(done)

    prepare_data(request, TEXT, tmp_path / "d", 0, progress)
    assert told["reading data"] == [2000] and max(told["preparing data"]) == 2101


@pytest.mark.parametrize("rows", [[1] * 30, [*range(30)], [1]], ids=["one class", "one row a class", "one row"])
def test_what_is_only_tested_needs_no_other_class(rows: list[int], tmp_path: Path) -> None:
    """Bug: a file of one class, or of one row for each of many, could not be scored, though nothing is trained on."""
    path = json_lines(tmp_path / "r.jsonl", [{"text": f"text {n}", "label": f"c{n}"} for n in rows])
    spec = replace(TEXT, labels=tuple(f"c{n}" for n in range(30)))
    prepare_data(DataRequest(source=str(path), validation=1.0, max_length=24), spec, tmp_path / "d", 0)
    assert PreparedData(tmp_path / "d").size("test") == len(rows)


def test_of_chats_all_is_tested_on(tmp_path: Path) -> None:
    """Nothing is said of training on them."""
    path = json_lines(tmp_path / "r.jsonl", chats(12))
    data = prepared(tmp_path / "d", path, chat_spec(tmp_path / "t"), max_length=96, validation=1.0)
    assert data.size("test") == 12 and not any("train" in note for note in data.info.notes)


def test_what_contradicts_itself_is_refused(shelves: Path, tmp_path: Path) -> None:
    """Source and files, a share beside a test split, a folder among files and shares beyond one are refused."""
    a = str(shelves / "a.jsonl")
    with pytest.raises(Refused, match=r"give source \(.*\) or files \(.*\), not both"):
        DataRequest(source=a, files=(a,))
    with pytest.raises(Refused, match=r"validation must be a source, or a share between 0 and 1 \(got 1\.5\)"):
        DataRequest(source=a, validation=1.5)
    with pytest.raises(Refused, match=r"newest_files is 2"):
        DataRequest(files=(a,), newest_files=2)
    with pytest.raises(Refused, match=r"names .*s, which is no file; give its files, such as .*/\*\.jsonl"):
        open_source(DataRequest(files=(str(shelves),)), TEXT.task)
    with pytest.raises(Refused, match=r"'.*x\*\.jsonl', which no file matches"):
        open_source(DataRequest(files=(str(shelves / "x*.jsonl"),)), TEXT.task)
    (tmp_path / "both").mkdir()
    for name in ("train", "test"):
        json_lines(tmp_path / "both" / f"{name}.jsonl", FRUITS)
    with pytest.raises(Refused, match=r"a share \(0\.1\), but .*both has a test split of its own"):
        open_source(DataRequest(source=str(tmp_path / "both"), validation=0.1), TEXT.task)
    with pytest.raises(Refused, match=r"'.*lost\.jsonl' does not exist"):
        validate_data(DataRequest(source=a, validation=str(tmp_path / "lost.jsonl")), "sequence-classification")
