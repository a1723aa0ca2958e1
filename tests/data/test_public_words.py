"""What is told of errors in data that stay on a device: nothing that can come out of a sample or a file's name."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.contracts.task import ignore_progress
from fleetune.data.local_data import survey, told
from fleetune.data.public_words import EXPLANATION, Place, Told, ToldAgain, inside, noted, public_words
from fleetune.errors import Refused, TryAgain

TEXTS, IMAGES = InputSpec(task="sequence-classification"), InputSpec(task="image-classification", channels=1)
SECRETS = ("Jane", "Doe", "HIV", "4711", "5.7", "stage")
"""Planted wherever a source holds something."""


def table(content: str, suffix: str = "csv") -> Callable[[Path], Path]:
    """A file of this content, in a folder with an apostrophe."""

    def write(folder: Path) -> Path:
        place = folder / "St Mary's"
        place.mkdir()
        file = place / f"own.{suffix}"
        file.write_text(content)
        return file

    return write


def rows(*values: object) -> Callable[[Path], Path]:
    """A file of JSON lines."""
    return table("".join(json.dumps(each) + "\n" for each in values), "jsonl")


def images(*names: str) -> Callable[[Path], Path]:
    """A folder with an image at each of these paths."""

    def write(folder: Path) -> Path:
        root = folder / "own"
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8)).save(root / name)
        return root

    return write


def listed(name: str) -> Callable[[Path], Path]:
    """A table that names an image which is not there."""
    return rows({"image": name, "label": "Doe"})


def other_shapes(folder: Path) -> Path:
    """A folder of classes whose second image is damaged."""
    root = images("HIV/Jane.png", "HIV/Doe (1).png", "fine/Jane.png")(folder)
    (root / "HIV" / "Doe (1).png").write_bytes(b"Jane Doe")
    return root


CASES: dict[str, tuple[Callable[[Path], Path], InputSpec, str]] = {
    "a fraction as label": (rows({"text": "Jane", "label": 5.7}), TEXTS, "row|line"),
    "a mapping as label": (rows({"text": "Jane", "label": {"name": "Doe", "age": 4711}}), TEXTS, "label"),
    "a list as text": (rows({"text": ["Jane Doe"], "label": "HIV"}), TEXTS, "holds|text"),
    "no label": (rows({"text": "Jane Doe", "label": None}), TEXTS, "column 'label'"),
    "mixed labels": (rows({"text": "Jane", "label": "Doe"}, {"text": "a", "label": 4711}), TEXTS, "label"),
    "no heading": (table("Jane Doe (f),HIV positive,,\nJane,HIV,,\n"), TEXTS, ""),
    "no heading, with a semicolon": (table("pain; HIV positive (Jane),4711\na,b\n"), TEXTS, ""),
    "more fields": (table("text,label\nJane,Doe,HIV,4711\n"), TEXTS, "line 2"),
    "a damaged quote": (table('text,label\n"Jane Doe,1\n'), TEXTS, ""),
    "a damaged line": (table('{"text": "Jane Doe", "lab', "jsonl"), TEXTS, "line 1 is not JSON"),
    "no rows": (table("text,label\n"), TEXTS, ""),
    "loose images": (images("Jane Doe.png", "HIV/stage.png", "fine/a.png"), IMAGES, ""),
    "a path that is not there": (listed("Jane Doe (1).png"), IMAGES, "path"),
    "a path with an apostrophe": (listed("Jane's Doe.png"), IMAGES, "path"),
    "a damaged image": (other_shapes, IMAGES, ""),
    "one class of files": (images("Jane Doe/a.png"), IMAGES, ""),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_of_a_sample_is_told(name: str, tmp_path: Path) -> None:
    """Every planted word stays, whatever the fault; what is told says what to do, and where no column is named, which
    row it is.
    """
    write, spec, words = CASES[name]
    request = DataRequest(source=str(write(tmp_path)), max_length=16)
    try:
        survey(request, spec, ignore_progress)
    except Exception as error:
        said = told(error, request)
    else:
        assert name in ("no heading", "one class of files"), "nothing is wrong with it"
        return
    without = said.replace(str(tmp_path), "")
    assert not [secret for secret in SECRETS if secret in without], said
    assert any(word in said for word in words.split("|")) and len(said.removesuffix(EXPLANATION)) > 20, said


def test_a_message_is_whole_here_and_without_its_private_parts_elsewhere() -> None:
    """What a statement fills in by name is told, and of a place the row; all else is withheld, in any format."""
    place = inside(noted(Place("Doe.csv: row 7", "row 7"), "Jane.png"), "label")
    error = Told("{location}: column {column!r} has {} of {!r}, {:.1f}", 3, "Jane", 5.7, location=place, column="label")
    assert str(error) == "Doe.csv: row 7 (Jane.png), label: column 'label' has 3 of 'Jane', 5.7"
    assert public_words(error) == f"row 7, label: column 'label' has ... of ..., ...{EXPLANATION}"
    around = Told("{}: {error}", "Doe", error=error)
    assert str(around) == f"Doe: {error}" and public_words(around) == public_words(error)
    assert public_words(Told("{}: {error}", "Doe", error=Refused("Jane"))) == f"...{EXPLANATION}"


def test_a_place_that_does_not_know_its_parts_is_withheld() -> None:
    """A location in plain words may hold the name of a file."""
    plain = Told("{location} is empty; fill it", location=inside(noted("Doe.csv: row 7", "Jane"), "label"))
    assert str(plain) == "Doe.csv: row 7 (Jane), label is empty; fill it"
    assert public_words(plain) == f"... is empty; fill it{EXPLANATION}"


def test_values_hold_no_fields() -> None:
    """Braces in a cell are no fields of a message, here or after another process has raised it."""
    error = ToldAgain("{} is odd", "{0} {secret}")
    again = pickle.loads(pickle.dumps(error))
    assert str(error) == str(again) == "{0} {secret} is odd"
    assert isinstance(again, TryAgain) and again.exit_code == error.exit_code
    assert isinstance(pickle.loads(pickle.dumps(Told("{}", "{"))), Refused)


@pytest.mark.parametrize("error", [ValueError("Jane"), Refused("Jane Doe"), TryAgain("Jane")])
def test_of_an_error_that_does_not_tell_its_parts_apart_the_type_is_told(error: Exception) -> None:
    """A library's words may quote what it reads, and so may a message that is already made."""
    assert public_words(error) == f"its data cannot be used: {type(error).__name__}{EXPLANATION}"
