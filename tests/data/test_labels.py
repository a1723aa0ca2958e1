"""Class ids of labels, and notes where data and model disagree."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleetune.contracts.input_spec import InputSpec
from fleetune.data.prepared_data import PreparedData
from fleetune.errors import Refused
from tests.support.data.samples import CAUSAL, FRUITS, TEXT, json_lines, prepared, texts, whole

NUMBERED: list[dict[str, Any]] = [{"text": f"text {n}", "label": n % 2} for n in range(20)]


def for_model(*labels: str, numbered: bool = False) -> InputSpec:
    """Input specification of a classifier with these classes."""
    return InputSpec(task="sequence-classification", labels=labels, numbered=numbered)


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


def test_capital_letters_do_not_make_other_classes_of_the_models(tmp_path: Path) -> None:
    """Bug: lower-case labels of a model that names its classes in capitals were sorted, which swapped its classes."""
    known, labels = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT"), ("entailment", "neutral", "contradiction")
    rows = [{"text": f"text {n}", "label": labels[n % 3]} for n in range(18)]
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), for_model(*known))
    assert data.labels == known
    assert by_text(data) == {row["text"]: known.index(str(row["label"]).upper()) for row in rows}
    said = "labels are the model's classes in other capital letters, and get its names: CONTRADICTION, NEUTRAL"
    assert data.info.notes[0].startswith(said)
    twofold = prepared(tmp_path / "e", tmp_path / "r.jsonl", for_model("Neutral", "NEUTRAL", "entailment"))
    assert "are not the classes of the model" in twofold.info.notes[0]


def test_numbers_count_as_the_models_own(tmp_path: Path) -> None:
    """Integer labels of all of the model's named classes are its ids, and a note says so."""
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", NUMBERED), for_model("no", "yes"))
    assert data.labels == ("no", "yes")
    assert by_text(data) == {row["text"]: row["label"] for row in NUMBERED}
    assert data.info.notes[0] == "labels are numbers and count as the model's own: 0 no, 1 yes"


def test_a_model_that_is_trained_on_keeps_its_classes(tmp_path: Path) -> None:
    """Numbers of a run that goes on are its classes, also on a day that lacks one of them."""
    spec = for_model("no", "yes", "perhaps", numbered=True)
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", NUMBERED), spec)
    assert data.labels == ("no", "yes", "perhaps")
    assert by_text(data) == {row["text"]: row["label"] for row in NUMBERED}
    assert data.info.notes[0] == "labels are numbers and count as the model's own: 0 no, 1 yes, 2 perhaps"


def test_numbers_of_an_earlier_run_are_names(tmp_path: Path) -> None:
    """Bug: a run that had learned classes 1 and 2, given 0 and 1, took the rows of its class 1 for class 2."""
    source = json_lines(tmp_path / "r.jsonl", NUMBERED)
    with pytest.raises(Refused, match=r"did not learn labels 0 \(it has 1, 2\)"):
        prepared(tmp_path / "d", source, replace(for_model("1", "2", numbered=True), continued=True))


def test_classes_that_are_only_tested_on_get_no_advice_on_training(tmp_path: Path) -> None:
    """Bug: `evaluate` of a run that went on from another told to leave rows of other classes out, or to begin anew. It
    tells itself which classes do not fit."""
    rows = [{"text": f"text {n}", "label": "maybe"} for n in range(20)]
    source, spec = json_lines(tmp_path / "r.jsonl", rows), replace(for_model("no", "yes"), continued=True)
    assert prepared(tmp_path / "d", source, spec, validation=1.0).labels == ("maybe",)


@pytest.mark.parametrize("first", [0, 1])
def test_numbers_of_fewer_classes_are_other_labels(first: int, tmp_path: Path) -> None:
    """Bug: folders 1 to 102 kept ImageNet's head of 1000 classes, and got its names, goldfish and all."""
    rows = [{**row, "label": first + row["label"]} for row in NUMBERED]
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), for_model("no", "yes", "perhaps"))
    assert data.labels == (str(first), str(first + 1))
    assert by_text(data) == {row["text"]: row["label"] - first for row in rows}
    assert "are not the classes of the model (no, yes, perhaps): its head does not fit them" in data.info.notes[0]
    assert data.info.notes[0].endswith("; if they are its classes by number, give model.config.id2label")


def test_a_model_that_names_its_classes_by_numbers_keeps_them(tmp_path: Path) -> None:
    """A model that was trained on 0, 1 and 2 has these classes, also where data hold only some of them."""
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", NUMBERED), for_model("0", "1", "2"))
    assert data.labels == ("0", "1", "2")
    assert by_text(data) == {row["text"]: row["label"] for row in NUMBERED}


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


