"""Numbers and several labels are read from the label column, in the spellings that files have."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.local_data import survey
from fleetune.data.prepared_data import LABELS, PreparedData
from fleetune.data.preview import preview
from fleetune.data.writer import prepare_data
from fleetune.errors import Refused
from fleetune.models.loss import count_targets
from tests.support.data.samples import json_lines

NUMBERS = InputSpec(task="sequence-regression", vocab_size=264, max_positions=64)
SEVERAL = InputSpec(task="sequence-multi-label-classification", vocab_size=264, max_positions=64)


def made(folder: Path, spec: InputSpec, labels: list[Any], **changes: Any) -> PreparedData:
    """Prepare texts with these labels."""
    source = json_lines(folder / "rows.jsonl", [{"text": f"t{n}", "label": label} for n, label in enumerate(labels)])
    request = DataRequest(**{"source": str(source), "max_length": 8, "test_fraction": 0.25, **changes})
    prepare_data(request, spec, folder / "data", 0)
    return PreparedData(folder / "data")


def of_all(data: PreparedData) -> np.ndarray[Any, Any]:
    """Labels of both splits."""
    return np.concatenate([data.rows(split, range(data.size(split)))[LABELS] for split in ("train", "test")])


def test_numbers_are_kept_as_they_are(tmp_path: Path) -> None:
    """Whole numbers, fractions and numbers as text; the model's one output has the column's name."""
    data = made(tmp_path, NUMBERS, [1, -2.5, "3.25", 0, 1e3, 7, 8, 9])
    assert sorted(of_all(data).tolist()) == [-2.5, 0, 1, 3.25, 7, 8, 9, 1000]
    assert of_all(data).dtype == np.float32 and data.labels == ("label",)
    shown = preview(data, 2)
    assert all(float(sample.label) in of_all(data) for sample in shown.samples)
    assert [split.labels for split in shown.splits] == [{}, {}] and shown.splits[0].loss_share is None


def test_several_labels_are_lists_or_texts(tmp_path: Path) -> None:
    """A sample has some labels or none at all; a text has them between bars, or is a list in JSON."""
    data = made(tmp_path, SEVERAL, [["b", "a"], ["a"], [], "a|b", "b", '["c"]', "", ["c", "a"]])
    assert data.labels == ("a", "b", "c")
    found = sorted("".join(n for n, has in zip("abc", row, strict=True) if has) for row in of_all(data))
    assert found == sorted(["ab", "a", "", "ab", "b", "c", "", "ac"])
    counts = {name: sum(split.labels[name] for split in preview(data, 0).splits) for name in "abc"}
    assert counts == {"a": 4, "b": 3, "c": 2}
    assert count_targets(of_all(data), data.task) == 8 * 3
    assert {sample.label for sample in preview(data, 6).samples} <= {"a, b", "a", "none", "b", "c", "a, c"}


@pytest.mark.parametrize("between", [",", ";", " ", "/", ", ", "&", "+"])
@pytest.mark.parametrize("spec", [SEVERAL, InputSpec(task="sequence-classification", vocab_size=264)])
def test_labels_joined_by_another_sign_are_told(spec: InputSpec, between: str, tmp_path: Path) -> None:
    """Bug: red,green was a class of its own beside red and green, without a word. Where rows have several labels, red
    alone tells enough."""
    data = made(tmp_path, spec, ["red", "green", f"red{between}green"] * 4)
    assert any(f"'red{between}green' are classes of their own" in note for note in data.info.notes)
    assert any("set model.task to a multi-label one and write red|green, or a list" in note for note in data.info.notes)
    (tmp_path / "e").mkdir()
    data = made(tmp_path / "e", spec, ["red", f"red{between}brown", "green"] * 4)
    hinted = spec is SEVERAL and between not in (" ", "&", "+")
    assert any("of their own" in note for note in data.info.notes) == hinted


@pytest.mark.parametrize(
    ("joined", "told"),
    [
        ("red|green", True),
        ("red | green", True),
        ("[red, green]", True),
        ('["red", "green"]', True),
        ("['red', 'brown']", True),
        ("['red' 'green']", True),
        ("('red',)", True),
        ("{'red', 'green'}", True),
        ("['brown']", False),
        ("red|brown", False),
        ("red (dark)", False),
        ("red+", False),
        ("[0, 10)", False),
    ],
)
def test_labels_that_are_lists_where_rows_have_one_are_told(joined: str, told: bool, tmp_path: Path) -> None:
    """Bug: the labels of a row with bars between them, or as a program writes a list, were a class without a word; a
    name that only looks so is none."""
    data = made(tmp_path, replace(SEVERAL, task="sequence-classification"), ["red", "green", joined] * 4)
    said = [note for note in data.info.notes if "are classes of their own beside those that they are made of" in note]
    assert len(said) == told and len(data.labels) == 3
    assert all(f"labels such as {joined!r}" in note for note in said)
    if "brown" not in joined and "," in joined and joined != "('red',)":
        assert all("and write red|green, or a list" in note for note in said)


@pytest.mark.parametrize("rows", [[["c"], ["b"], [], ["b"]], [["a"], [], [], ["a"]]])
def test_labels_of_the_model_that_no_sample_has_keep_their_place(rows: list[list[str]], tmp_path: Path) -> None:
    """Bug: data with fewer labels than the model's gave an array as wide as theirs, or an error of indices."""
    names = ("a", "b", "c")
    data = made(tmp_path, replace(SEVERAL, labels=names), rows)
    assert data.labels == names and of_all(data).shape == (4, 3)
    assert sorted(of_all(data).tolist()) == sorted([float(name in row) for name in names] for row in rows)
    assert preview(data, 1).splits[0].labels.keys() == set(names)


