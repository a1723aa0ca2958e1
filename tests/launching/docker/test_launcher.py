"""Ownership of folders that containers write to."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from fleetune.launching.docker import launcher
from fleetune.launching.docker.tar_archive import IMAGE_USER
from fleetune.launching.job import Command


@pytest.fixture
def chowned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record chown calls as real paths instead of making them, since tests may not run as root."""
    found: list[str] = []

    def chown(name: str, user: int, group: int, *, dir_fd: int, follow_symlinks: bool) -> None:
        assert (user, group, follow_symlinks) == (IMAGE_USER, IMAGE_USER, False)
        found.append(os.path.normpath(f"{os.readlink(f'/proc/self/fd/{dir_fd}')}/{name}"))

    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(os, "chown", chown)
    monkeypatch.setattr(os, "fchown", lambda file, user, group: found.append(os.readlink(f"/proc/self/fd/{file}")))
    return found


def test_everything_in_a_folder_changes_owner(tmp_path: Path, chowned: list[str]) -> None:
    """Files and folders at every depth change owner, and a link itself but not its target."""
    (tmp_path / "w" / "a" / "b").mkdir(parents=True)
    (tmp_path / "w" / "a" / "b" / "f").touch()
    (tmp_path / "w" / "etc").symlink_to("/etc")
    launcher.make_writable(tmp_path / "w")
    assert sorted(chowned) == [str(tmp_path / "w" / name) for name in ("", "a", "a/b", "a/b/f", "etc")]


def test_a_folder_that_is_swapped_for_a_link_leads_nowhere(
    tmp_path: Path, chowned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that swaps a folder for a link to /etc while the host goes through it once got /etc/passwd."""
    (tmp_path / "w" / "a").mkdir(parents=True)
    (tmp_path / "w" / "a" / "passwd").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "passwd").touch()
    plain = os.chown

    def swap(name: str, user: int, group: int, *, dir_fd: int, follow_symlinks: bool) -> None:
        plain(name, user, group, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        if name == "a":
            (tmp_path / "w" / "a").rename(tmp_path / "w" / "b")
            (tmp_path / "w" / "a").symlink_to(tmp_path / "elsewhere")

    monkeypatch.setattr(os, "chown", swap)
    launcher.make_writable(tmp_path / "w")
    assert not any("elsewhere" in path for path in chowned)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        launcher.make_writable(tmp_path / "link")
    assert not any("elsewhere" in path for path in chowned)


@pytest.mark.parametrize("is_here", [True, False])
def test_folders_of_a_device_are_neither_uploaded_nor_shared(
    is_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device's source is bound where it lies; its own folder outlives a command, and nothing of it is copied."""
    made: list[Path] = []

    def empty_volume(client: object, image_id: str, folder: Path, labels: object) -> str:
        made.append(folder)
        return f"volume-{len(made)}"

    monkeypatch.setattr(launcher.folder_transfer, "empty_volume", empty_volume)
    monkeypatch.setattr(launcher.folder_transfer, "upload_folders", lambda client, image, folders, labels: {})
    engine = SimpleNamespace(is_here=is_here, client=None, image_id="image", labels={})
    mounts = launcher.FolderMounts(engine)  # type: ignore[arg-type]
    source, own = Path("/data/reviews.csv"), tmp_path / "devices" / "x"
    command = Command(module="m", log=tmp_path / "log", device_reads=(source,), device_writes=(own,))
    first, second = (mounts.mounts(command) for _ in range(2))
    assert first == second, "later commands find the same folder"
    read, write = first
    assert (read["Type"], read["Source"], read["Target"], read["ReadOnly"]) == ("bind", str(source), str(source), True)
    assert (write["Target"], write["ReadOnly"]) == (str(own), False)
    assert (write["Type"], write["Source"]) == (("bind", str(own)) if is_here else ("volume", "volume-1"))
    assert made == ([] if is_here else [own])
