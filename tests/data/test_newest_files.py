"""The newest files of a folder, and a file that grows."""

from pathlib import Path

import pytest

from fleetune.contracts.run_config import DataRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.data.sources import content_digest, validate_data
from fleetune.errors import Refused
from tests.support.data.samples import TEXT, json_lines, prepared, texts

DAYS = ("2026-11-19", "2026-11-20", "2026-11-21", "2026-11-22")


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """A folder with a file of 40 rows for each day."""
    folder = tmp_path / "days"
    folder.mkdir()
    for day in DAYS:
        rows = [{"text": f"{day} {fruit} {n}", "label": fruit} for n in range(20) for fruit in ("pear", "apple")]
        json_lines(folder / f"{day}.jsonl", rows)
    return folder


def request(folder: Path, newest_files: int | None = 2) -> DataRequest:
    """The newest files of a folder."""
    return DataRequest(source=str(folder), newest_files=newest_files)


def test_only_the_newest_files_count(days: Path) -> None:
    """An older file's content is not part of the digest, a newer file's is, and a later day moves the window."""
    seen = content_digest(request(days))
    (days / "2026-11-19.jsonl").write_text("not even JSON")
    assert content_digest(request(days)) == seen != content_digest(request(days, None))
    json_lines(days / "2026-11-22.jsonl", [{"text": "other", "label": "pear"}])
    edited = content_digest(request(days))
    json_lines(days / "2026-11-23.jsonl", [{"text": "new", "label": "pear"}])
    assert len({seen, edited, content_digest(request(days))}) == 3


def test_no_window_tests_on_what_another_trained_on(days: Path, tmp_path: Path) -> None:
    """Rows are held out by their content, so that a model of an earlier window has not seen tonight's test rows."""
    early = prepared(tmp_path / "early", days, newest_files=3)
    json_lines(days / "2026-11-23.jsonl", [{"text": f"2026-11-23 pear {n}", "label": "pear"} for n in range(40)])
    late = prepared(tmp_path / "late", days, newest_files=3)
    for one, other in ((early, late), (late, early)):
        assert set(texts(one, "train")).isdisjoint(texts(other, "test"))
    rows = texts(late, "train") + texts(late, "test")
    assert {text.split()[0] for text in rows} == {"2026-11-21", "2026-11-22", "2026-11-23"} and len(rows) == 120
    assert 10 <= late.size("test") <= 40, "about a fifth"


def test_a_file_that_grows_tests_on_nothing_that_was_trained_on(tmp_path: Path) -> None:
    """Bug: with `promote`, the split of a file was drawn by its number of rows, so that most of what a night tested on
    was what the promoted model had trained on."""
    rows = [{"text": f"pear {n}", "label": ("pear", "apple")[n % 2]} for n in range(200)]
    nights = list[PreparedData]()
    for known in (150, 200):
        source = json_lines(tmp_path / "rows.jsonl", rows[:known])
        nights.append(prepared(tmp_path / str(known), source, TEXT, split_by_content=True))
    assert set(texts(nights[0], "train")).isdisjoint(texts(nights[1], "test"))
    assert set(texts(nights[0], "test")) < set(texts(nights[1], "test"))


def test_fewer_rows_than_asked_for_are_told_where_content_decides(tmp_path: Path) -> None:
    """Bug: which number of rows is held out by content is chance, by which a run was refused, after discovery."""
    source = json_lines(tmp_path / "rows.jsonl", [{"text": f"pear {n}", "label": n % 2} for n in range(100)])
    data = prepared(tmp_path / "d", source, TEXT, split_by_content=True, test_samples=60)
    assert data.size("train") + data.size("test") == 100
    assert f"test_samples asks for 60 rows, and by their content {data.size('test')} are held out" in data.info.notes
    with pytest.raises(Refused, match="split_by_content does not go with streaming"):
        DataRequest(source="owner/set", split_by_content=True, streaming=True, train_samples=9, test_samples=9)


def test_a_folder_without_training_files_has_no_window(days: Path, tmp_path: Path) -> None:
    """Bug: a folder of test files that is only tested on ended in a traceback."""
    for day in DAYS:
        (days / f"{day}.jsonl").rename(days / f"test-{day}.jsonl")
    assert prepared(tmp_path / "d", days, newest_files=1, validation=1.0).size("test") == 160


def test_test_files_stay(days: Path) -> None:
    """Where the folder has test files, the window moves over the train files only."""
    for day in DAYS:
        (days / f"{day}.jsonl").rename(days / f"train-{day}.jsonl")
    json_lines(days / "test.jsonl", [{"text": "a test", "label": "pear"}])
    seen = content_digest(request(days, 1))
    json_lines(days / "test.jsonl", [{"text": "another test", "label": "pear"}])
    assert content_digest(request(days, 1)) != seen
    validate_data(request(days, 1), "sequence-classification")


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        ([f"day-{n}" for n in range(1, 12)], "day-11"),
        (["2026/9/30", "2026/10/2", "2026/10/10"], "2026/10/10"),
        (["2025/12", "2026/1"], "2026/1"),
        (["a/2026-01", "b/2026-12"], "b/2026-12"),
    ],
)
def test_numbers_in_names_count_as_numbers(names: list[str], newest: str, tmp_path: Path) -> None:
    """Bug: day-9 was newer than day-10, since names were sorted by their characters."""
    for name in names:
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        rows = [{"text": f"{name} {fruit} {n}", "label": fruit} for n in range(20) for fruit in ("pear", "apple")]
        json_lines(tmp_path / "set" / f"{name}.jsonl", rows)
    data = prepared(tmp_path / "d", tmp_path / "set", newest_files=1)
    assert {text.split()[0] for text in texts(data, "train")} == {newest}


def test_folders_that_disagree_with_names_are_refused(tmp_path: Path) -> None:
    """Bug: b/2026-01 was newer than a/2026-12. What is clear without the folders is read."""
    for name in ("b/2026-01", "a/2026-12"):
        (tmp_path / name).parent.mkdir()
        json_lines(tmp_path / f"{name}.jsonl", [{"text": f"{name} {fruit}", "label": fruit} for fruit in ("x", "y")])
    with pytest.raises(Refused, match=r"not clear whether .*a/2026-12\.jsonl or .*b/2026-01\.jsonl is newer"):
        content_digest(request(tmp_path, 1))
    assert content_digest(request(tmp_path, 2))


def test_only_folders_of_files_have_newest_ones(days: Path, tmp_path: Path) -> None:
    """A single file, a built-in set and an empty folder are refused by name, and so is a window without files."""
    (tmp_path / "empty").mkdir()
    for source in (str(days / "2026-11-22.jsonl"), "docstrings", str(tmp_path / "empty")):
        with pytest.raises(Refused, match="newest_files"):
            content_digest(DataRequest(source=source, newest_files=2))
    with pytest.raises(Refused, match="newest_files"):
        request(days, 0)
