"""Folders of data files: every file is read, or a note or a refusal says that it is not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.folders import listed_splits
from fleetune.data.sources import content_digest, open_source, validate_data
from fleetune.errors import Refused
from tests.support.data.samples import CAUSAL, FRUITS, IMAGES, TEXT, json_lines, prepared, texts


def folder(place: Path, *names: str) -> Path:
    """A folder with files of these names, each with other rows."""
    for number, name in enumerate(names):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        json_lines(place / name, [{**row, "text": f"{row['text']} of {number}"} for row in FRUITS])
    return place


@pytest.mark.parametrize("name", ["val", "valid", "validation", "dev", "eval"])
@pytest.mark.parametrize("layout", ["{}.jsonl", "{}/a.jsonl", "{}-00000-of-00001.jsonl"])
def test_every_usual_name_of_a_test_split_is_one(name: str, layout: str, tmp_path: Path) -> None:
    """Bug: `val` was ignored beside `train`, and a share of train was tested on instead."""
    data = prepared(tmp_path / "d", folder(tmp_path / "set", "train.jsonl", layout.format(name)))
    assert (data.size("train"), data.size("test"), data.info.notes) == (20, 20, ())
    assert all(text.endswith("of 1") for text in texts(data, "test"))


@pytest.mark.parametrize("other", ["trainer.jsonl", "more.csv", "extra/rows.jsonl", "validity.jsonl"])
def test_a_file_of_no_split_is_refused_where_another_names_one(other: str, tmp_path: Path) -> None:
    """Bug: it was silently not read; now it is named, and what to do with it."""
    folder(tmp_path / "set", "train.jsonl", other)
    with pytest.raises(Refused, match=rf"train\.jsonl names what to train on, so {other} would not be .* data\.files"):
        validate_data(DataRequest(source=str(tmp_path / "set")), "sequence-classification")


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("imdb_train.jsonl", "imdb_test.jsonl"),
        ("train2.jsonl", "valid2.jsonl"),
        ("reviews-TRAIN-en.jsonl", "reviews-Dev-en.jsonl"),
        ("my training.jsonl", "my evaluation.jsonl"),
        ("a.training.jsonl", "a.testing.jsonl"),
        ("imdb_train/a.jsonl", "imdb_test/a.jsonl"),
    ],
)
def test_a_split_word_counts_wherever_it_stands_in_a_name(train: str, test: str, tmp_path: Path) -> None:
    """Bug: of imdb_train and imdb_test beside each other, both were trained on; the words and what may stand around
    them are those of the datasets library, in a folder and in a pattern of data.files."""
    source = folder(tmp_path / "set", train, test)
    data = prepared(tmp_path / "d", source)
    assert (data.size("train"), data.size("test"), data.info.notes) == (20, 20, ())
    assert all(text.endswith("of 1") for text in texts(data, "test"))
    listed = prepared(tmp_path / "listed", "", files=(f"{source}/**/*.jsonl",))
    assert texts(listed, "test") == texts(data, "test") and listed.size("train") == 20


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("trainset.jsonl", "testset.jsonl"),
        ("imdbTrain.jsonl", "imdbTest.jsonl"),
        ("traindata/a.jsonl", "valdata/a.jsonl"),
        ("imdbTrain.jsonl", "imdbDev.jsonl"),
    ],
)
def test_split_words_that_are_joined_to_others_are_unclear(one: str, other: str, tmp_path: Path) -> None:
    """Bug: trainset and testset both trained, in a folder and in a pattern, since neither has the word of a split."""
    source = folder(tmp_path / "set", one, other)
    for request in (DataRequest(source=str(source)), DataRequest(files=(f"{source}/**/*.jsonl",))):
        with pytest.raises(Refused, match=rf"not clear which files train, since .*{one}.* as a word of its own"):
            validate_data(request, "sequence-classification")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("accepted", "invalid"), "invalid"),
        (("reviews", "testimonials"), "testimonials"),
        (("slow", "fastest", "latest"), "fastest.jsonl, latest"),
        (("trains", "planes"), ""),
        (("trainset", "more"), ""),
        (("imdb", "imdbTest"), "imdbTest"),
    ],
)
def test_words_that_only_look_joined_train(names: tuple[str, ...], told: str, tmp_path: Path) -> None:
    """Bug: invalid.csv beside accepted.csv was refused as unclear. Where none seems to train, or none to test, all
    files of a folder and of a pattern train; that a file of a folder may have been meant to be tested on is told."""
    source = folder(tmp_path / "set", *(f"{name}.jsonl" for name in names))
    for request in (DataRequest(source=str(source)), DataRequest(files=(f"{source}/*.jsonl",))):
        opened = open_source(request, "sequence-classification")
        assert (len(opened.train), len(opened.test)) == (len(names), 0)
        notes = [each for each in opened.notes if f"train, also {told}.jsonl; to test" in each]
        assert len(notes) == bool(told and request.source)


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (("train-00000-of-00003", "train-00002-of-00003", "test-00000-of-00001"), "train-00001-of-00003"),
        (("train-00000-of-00002-a1b2c3", "test-00000-of-00001-d4e5f6"), "train-00001-of-00002"),
        (("data/part-2-of-3", "data/part-3-of-3"), "part-1-of-3"),
    ],
)
def test_missing_shards_are_named(names: tuple[str, ...], missing: str, tmp_path: Path) -> None:
    """Bug: a folder with two of three files trained on these; so did a pattern. Listed one by one they are wanted."""
    source = folder(tmp_path / "set", *(f"{name}.jsonl" for name in names))
    for request in (DataRequest(source=str(source)), DataRequest(files=(f"{source}/**/*.jsonl",))):
        with pytest.raises(Refused, match=rf"are missing \({missing}\); fetch them, or list what there is"):
            validate_data(request, "sequence-classification")
    listed = DataRequest(files=tuple(f"{source}/{name}.jsonl" for name in names))
    validate_data(listed, "sequence-classification")


def test_shards_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    """Those of an older revision, with another hash in their names, were read beside the newer ones."""
    folder(tmp_path / "set", "train-00000-of-00001-a1b2c3.jsonl", "train-00000-of-00001-b2c3d4.jsonl")
    with pytest.raises(Refused, match=r"00001-b2c3d4\.jsonl: another file has its number, too; take the older one"):
        validate_data(DataRequest(source=str(tmp_path / "set")), "sequence-classification")


def test_whole_sets_of_shards_are_read(tmp_path: Path) -> None:
    """They are numbered from 0 or from 1; what stands behind their number may differ."""
    train = ("train-00000-of-00002-a1b2c3.jsonl", "train-00001-of-00002-b2c3d4.jsonl")
    names = (*train, "test-1-of-2.jsonl", "test-2-of-2.jsonl")
    data = prepared(tmp_path / "d", folder(tmp_path / "set", *names))
    assert (data.size("train"), data.size("test")) == (40, 40)


@pytest.mark.parametrize(
    "names", [("top-10-of-2023",), ("part-1-of-2.en", "part-1-of-2.de", "part-2-of-2.en", "part-2-of-2.de")]
)
def test_other_numbers_are_no_shards(names: tuple[str, ...], tmp_path: Path) -> None:
    """Bug: of top-10-of-2023, 2022 files were missing, and of two languages each had the number of the other."""
    source = folder(tmp_path / "set", *(f"{name}.jsonl" for name in names))
    assert len(open_source(DataRequest(source=str(source)), "sequence-classification").train) == len(names)


def test_a_folder_that_is_renamed_to_a_split_is_noticed(tmp_path: Path) -> None:
    """Listed files whose folder becomes that of a test split have another digest, since other rows train."""
    source = folder(tmp_path / "set", "train/a.jsonl", "more/a.jsonl")
    request = DataRequest(files=(f"{source}/*/*.jsonl",))
    before = content_digest(request)
    (source / "more").rename(source / "test")
    assert content_digest(request) != before


@pytest.mark.parametrize("name", ["train_test.jsonl", "dev-train/a.jsonl", "test.val.jsonl"])
def test_a_name_of_two_splits_is_refused(name: str, tmp_path: Path) -> None:
    """What cannot be read as one split is no guess: the file and both words are named."""
    folder(tmp_path / "set", "train.jsonl", name)
    with pytest.raises(Refused, match=rf"{name} names \w+ and \w+, so it is not clear.* data\.files"):
        validate_data(DataRequest(source=str(tmp_path / "set")), "sequence-classification")


def test_what_is_listed_trains_unless_some_files_train_and_others_test(tmp_path: Path) -> None:
    """A list without a file called train, and one without a test split, train whole; what names no split or two trains
    with the rest, since it was listed."""
    source = folder(tmp_path / "set", "train.jsonl", "web-dev.jsonl", "train_test.jsonl", "more.jsonl")

    def sizes(*names: str) -> tuple[int, ...]:
        files = tuple(source / name for name in names)
        return tuple(len(split) for split in listed_splits(files).values())

    assert sizes("web-dev.jsonl", "more.jsonl") == sizes("train.jsonl", "train_test.jsonl") == (2,)
    assert sizes("train.jsonl", "web-dev.jsonl", "train_test.jsonl", "more.jsonl") == (3, 1)


def test_what_is_tested_on_needs_no_train_split(tmp_path: Path) -> None:
    """A folder that data.validation names may hold a test split alone."""
    rows = json_lines(tmp_path / "rows.jsonl", FRUITS)
    data = prepared(tmp_path / "d", rows, validation=str(folder(tmp_path / "held", "imdb_test.jsonl")))
    assert (data.size("train"), data.size("test")) == (20, 20)


def test_hidden_files_are_no_data(tmp_path: Path) -> None:
    """What an editor or a download has left in a hidden folder or file is not read."""
    names = ("train.jsonl", ".checkpoints/train.jsonl", ".train.jsonl", ".cache/other.csv", "test.jsonl")
    data = prepared(tmp_path / "d", folder(tmp_path / "set", *names))
    assert (data.size("train"), data.size("test")) == (20, 20)


@pytest.mark.parametrize("name", ["test.json", "test.tsv", "dev.NDJSON", "test.jsonl.gz", "val/a.zip"])
def test_a_split_in_a_file_that_is_not_read_is_refused(name: str, tmp_path: Path) -> None:
    """Bug: train.jsonl beside test.json was trained on and tested on a share of itself, without a word."""
    folder(tmp_path / "set", "train.jsonl", name)
    with pytest.raises(Refused, match=rf"{name} would not be read, since of a folder only \.jsonl, .* take it out"):
        validate_data(DataRequest(source=str(tmp_path / "set")), "sequence-classification")
    (tmp_path / "set" / "train.jsonl").unlink()
    with pytest.raises(Refused, match=rf"{name} would not be read"):
        validate_data(DataRequest(source=str(tmp_path / "set")), "sequence-classification")


def test_files_beside_the_tables_of_their_split_are_told(tmp_path: Path) -> None:
    """Bug: a README.txt or the results of a test beside whole tables were refused."""
    others = ("test_results.json", "train/README.txt", "train/metadata.json", "train_stats.json")
    data = prepared(tmp_path / "d", folder(tmp_path / "set", "train/a.jsonl", "test.jsonl", *others))
    assert (data.size("train"), data.size("test")) == (20, 20)
    assert [note.endswith(f"not read: {', '.join(others)}") for note in data.info.notes] == [True]


def test_files_that_are_not_read_are_told(tmp_path: Path) -> None:
    """Files that may hold rows are named in a note, those that describe a set and hidden ones are not."""
    names = ("a.jsonl", "b.json", "more/c.csv.gz", "dataset_info.json", ".old/train.json", "README.md")
    data = prepared(tmp_path / "d", folder(tmp_path / "set", *names))
    read = "of the files of set, those in .jsonl, .csv, .parquet, .arrow are read"
    assert data.info.notes == (f"{read}; not read: b.json, more/c.csv.gz",)


@pytest.mark.parametrize("spec", [TEXT, CAUSAL])
@pytest.mark.parametrize("changes", [{}, {"packing": True}, {"streamed": True}], ids=["rows", "packed", "limited"])
def test_a_validation_split_beside_a_test_split_is_what_states_are_chosen_by(
    spec: InputSpec, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Bug: it was not read, so that the best state was chosen by the test split, which then was called "not trained
    on". A third split is told; with no test split, the first that there is is tested on."""
    if "packing" in changes and spec is TEXT:
        return
    limits = {"test_samples": 5} if changes.pop("streamed", False) else {}
    files = folder(tmp_path / "set", "train.jsonl", "test.jsonl", "valid.jsonl", "dev.jsonl")
    data = prepared(tmp_path / "d", files, spec, **changes, **limits)
    assert data.info.notes == (
        "of the splits of set, test is tested on, valid is scored while training; not read: dev",
    )
    for split, number in (("test", 1), ("validation", 2)):
        assert all(f"of {number}" in text for text in texts(data, split))
    assert data.scored_while_training == "validation" and data.size("validation") == data.size("test")
    assert data.describe_sizes().endswith("to score while it trains")
    (files / "test.jsonl").unlink()
    alone = prepared(tmp_path / "e", files, spec, **changes)
    assert alone.scored_while_training == "test" and "score while" not in alone.describe_sizes()
    assert all("of 2" in text for text in texts(alone, "test"))


