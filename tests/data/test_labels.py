"""Class ids of labels, and notes where data and model disagree."""

from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.input_spec import InputSpec
from fleetune.data.prepared_data import PreparedData
from fleetune.errors import Refused
from tests.data.samples import FRUITS, TEXT, json_lines, prepared, texts, whole

NUMBERED = [{"text": f"text {n}", "label": n % 2} for n in range(20)]


def for_model(*labels: str) -> InputSpec:
    """Input specification of a classifier with these classes."""
    return InputSpec(task="sequence-classification", labels=labels)


def by_text(data: PreparedData) -> dict[str, int]:
    """text -> class id, over both splits."""
    return {
        text: int(label)
        for split in ("train", "test")
        for text, label in zip(texts(data, split), whole(data, split)["labels"], strict=True)
    }


@pytest.mark.parametrize("known", [("pear", "apple"), ("plum", "pear", "fig", "apple")])
def test_a_finished_classifier_keeps_its_order(known: tuple[str, ...], tmp_path: Path) -> None:
    """Regression: labels were sorted anew; a trained classifier keeps its class order."""
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", FRUITS), for_model(*known))
    assert data.labels == known
    assert by_text(data) == {row["text"]: known.index(row["label"]) for row in FRUITS}


def test_numbers_count_as_the_models_own(tmp_path: Path) -> None:
    """Integer labels are ids of the model's named classes, and a note says so."""
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", NUMBERED), for_model("no", "yes", "perhaps"))
    assert data.labels == ("no", "yes", "perhaps")
    assert by_text(data) == {row["text"]: row["label"] for row in NUMBERED}
    assert data.info.notes[0] == "labels are numbers and count as the model's own: 0 no, 1 yes, 2 perhaps"


def test_classes_without_names_keep_their_numbers(tmp_path: Path) -> None:
    """Labels 0 and 2 for a model with LABEL_0 to LABEL_2 keep their ids."""
    rows = [{"text": f"text {n}", "label": 2 * (n % 2)} for n in range(20)]
    spec = for_model("LABEL_0", "LABEL_1", "LABEL_2")
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), spec)
    assert data.labels == ("0", "1", "2")
    assert by_text(data) == {row["text"]: row["label"] for row in rows}


def test_other_classes_are_told(tmp_path: Path) -> None:
    """Where the class sets differ, shared classes keep their ids and a note describes the rest."""
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", FRUITS), for_model("pear", "plum"))
    assert data.labels == ("pear", "apple")
    assert "labels of the data (pear, apple) are not the classes of the model (pear, plum)" in data.info.notes[0]
    more = prepared(tmp_path / "e", tmp_path / "r.jsonl", for_model("a", "b", "c"))
    assert more.labels == ("apple", "pear")
    assert "its head does not fit them" in more.info.notes[0]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_whole_floats_are_classes(suffix: str, tmp_path: Path) -> None:
    """Labels 1.0 and 10.0 become classes 1 and 10, in numeric order."""
    rows = [{"text": f"text {n}", "label": float(1 + 9 * (n % 2))} for n in range(20)]
    path = tmp_path / f"r.{suffix}"
    if suffix == "jsonl":
        json_lines(path, rows)
    else:
        path.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))
    data = prepared(tmp_path / "d", path)
    assert data.labels == ("1", "10")
    assert by_text(data) == {row["text"]: int(row["label"] == 10) for row in rows}


@pytest.mark.parametrize("label", ["0.5", "1e-3"])
def test_a_column_of_fractions_is_no_column_of_classes(label: str, tmp_path: Path) -> None:
    """Bug: fractions in a CSV became classes; they are refused, and the task that learns numbers is named."""
    (tmp_path / "r.csv").write_text(f"text,label\na,1.0\nb,{label}\nc,2.0\n")
    with pytest.raises(
        Refused, match=f"label '{label}' in column 'label' is a fraction; give integers .*sequence-regression"
    ):
        prepared(tmp_path / "d", tmp_path / "r.csv")


def test_names_that_look_like_numbers_here_and_there(tmp_path: Path) -> None:
    """If only some labels are numbers, all labels are names and keep their spelling."""
    (tmp_path / "r.csv").write_text("text,label\n" + "".join(f"t{n},{n % 2 and 'v1.5' or '1.5'}\n" for n in range(8)))
    assert prepared(tmp_path / "d", tmp_path / "r.csv").labels == ("1.5", "v1.5")


def splits(folder: Path, train: list[dict[str, Any]], test: list[dict[str, Any]]) -> Path:
    """A folder with both splits."""
    folder.mkdir()
    json_lines(folder / "train.jsonl", train)
    json_lines(folder / "test.jsonl", test)
    return folder


def test_a_class_that_training_never_sees_is_told(tmp_path: Path) -> None:
    """A class that occurs only in the test split counts as a class, with a note that it cannot be learned."""
    rows = [*FRUITS, {"text": "a plum", "label": "plum"}]
    data = prepared(tmp_path / "d", splits(tmp_path / "set", FRUITS, rows[-3:]))
    assert data.labels == ("apple", "pear", "plum")
    assert data.info.notes[0] == "no training row is of class plum, so it cannot be learned"


def test_rows_in_train_and_test_are_told(tmp_path: Path) -> None:
    """A note counts test rows that also occur in train, including rows that are equal only after truncation."""
    long = "the same beginning of every text"
    train = [*FRUITS, {"text": long + " in train", "label": "pear"}]
    test = [*FRUITS[:2], {"text": long + " in test", "label": "apple"}, {"text": "new", "label": "pear"}]
    data = prepared(tmp_path / "d", splits(tmp_path / "set", train, test))
    said = "3 of 4 test rows also occur in train, 1 of them only after truncation or resizing: scores are too high"
    assert data.info.notes == ("2 of 25 texts are longer than max_length 24 and are cut", said)


def test_cut_rows_are_told_where_a_fraction_is_held_out(tmp_path: Path) -> None:
    """A note counts texts that become equal by truncation, which splitting cannot keep together."""
    rows = [{"text": "x" * 40 + str(n), "label": str(n % 2)} for n in range(10)]
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows))
    assert data.info.notes[0] == "10 of 10 texts are longer than max_length 24 and are cut"
    assert data.info.notes[1].startswith("2 of 2 test rows also occur in train, 2 of them only after")


def test_data_without_oddities_say_nothing(tmp_path: Path) -> None:
    """Data without problems have no notes."""
    assert prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", FRUITS), TEXT).info.notes == ()
