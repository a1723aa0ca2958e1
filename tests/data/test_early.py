"""What one look at a source shows."""

from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.run_config import DataRequest
from fleetune.data import prove_data
from fleetune.errors import Refused
from tests.data.instances import CAUSAL, FRUITS, TEXT, json_lines, prepared

CLASSIFY = "sequence-classification"


def asked(source: object, **changes: Any) -> DataRequest:
    """A request for that source."""
    return DataRequest(source=str(source), **changes)


@pytest.mark.parametrize(
    ("content", "changes", "says"),
    [
        ("text,label\n", {}, r"r\.csv: no samples in it; give at least one row"),
        ("", {}, r"r\.csv: the file is empty"),
        ("text,kind\na,b\n", {}, r"no column 'label' .* it has text, kind"),
        ("text,label\na,b\n", {"text_column": "body"}, r"no column 'body' .* it has text, label"),
        ("text,label\n ,b\n", {}, r"line 2: column 'text' is empty"),
    ],
)
def test_a_source_that_cannot_serve_is_refused_at_once(
    content: str, changes: dict[str, str], says: str, tmp_path: Path
) -> None:
    """Such files were found out only after every device had been measured."""
    (tmp_path / "r.csv").write_text(content)
    with pytest.raises(Refused, match=says):
        prove_data(asked(tmp_path / "r.csv", **changes), CLASSIFY)


def test_an_empty_test_split_is_refused(tmp_path: Path) -> None:
    """Both splits are looked at."""
    (tmp_path / "set").mkdir()
    json_lines(tmp_path / "set" / "train.jsonl", FRUITS)
    (tmp_path / "set" / "test.csv").write_text("text,label\n")
    with pytest.raises(Refused, match=r"test\.csv: no samples"):
        prove_data(asked(tmp_path / "set"), CLASSIFY)


@pytest.mark.parametrize(
    ("source", "task", "says"),
    [
        ("digits", CLASSIFY, "no column 'text'"),
        ("docstrings", "image-classification", "no column 'image'"),
        ("stdlib-sources", CLASSIFY, "without labels"),
    ],
)
def test_built_in_sets_are_known_without_making_them(source: str, task: str, says: str) -> None:
    """The same sentence as preparation has, without its seconds."""
    with pytest.raises(Refused, match=says):
        prove_data(asked(source), task)


@pytest.mark.parametrize(
    ("source", "task"),
    [("digits", "image-classification"), ("docstrings", CLASSIFY), ("stdlib-sources", "causal-lm")],
)
def test_good_sets_pass(source: str, task: str, tmp_path: Path) -> None:
    """Nothing is refused that can be prepared; names on the hub are not looked up."""
    prove_data(asked(source), task)
    prove_data(asked("somebody/something"), task)


@pytest.mark.parametrize(("test_samples", "good"), [(4, True), (5, False)])
def test_fewer_test_rows_than_asked_for(test_samples: int, good: bool, tmp_path: Path) -> None:
    """Scores came from fewer rows than were asked for, without a word; 20 rows hold out 4. Preparing agrees."""
    request = asked(json_lines(tmp_path / "r.jsonl", FRUITS), test_samples=test_samples)
    if good:
        prove_data(request, CLASSIFY)
        assert prepared(tmp_path / "d", request.source, test_samples=test_samples).size("test") == test_samples
        return
    says = r"test_samples asks for 5 rows, but .* has 4 to test on; ask for at most 4, or give more"
    with pytest.raises(Refused, match=says):
        prove_data(request, CLASSIFY)
    with pytest.raises(Refused, match=says):
        prepared(tmp_path / "d", request.source, TEXT, test_samples=test_samples)


def test_a_test_split_of_its_own_is_counted(tmp_path: Path) -> None:
    """Rows of test files count as they are."""
    (tmp_path / "set").mkdir()
    json_lines(tmp_path / "set" / "train.jsonl", FRUITS)
    json_lines(tmp_path / "set" / "test.jsonl", FRUITS[:3])
    prove_data(asked(tmp_path / "set", test_samples=3), CLASSIFY)
    with pytest.raises(Refused, match="has 3 to test on"):
        prove_data(asked(tmp_path / "set", test_samples=4), CLASSIFY)


def test_blocks_of_packed_text_are_counted_when_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many blocks documents fill is known only then."""
    from fleetune.data import stdlib

    for name in "abc":
        (tmp_path / f"{name}.py").write_text(f"{name} = 1\n" * 9)
    monkeypatch.setattr(stdlib, "stdlib_files", lambda: tuple((f"{n}.py", tmp_path / f"{n}.py") for n in "abc"))
    with pytest.raises(Refused, match=r"test_samples asks for 100 rows, but stdlib-sources has \d+ to test on"):
        prepared(tmp_path / "d", "stdlib-sources", CAUSAL, max_length=16, test_samples=100)


def test_a_built_in_set_is_made_where_its_test_rows_are_counted() -> None:
    """The demo asked for more held-out docstrings than there are, which was refused only after discovery."""
    prove_data(DataRequest(source="digits", test_samples=10), "image-classification")
    with pytest.raises(Refused, match=r"test_samples asks for 1000 rows, but digits has \d+ to test on"):
        prove_data(DataRequest(source="digits", test_samples=1000), "image-classification")