def test_a_column_of_fractions_is_no_column_of_classes(tmp_path: Path) -> None:
    """Bug: fractions in a CSV became classes; they are refused, and the task that learns numbers is named."""
    (tmp_path / "r.csv").write_text("text,label\na,1.0\nb,0.5\nc,2.0\n")
    with pytest.raises(
        Refused, match="label '0.5' in column 'label' is a fraction; give integers .*sequence-regression"
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
    said = (
        "3 of 4 test rows are also training rows: the model has seen what it is tested on, so its scores look better "
        "than they are; 1 of these rows differs in the source, and became equal when long texts were cut or images "
        "resized"
    )
    assert data.info.notes == ("2 of 25 texts are longer than max_length 24 and are cut", said)


def test_rows_in_train_and_validation_are_told(tmp_path: Path) -> None:
    """Bug: beside a test split, those that states are chosen by were compared with nothing. Of chats, too."""
    chats = [{"prompt": f"{n}?", "completion": f"{n}."} for n in range(20)]
    for name, rows, spec in (("classes", FRUITS, TEXT), ("chats", chats, CAUSAL)):
        source = splits(tmp_path / name, rows[:10], rows[10:14])
        json_lines(source / "validation.jsonl", [*rows[:3], *rows[14:]])
        said = f"3 of {len(rows) - 11} validation rows are also training rows: the model has seen them, so scores while"
        found = [note for note in prepared(tmp_path / f"{name}-d", source, spec).info.notes if "training rows" in note]
        assert [note[: len(said)] for note in found] == [said]


def test_cut_rows_are_told_where_a_fraction_is_held_out(tmp_path: Path) -> None:
    """A note counts texts that become equal by truncation, which splitting cannot keep together."""
    rows = [{"text": "x" * 40 + str(n), "label": str(n % 2)} for n in range(10)]
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows))
    assert data.info.notes[0] == "10 of 10 texts are longer than max_length 24 and are cut"
    assert data.info.notes[1].startswith("2 of 2 test rows are also training rows: the model has seen")
    assert data.info.notes[1].endswith(
        "; these rows differ in the source, and became equal when long texts were cut or images resized"
    )


def test_data_without_oddities_say_nothing(tmp_path: Path) -> None:
    """Data without problems have no notes."""
    assert prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", FRUITS), TEXT).info.notes == ()


def numbered(path: Path, names: tuple[str, ...], rows: list[dict[str, str]]) -> Path:
    """A Parquet file that numbers its classes in the order of these names."""
    plain = pa.Table.from_pylist([{"text": row["text"], "label": names.index(row["label"])} for row in rows])
    noted = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    pq.write_table(plain.replace_schema_metadata({"huggingface": json.dumps(noted)}), path)
    return path


def test_every_file_has_class_numbers_of_its_own(tmp_path: Path) -> None:
    """Bug: all files were read by the first one's class names; a file that numbers them otherwise got wrong labels."""
    one = numbered(tmp_path / "one.parquet", ("pear", "apple"), FRUITS[:8])
    two = numbered(tmp_path / "two.parquet", ("apple", "pear"), FRUITS[8:14])
    held = numbered(tmp_path / "held.parquet", ("apple", "plum", "pear"), FRUITS[14:])
    data = prepared(tmp_path / "d", "", files=(str(one), str(two)), validation=str(held))
    assert data.labels == ("pear", "apple", "plum")
    assert by_text(data) == {row["text"]: data.labels.index(row["label"]) for row in FRUITS}


def test_names_and_numbers_beside_a_file_that_names_its_classes(tmp_path: Path) -> None:
    """Files without class names may have either; numbers count as those of the file with names."""
    named = numbered(tmp_path / "a.parquet", ("pear", "apple"), FRUITS[:8])
    words = json_lines(tmp_path / "b.jsonl", FRUITS[8:14])
    rows = [{**row, "label": ("pear", "apple").index(row["label"])} for row in FRUITS[14:]]
    data = prepared(tmp_path / "d", "", files=(str(words), str(json_lines(tmp_path / "c.jsonl", rows)), str(named)))
    assert data.labels == ("pear", "apple")
    assert by_text(data) == {row["text"]: data.labels.index(row["label"]) for row in FRUITS}