def test_one_label_that_a_sample_has_or_not(tmp_path: Path) -> None:
    """A single label is enough: what is learned is whether a sample has it."""
    data = made(tmp_path, SEVERAL, [["spam"], [], [], ["spam"]])
    assert data.labels == ("spam",) and of_all(data).shape == (4, 1)


@pytest.mark.parametrize(
    ("spec", "labels", "said"),
    [
        (NUMBERS, [1, "many"], r"rows.jsonl: line 2: 'many' in column 'label' is no number; fill it or leave the row"),
        (NUMBERS, [None, 1], "line 1: None in column 'label' is no number"),
        (NUMBERS, [True, 1], "line 1: True in column 'label' is no number"),
        (SEVERAL, [[], []], "no row has a label in column 'label'; give some of them one"),
        (SEVERAL, [3, ["a"]], r"line 1: column 'label' holds int; give a list of labels, or a text such as a\|b"),
        (SEVERAL, [["a"], [1.5]], "line 2: label 1.5 in column 'label' is a fraction"),
        (SEVERAL, [["a"], ["b", "a", "b"]], "line 2: column 'label' names label 'b' twice; give the labels"),
        (SEVERAL, [[0, 1, 0], [1, 1, 0]], "line 1: column 'label' names label 0 twice; .*, not 0 or 1 for each"),
        (SEVERAL, [[0.0, 1.0], [1.0, 1.0]], "line 2: column 'label' names label 1 twice"),
        (SEVERAL, ["1|0", "[1, 0, 1]"], "line 2: column 'label' names label 1 twice"),
        (SEVERAL, [[1, 0], [0, 1]], "each row has the labels 0 and 1 in column 'label', as if they said which of two"),
        (SEVERAL, [["a"], [2]], "mixes strings and whole numbers; spell all labels alike"),
    ],
)
def test_other_labels_are_refused_with_their_place(
    spec: InputSpec, labels: list[Any], said: str, tmp_path: Path
) -> None:
    """The row is named, and what would do."""
    with pytest.raises(Refused, match=said):
        made(tmp_path, spec, labels * 3)


def test_labels_that_are_lists_in_bad_json_are_refused(tmp_path: Path) -> None:
    """A text that only looks like a list."""
    with pytest.raises(Refused, match="line 1: column 'label' holds a list that is no JSON"):
        made(tmp_path, SEVERAL, ["[a, b]", "a"])


@pytest.mark.parametrize("spec", [NUMBERS, SEVERAL])
def test_numbers_and_several_labels_do_not_stay_on_devices(spec: InputSpec, tmp_path: Path) -> None:
    """Their labels would have to be agreed on, which is not built."""
    source = json_lines(tmp_path / "a.jsonl", [{"text": "a", "label": 1}])
    with pytest.raises(Refused, match="cannot be learned from data that stay on devices; give data.source"):
        survey(DataRequest(source=str(source)), spec, lambda *_: None)


def test_labels_that_no_training_row_has_are_told(tmp_path: Path) -> None:
    """Bug: of several labels for a sample, those that only test rows have were never named."""
    held = json_lines(tmp_path / "held.jsonl", [{"text": "other", "label": ["red", "blue"]}])
    data = made(tmp_path, SEVERAL, [["red", "green"], ["green"]] * 10, validation=str(held))
    assert "no training row is of class blue, so it cannot be learned" in data.info.notes
