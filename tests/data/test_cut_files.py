"""CSV files that were cut off within their last label: a note tells what reads as a class of its own."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.data.cut_files import cut_notes
from fleetune.data.tables import CsvTable, DataSource, Rows
from tests.support.data.samples import TEXT, prepared

MANY = replace(TEXT, task="sequence-multi-label-classification")
LINES = [f"text {n},{('negative', 'positive')[n % 2]}\n" for n in range(20)]
NOTE = "the last line of r.csv has no line end, and no other row has its label, 'pos': the file may have been cut off"


def notes(folder: Path, content: str, multi: bool = False) -> tuple[str, ...]:
    """Notes on a CSV file that a note may take for cut off, without those on classes."""
    (folder / "r.csv").write_text(content)
    found = prepared(folder / "d", folder / "r.csv", MANY if multi else TEXT).info.notes
    return tuple(note for note in found if "no training row" not in note)


def test_half_a_label_at_the_end_is_told(tmp_path: Path) -> None:
    """Bug: `pos`, of a file that was cut within `positive`, became a third class without a word."""
    assert notes(tmp_path, "text,label\n" + "".join(LINES)[:-6]) == (NOTE,)


def test_half_of_several_labels_is_told(tmp_path: Path) -> None:
    """So it is where a row has several labels."""
    rows = [line.replace(",", ",long|") for line in LINES]
    assert notes(tmp_path, "text,label\n" + "".join(rows)[:-6], multi=True) == (NOTE,)


def test_a_label_of_others_is_looked_for_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a file without a last line end, as Google Sheets writes it, was read whole once more."""
    read = []

    class Counted(CsvTable):
        def rows(self) -> Rows:
            for row in super().rows():
                read.append(row)
                yield row

    (tmp_path / "r.csv").write_text("text,label\n" + "".join(LINES)[:-1])
    source = DataSource(train=(Counted(path=tmp_path / "r.csv", columns=("text", "label")),))
    assert not [*cut_notes(source, TEXT.task)] and len(read) == 4


@pytest.mark.parametrize(
    "content",
    [
        "text,label\n" + "".join(LINES)[:-1],
        "text,label\n" + "".join(LINES) + "text,pos\n",
        "text,label\r" + "".join(LINES).replace("\n", "\r") + "text,pos\r",
        "text,label\n" + "".join(LINES) + 'a text,"positive"',
        "text,label\n" + "".join(LINES) + '"a text\nof two lines",positive',
        "label,text\n" + "".join(f"{line.split(',')[1].strip()},{line.split(',')[0]}\n" for line in LINES) + "pos,a",
    ],
    ids=[
        "a label of others",
        "a line end",
        "a line end of old",
        "a quoted label",
        "two lines",
        "a label that does not end the line",
    ],
)
def test_whole_files_are_not_told(content: str, tmp_path: Path) -> None:
    """A last label that others have, a line that ends, and a label before other columns are no sign of it."""
    assert notes(tmp_path, content) == ()
