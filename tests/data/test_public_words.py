"""What is told of errors in data that stay on a device: nothing that can come out of a sample or a file's name."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.contracts.task import ignore_progress
from fleetune.data.local_data import survey, told
from fleetune.data.public_words import EXPLANATION, public_words
from fleetune.errors import Refused

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


def test_words_of_this_code_and_of_the_settings_are_told() -> None:
    """Literal words stay, and so do columns, the source and the numbers of rows; everything else is withheld."""
    column, location, count, cell = "label", "own.csv: row 7, label", 3, "Jane"
    with pytest.raises(Refused) as caught:
        raise Refused(f"{location}: column {column!r} has {count} of {cell}; see row {count}, or " + "ask")
    said = public_words(caught.value, {"label", "own.csv"})
    assert said == f"own.csv: row 7, label: column 'label' has ... of ...; see row 3, or ask{EXPLANATION}"
    assert public_words(caught.value, {"other"}).startswith("...: row 7: column ... has ... of ...; see row 3")


def test_an_error_that_is_no_statement_of_ours_is_its_type() -> None:
    """A library's words may quote what it reads."""
    with pytest.raises(ValueError) as caught:
        int("Jane")
    assert public_words(caught.value, ()).startswith("its data cannot be used: ValueError")
    text = "Jane Doe"
    with pytest.raises(Refused) as computed:
        raise Refused(text)
    assert public_words(computed.value, ()).startswith("its data cannot be used: Refused")
