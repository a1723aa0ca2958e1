"""Labels that are alike but for their spelling: one class, or refused; never silently another class."""

import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fleetune.contracts.input_spec import InputSpec
from fleetune.data.prepared_data import PreparedData
from fleetune.errors import Refused
from tests.support.data.samples import IMAGES, json_lines, prepared, whole

COMPOSED, APART = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))


def classes(folder: Path, *labels: str, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Class names of a CSV file with these labels."""
    folder.mkdir(exist_ok=True)
    rows = "".join(f"t{n},{label}\n" for n, label in enumerate(labels * 3))
    (folder / "r.csv").write_text("text,label\n" + rows)
    spec = InputSpec(task="sequence-classification", vocab_size=260, max_positions=64, labels=known)
    return prepared(folder / "d", folder / "r.csv", spec).labels


def test_a_label_in_two_unicode_forms_is_one_class(tmp_path: Path) -> None:
    """macOS decomposes an accent and others do not; both are the class that they spell."""
    assert classes(tmp_path / "a", COMPOSED, APART, "tee") == (COMPOSED, "tee")
    assert classes(tmp_path / "b", COMPOSED, "tee", known=("tee", APART)) == ("tee", APART)


def test_folders_in_two_unicode_forms_are_one_class(tmp_path: Path) -> None:
    """Folders of classes that were unpacked on a Mac beside others are those of the same class."""
    for name in (COMPOSED, APART, "tee"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for shade in range(4):
            Image.new("L", (8, 8), 10 * shade + len(name)).save(tmp_path / "set" / name / f"{shade}.png")
    data = prepared(tmp_path / "d", tmp_path / "set", IMAGES)
    assert data.labels == (COMPOSED, "tee")
    both = [*whole(data, "train")["labels"], *whole(data, "test")["labels"]]
    assert sorted(both) == [0] * 8 + [1] * 4


def test_names_of_a_feature_are_in_one_form(tmp_path: Path) -> None:
    """Classes that a Parquet file names are those that another file spells."""
    noted = json.dumps({"info": {"features": {"label": {"names": [APART, "tee"], "_type": "ClassLabel"}}}})
    plain = pa.Table.from_pylist([{"text": f"t{n}", "label": n % 2} for n in range(8)])
    pq.write_table(plain.replace_schema_metadata({"huggingface": noted}), tmp_path / "a.parquet")
    json_lines(tmp_path / "b.jsonl", [{"text": f"s{n}", "label": COMPOSED} for n in range(8)])
    files = tuple(str(tmp_path / name) for name in ("a.parquet", "b.jsonl"))
    assert prepared(tmp_path / "d", "", files=files).labels == (COMPOSED, "tee")


@pytest.mark.parametrize("other", ["tee\u200b", "\ufefftee", "t\u00adee", "tee\ufe0f"])
def test_labels_that_look_alike_are_refused(other: str, tmp_path: Path) -> None:
    """An invisible character makes no class, and the refusal spells it."""
    with pytest.raises(Refused) as caught:
        classes(tmp_path / "a", "tee", other, "cup")
    assert ascii(other) in str(caught.value) and "'tee'" in str(caught.value) and "look alike" in str(caught.value)


def test_a_space_of_another_kind_makes_no_class(tmp_path: Path) -> None:
    """A space that does not break looks as any other."""
    with pytest.raises(Refused, match="labels 'green tee' and 'green..a0tee' in column 'label' look alike"):
        classes(tmp_path / "a", "green tee", "green\u00a0tee")


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (("1E2", "12E3", "101"), ("101", "12E3", "1E2")),
        (("01", "02", "10"), ("01", "02", "10")),
        (("\u211d", "R", "x\u00b2"), ("R", "x\u00b2", "\u211d")),
        (("12345678901234567891.0", "1.0"), ("1", "12345678901234567891")),
        (("-0.0", "1."), ("0", "1")),
    ],
    ids=["codes", "zeros in front", "signs", "long", "floats"],
)
def test_a_number_stays_what_it_is(labels: tuple[str, ...], names: tuple[str, ...], tmp_path: Path) -> None:
    """Codes that could be numbers keep their text, and whole floats are the whole numbers that they spell."""
    assert classes(tmp_path / "a", *labels) == names


@pytest.mark.parametrize("label", ["1e-3", "1E2", "02", "+2"])
def test_a_number_written_unlike_the_others_is_refused(label: str, tmp_path: Path) -> None:
    """Among floats nobody knows whether it is a code or a number."""
    with pytest.raises(Refused, match="is among numbers, and written unlike them; spell all labels alike"):
        classes(tmp_path / "a", "1.0", label, "3.0")


def test_zeros_in_front_are_no_numbers_of_the_models_classes(tmp_path: Path) -> None:
    """A model's class is meant by its plain number, and 01 is none."""
    assert classes(tmp_path / "a", "01", "2", known=("no", "yes", "perhaps")) == ("01", "2")


@pytest.mark.parametrize("labels", [("1", "01", "2"), ("1", "+1"), ("100", "1E2"), ("0", "-0"), ("x", "5", "05.0")])
def test_one_number_in_two_spellings_is_refused(labels: tuple[str, ...], tmp_path: Path) -> None:
    """Bug: each spelling of a number became a class of its own."""
    with pytest.raises(Refused, match="labels '.+' and '.+' in column 'label' are one number; spell all labels alike"):
        classes(tmp_path / "a", *labels)


def test_a_number_and_the_text_of_it_are_one(tmp_path: Path) -> None:
    """Bug: the number 1 and the text 01 in lines of JSON were two classes."""
    json_lines(tmp_path / "r.jsonl", [{"text": f"t{n}", "label": (1, "01", 2)[n % 3]} for n in range(9)])
    with pytest.raises(Refused, match="labels '01' and '1' in column 'label' are one number"):
        prepared(tmp_path / "d", tmp_path / "r.jsonl")


@pytest.mark.parametrize("other", ["\uff11\uff12", "\u0661\u0662"], ids=["wide", "Arabic"])
def test_digits_of_another_kind_are_one_number(other: str, tmp_path: Path) -> None:
    """A number in wide digits, as keyboards of the Far East write it, is that number."""
    with pytest.raises(Refused, match="are one number"):
        classes(tmp_path / "a", "12", other, "7")


@pytest.mark.parametrize("other", ["\uff34\uff25\uff25", "\uff34EE"])
def test_wide_letters_make_no_class(other: str, tmp_path: Path) -> None:
    """A name in wide letters is the name."""
    with pytest.raises(Refused, match="look alike"):
        classes(tmp_path / "a", "TEE", other)


def test_names_that_differ_in_capital_letters_are_told(tmp_path: Path) -> None:
    """Letters can be classes, so that both stay; a slip of the pen is seen."""
    folder = tmp_path / "a"
    assert classes(folder, "Pos", "pos ", "neg") == ("Pos", "neg", "pos")
    said = "labels 'Pos' and 'pos' differ in capital letters alone and are two classes"
    assert said in PreparedData(folder / "d").info.notes
