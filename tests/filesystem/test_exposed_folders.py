"""What another user, or a container, does to a folder meanwhile leads no write and no read of ours anywhere else."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.task import RunFacts
from fleetune.errors import Refused
from fleetune.exposed_folders import new_file, opened, opened_within, remove, take_files
from fleetune.filesystem import rename_durably, write_durably
from fleetune.launching.job import open_log
from fleetune.store import Store
from tests.support.filesystem.synced import recorded


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A file that nobody may change through another folder."""
    file = tmp_path / "theirs"
    file.write_text("theirs")
    return file


def in_turn(theirs: Path, place: Path) -> list[Path]:
    """Plant a link to their file at every name that a write of `place` was ever known to use."""
    planted = [place, place.with_name(place.name + ".part"), place.with_name(f".{place.name}.{os.getpid()}.part")]
    for each in planted:
        each.symlink_to(theirs)
    return planted


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_durably(b"ours", path),
        lambda path: json_io.write(RunFacts(name="ours"), path),
    ],
)
def test_a_planted_link_is_replaced_and_not_followed(
    write: Callable[[Path], None], theirs: Path, tmp_path: Path
) -> None:
    """What is written under a name does not go through links at that name, nor at one that is easily guessed."""
    folder = tmp_path / "folder"
    folder.mkdir()
    planted = in_turn(theirs, folder / "x.json")
    write(folder / "x.json")
    assert theirs.read_text() == "theirs"
    assert not (folder / "x.json").is_symlink() and b"theirs" not in (folder / "x.json").read_bytes()
    assert {*folder.iterdir()} == {*planted}, "no partial file is left"


def test_a_folder_that_was_swapped_for_a_link_is_not_entered(tmp_path: Path) -> None:
    """Inner folders are opened one by one, below the descriptor of the one before."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "round").symlink_to(tmp_path / "elsewhere")
    with opened(tmp_path / "mine") as top:
        with pytest.raises(NotADirectoryError), opened_within(top, ("round",), make=True):
            raise AssertionError("it was entered")
        (tmp_path / "mine" / "round").unlink()
        with opened_within(top, ("round", "deep"), make=True) as inner, new_file(inner, "f") as file:
            (tmp_path / "mine" / "round").rename(tmp_path / "mine" / "away")  # while it is open
            (tmp_path / "mine" / "round").symlink_to(tmp_path / "elsewhere")
            file.write(b"whole")
    assert (tmp_path / "mine" / "away" / "deep" / "f").read_bytes() == b"whole"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def plant_link(place: Path, theirs: Path) -> None:
    """A link to a file of somebody else."""
    place.symlink_to(theirs)


def plant_fifo(place: Path, theirs: Path) -> None:
    """A pipe that nobody ever writes to: whoever opens it waits for ever."""
    os.mkfifo(place)


def plant_folder(place: Path, theirs: Path) -> None:
    """A folder, with a link in it."""
    place.mkdir()
    (place / "in").symlink_to(theirs)


@pytest.mark.parametrize("plant", [plant_link, plant_fifo, plant_folder])
def test_only_plain_files_are_taken(plant: Callable[[Path, Path], None], theirs: Path, tmp_path: Path) -> None:
    """What a container puts in the place of its shard is neither opened nor kept, and the others are taken."""
    (tmp_path / "written").mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "written" / "a").write_text("a")
    plant(tmp_path / "written" / "b", theirs)
    with pytest.raises(OSError, match="not a plain file"):
        take_files(["a", "gone", "b"], tmp_path / "written", tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["a"]
    assert theirs.read_text() == "theirs"


def test_nothing_is_taken_from_a_folder_that_is_a_link(theirs: Path, tmp_path: Path) -> None:
    """A container that swaps the folder of a round for a link to ours has none of our files moved."""
    (tmp_path / "written").symlink_to(theirs.parent)
    (tmp_path / "kept").mkdir()
    with pytest.raises(OSError, match="Not a directory|Too many levels"):
        take_files(["theirs"], tmp_path / "written", tmp_path / "kept")
    assert theirs.read_text() == "theirs"


def test_a_log_is_not_written_through_a_link(theirs: Path, tmp_path: Path) -> None:
    """A log grows by what a container prints: it must not become somebody's `authorized_keys`."""
    (tmp_path / "log").symlink_to(theirs)
    with pytest.raises(Refused, match=r"log: it is a link, .*; delete it"):
        open_log(tmp_path / "log")


def test_what_is_removed_is_the_link(theirs: Path, tmp_path: Path) -> None:
    """A link is removed itself, and a folder without what links in it lead to."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "in").symlink_to(theirs.parent)
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    remove(tmp_path / "link")
    assert (tmp_path / "folder").is_dir()
    for _ in range(2):
        remove(tmp_path / "folder")
    assert theirs.exists() and not (tmp_path / "folder").exists()


def test_a_new_file_is_for_its_user_where_it_must_be(tmp_path: Path) -> None:
    """A secret is never readable by others, not even before it has its name."""
    write_durably(b"secret", tmp_path / "secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_what_is_renamed_is_on_disk_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and folders are flushed before they get their name, and the name after that."""
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "f").write_text("f")
    done = recorded(monkeypatch)
    rename_durably(tmp_path / "part", tmp_path / "whole")
    part = tmp_path / "part"
    assert done == [str(part / "f"), str(part), f"=> {tmp_path / 'whole'}", str(tmp_path)]


def test_no_artifact_is_a_link(theirs: Path, tmp_path: Path) -> None:
    """An output folder that a container has swapped for a link to one of ours is not stored."""
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "model").symlink_to(theirs.parent)
    with pytest.raises(Refused, match="not a folder"):
        Store(tmp_path / "store").put("model", tmp_path / "output" / "model", stage_key="k", inputs={})
    assert theirs.read_text() == "theirs"
