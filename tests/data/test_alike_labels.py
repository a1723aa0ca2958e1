"""Labels that are alike but for their spelling: one class, or refused; never silently another class."""

import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fleetune.contracts.input_spec import InputSpec
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
        (("1E2", "12E3", "100"), ("100", "12E3", "1E2")),
        (("01", "1"), ("01", "1")),
        (("12345678901234567891.0", "1.0"), ("1", "12345678901234567891")),
        (("-0.0", "1."), ("0", "1")),
    ],
    ids=["codes", "zeros in front", "long", "floats"],
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
    """A model's class is meant by its plain number; 01 and 1 are two labels."""
    assert classes(tmp_path / "a", "01", "1", known=("no", "yes", "perhaps")) == ("01", "1")
