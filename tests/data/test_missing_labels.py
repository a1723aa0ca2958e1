"""What stands for a label that is not there is no class: among numbers it is refused, among names it is told."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from fleetune.contracts.input_spec import InputSpec
from fleetune.data.prepared_data import PreparedData
from fleetune.errors import Refused
from tests.support.data.samples import json_lines, prepared


def of(folder: Path, labels: Sequence[object], known: tuple[str, ...] = ()) -> PreparedData:
    """Texts with these labels in turn, as JSON lines, for a model with these classes."""
    rows = [{"text": f"text {n}", "label": labels[n % len(labels)]} for n in range(max(20, len(labels)))]
    spec = InputSpec(task="sequence-classification", labels=known)
    return prepared(folder / "d", json_lines(folder / "r.jsonl", rows), spec)


@pytest.mark.parametrize("missing", ["nan", "NaN", "null", "None", "?", "-"])
@pytest.mark.parametrize("numbers", [["0", "1"], ["0.0", "1.0"], [0, 1]])
def test_a_missing_label_among_numbers_is_refused(missing: str, numbers: list[object], tmp_path: Path) -> None:
    """Bug: what pandas and others write for a missing number was a class of its own, and made all labels names."""
    with pytest.raises(
        Refused, match=f"label '{re.escape(missing)}' in column 'label', among numbers, stands for none; fill it"
    ):
        of(tmp_path, [*numbers, missing])


def test_a_missing_label_among_names_is_told(tmp_path: Path) -> None:
    """Among names it may be one."""
    data = of(tmp_path, ["neg", "pos", "None"])
    assert data.labels == ("None", "neg", "pos")
    assert "label 'None' is a class like the others; if it stands for none, leave its rows out" in data.info.notes
    for number, labels in enumerate((["neg", "pos", "none"], ["+", "-"])):
        (tmp_path / str(number)).mkdir()
        assert not any("stands for none" in note for note in of(tmp_path / str(number), labels).info.notes)
    (tmp_path / "snli").mkdir()
    assert "label '-' is a class like the others" in " ".join(of(tmp_path / "snli", ["neutral", "-"]).info.notes)


@pytest.mark.parametrize("labels", [[0, 1] * 11 + [-1], ["0", "1", "2"] * 12 + ["-1"]])
def test_minus_one_beside_zero_is_refused_where_it_is_rare(labels: list[object], tmp_path: Path) -> None:
    """Bug: -1, which SNLI gives rows without a class, was the first class and moved all others by one."""
    with pytest.raises(
        Refused, match=r"has label -1 beside those from 0, .*; if it is a class \(.*give .* none, leave them out"
    ):
        of(tmp_path, labels)


@pytest.mark.parametrize("labels", [[-1, 0, 1], ["-1", "0"], [0, 1] * 10 + [-1]])
def test_minus_one_that_is_not_rare_is_told(labels: list[object], tmp_path: Path) -> None:
    """Bug: the signs of sentiments were refused, later where negative was the rarest. Where -1 has a tenth of the rows
    of the rarest other label, it is a class."""
    data = of(tmp_path, labels)
    assert data.labels == tuple(sorted({str(label) for label in labels}, key=int))
    assert "label -1 is a class like the others; if it stands for none, leave its rows out" in data.info.notes


def test_missing_labels_alone_are_among_no_numbers(tmp_path: Path) -> None:
    """Bug: where every label was None, it was refused as one among numbers."""
    with pytest.raises(Refused, match="every row has the label 'None' in column 'label'; a classifier needs two"):
        of(tmp_path, ["None"])


def test_minus_one_is_a_class_where_it_says_so(tmp_path: Path) -> None:
    """Signs without a zero, more negative numbers, and a model's own class of that name are classes."""
    for number, (labels, known) in enumerate([([-1, 1], ()), ([-2, -1, 0, 1], ()), ([-1, 0], ("0", "-1"))]):
        (tmp_path / str(number)).mkdir()
        assert set(of(tmp_path / str(number), labels, known).labels) == set(map(str, labels))