def test_what_is_evaluated_alone_has_no_split_to_choose_by(tmp_path: Path) -> None:
    """A source that is only tested on, and one that another stands in for, read no more than that."""
    files = folder(tmp_path / "set", "train.jsonl", "test.jsonl", "validation.jsonl")
    held = json_lines(tmp_path / "held.jsonl", FRUITS)
    for number, validation in enumerate((1.0, str(held))):
        data = prepared(tmp_path / str(number), files, validation=validation)
        assert data.scored_while_training == "test" and len(data.info.splits) == 2


def test_a_test_split_that_another_source_stands_in_for_is_told(tmp_path: Path) -> None:
    """With data.validation, the source's own test split is not read, and a note says so."""
    held = json_lines(tmp_path / "held.jsonl", FRUITS)
    data = prepared(tmp_path / "d", folder(tmp_path / "set", "train.jsonl", "val.jsonl"), validation=str(held))
    assert data.info.notes == ("the test split of set is not read, since data.validation names what is tested on",)


def test_what_is_not_read_of_what_trains_is_told_where_another_source_is_tested_on(tmp_path: Path) -> None:
    """Bug: with data.validation, files that were not read, and one that may have been meant to be tested on, were
    told to nobody; what was said of test splits, which another source stands in for, is not said."""
    held = json_lines(tmp_path / "held.jsonl", FRUITS)
    json_lines(folder(tmp_path / "set", "one.jsonl", "mytest.jsonl") / "two.json", FRUITS)
    notes = prepared(tmp_path / "d", tmp_path / "set", validation=str(held)).info.notes
    assert "not read: two.json" in notes[0] and "all files of set train, also mytest.jsonl" in notes[1]
    splits = folder(tmp_path / "splits", "train.jsonl", "test.jsonl", "val.jsonl", "dev.jsonl", "eval.jsonl")
    (told,) = open_source(DataRequest(source=str(splits), validation=str(held)), TEXT.task).notes
    assert told.startswith("the test split of splits is not read")


def test_states_are_chosen_by_the_validation_split_of_images(tmp_path: Path) -> None:
    """So it is where the splits are folders of images, as torchvision's examples have them."""
    for split in ("train", "val", "test"):
        for number, name in enumerate(("dark", "light")):
            (tmp_path / "set" / split / name).mkdir(parents=True)
            np.save(tmp_path / "set" / split / name / "a.npy", np.full((8, 8), len(split) + number, dtype=np.uint8))
    data = prepared(tmp_path / "d", tmp_path / "set", IMAGES)
    assert [data.size(split) for split in ("train", "test", "validation")] == [2, 2, 2]
    assert not any("not read" in note for note in data.info.notes)
    assert data.rows("validation", [0])["pixel_values"].max() < data.rows("test", [0])["pixel_values"].max()