@pytest.mark.parametrize(("names", "meant"), [(("0", "1"), True), (("1", "2"), False)])
def test_numbers_beside_a_file_whose_classes_are_called_by_numbers(
    names: tuple[str, str], meant: bool, tmp_path: Path
) -> None:
    """Bug: beside classes called 0 and 1, the numbers 0 and 1 were refused; only where name and number differ, which
    of them is meant is not known."""
    named = numbered(tmp_path / "a.parquet", names, [{"text": f"t {n}", "label": names[n % 2]} for n in range(8)])
    held = json_lines(tmp_path / "v.jsonl", [{"text": f"v {n}", "label": 1} for n in range(2)])
    if not meant:
        with pytest.raises(Refused, match=r"label 1 in column 'label' is not one of the 2 named ones \(1, 2\)"):
            prepared(tmp_path / "d", named, validation=str(held))
        return
    data = prepared(tmp_path / "d", named, validation=str(held))
    assert data.labels == names and whole(data, "test")["labels"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("names", "label", "says"),
    [
        (("apple", "pear"), 1, "label 1 .* number their classes differently .* give the classes by name"),
        (("pear", "apple"), 2, r"label 2 .* is not one of the 2 named ones \(pear, apple\)"),
        (("pear", "apple"), "plum", r"label 'plum' .* is not one of the 2 named ones \(pear, apple\)"),
    ],
)
def test_numbers_that_could_mean_several_classes_are_refused(
    names: tuple[str, ...], label: object, says: str, tmp_path: Path
) -> None:
    """A number beside two files that number the same classes differently, or beyond them, and an unknown name."""
    files = (
        numbered(tmp_path / "a.parquet", ("pear", "apple"), FRUITS),
        numbered(tmp_path / "b.parquet", names, FRUITS),
        json_lines(tmp_path / "c.jsonl", [{"text": "a", "label": label}]),
    )
    with pytest.raises(Refused, match=says):
        prepared(tmp_path / "d", "", files=tuple(map(str, files)))


@pytest.mark.parametrize(
    ("lines", "csv", "labels"),
    [
        ((True, False), ("True", "FALSE"), ("false", "true")),
        ((1, 10), ("1", "10"), ("1", "10")),
        ((1, 10), ("1.0", "10.0"), ("1", "10")),
        (("yes", "no "), ("  yes", "no"), ("no", "yes")),
    ],
)
def test_a_class_is_spelled_as_its_format_has_it(
    lines: tuple[object, object], csv: tuple[str, str], labels: tuple[str, str], tmp_path: Path
) -> None:
    """Bug: JSON's true and 1 were other classes than a CSV file's True and 1, or refused beside them, and white space
    around a label made another class."""
    rows = [{"text": f"a {n}", "label": lines[n % 2]} for n in range(10)]
    (tmp_path / "b.csv").write_text("text,label\n" + "".join(f"b {n},{csv[n % 2]}\n" for n in range(10)))
    files = (str(json_lines(tmp_path / "a.jsonl", rows)), str(tmp_path / "b.csv"))
    data = prepared(tmp_path / "d", "", files=files)
    assert data.labels == labels
    first = labels.index(str(lines[0]).lower())
    assert all(label == (first if int(text[2:]) % 2 == 0 else 1 - first) for text, label in by_text(data).items())


def test_one_class_in_two_spellings_is_one_class(tmp_path: Path) -> None:
    """A classifier of the number 1 and the text 1 has a single class, and is refused."""
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": "1"}]
    with pytest.raises(Refused, match="every row has the label '?1'? in column 'label'"):
        prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows))


def test_completions_in_train_and_test_are_told_without_a_guess(tmp_path: Path) -> None:
    """Bug: of completions that are equal in both files, the note said that they were equal only after truncation."""
    rows = [{"prompt": f"{n} and 1 are", "completion": f" {n + 1}"} for n in range(8)]
    data = prepared(tmp_path / "d", splits(tmp_path / "set", rows, rows[:3]), CAUSAL)
    assert data.info.notes == (
        "3 of 3 test rows are also training rows: the model has seen what it is tested on, so its scores look better "
        "than they are",
    )


def test_inputs_in_train_and_test_are_told_whatever_is_written_of_them(tmp_path: Path) -> None:
    """Bug: a picture with five captions was in both splits, and nothing said so, as the captions were compared, too."""
    rows = [{"text": f"picture {n // 5}", "target": f"caption {n % 5}"} for n in range(40)]
    pairs = InputSpec(task="seq2seq", vocab_size=264, max_positions=64, decoder_start_token_id=0)
    said = (
        "rows have the input of a training row: the model has seen what it is tested on, so its scores look better than"
    )
    (note,) = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), pairs).info.notes
    assert note == f"8 of 8 test {said} they are"
    (note,) = prepared(tmp_path / "e", splits(tmp_path / "set", rows[:20], rows[15:25]), pairs).info.notes
    assert note == f"5 of 10 test {said} they are"
    alone = [{**row, "text": f"picture {n}"} for n, row in enumerate(rows)]
    assert prepared(tmp_path / "f", json_lines(tmp_path / "s.jsonl", alone), pairs).info.notes == ()
