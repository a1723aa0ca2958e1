"""Ownership of folders that containers write to, and the end of a container."""

import io
import itertools
import os
import tarfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from docker.errors import NotFound
from docker.types import Mount

from fleetune.launching.docker import launcher
from fleetune.launching.docker.tar_archive import IMAGE_USER
from fleetune.launching.job import SILENT_CODE, Command
from tests.support.launching.freezing import HASTY

PATIENCE_S = 30.0


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


class Volumes:
    """The volumes of an engine, as the docker library offers them, that keeps what is put into each."""

    def __init__(self) -> None:
        self.filled: list[dict[str, dict[str, bytes]]] = []
        """Of every upload: volume -> file in it -> its content."""
        self._numbers = itertools.count(1)
        self.volumes = SimpleNamespace(create=lambda labels: SimpleNamespace(name=f"volume-{next(self._numbers)}"))
        self.containers = SimpleNamespace(create=self._create)

    def _create(self, image: str, *, mounts: list[Mount], labels: object, network_mode: str) -> SimpleNamespace:
        assert (image, labels, network_mode) == ("image", {}, "none")
        found: dict[str, dict[str, bytes]] = {str(mount["Source"]): {} for mount in mounts}

        def put_archive(folder: str, pieces: Iterable[bytes]) -> None:
            with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
                for member in filter(tarfile.TarInfo.isfile, archive):
                    place = Path(folder, member.name)
                    (mount,) = (mount for mount in mounts if place.is_relative_to(mount["Target"]))
                    content = archive.extractfile(member)
                    assert content is not None
                    found[mount["Source"]][place.relative_to(mount["Target"]).as_posix()] = content.read()
            self.filled.append(found)

        return SimpleNamespace(put_archive=put_archive, remove=lambda: None)


@pytest.mark.parametrize("is_here", [True, False])
def test_folders_of_a_device_are_neither_uploaded_nor_shared(is_here: bool, tmp_path: Path) -> None:
    """A device's source is bound where it lies; its own folder outlives a command, and nothing of it is copied."""
    client = Volumes()
    engine = SimpleNamespace(is_here=is_here, client=client, image_id="image", labels={})
    mounts = launcher.FolderMounts(engine)  # type: ignore[arg-type]
    source, own = Path("/data/reviews.csv"), tmp_path / "devices" / "x"
    command = Command(module="m", log=tmp_path / "log", device_reads=(source,), device_writes=(own,))
    first, second = (mounts.mounts(command) for _ in range(2))
    assert first == second, "later commands find the same folder"
    read, write = first
    assert (read["Type"], read["Source"], read["Target"], read["ReadOnly"]) == ("bind", str(source), str(source), True)
    assert (write["Target"], write["ReadOnly"]) == (str(own), False)
    assert (write["Type"], write["Source"]) == (("bind", str(own)) if is_here else ("volume", "volume-1"))
    assert client.filled == ([] if is_here else [{"volume-1": {}}])


def test_a_folder_that_has_changed_is_uploaded_again(tmp_path: Path) -> None:
    """Bug: a worker on another machine that was started again found the task of its first start, and never took part.

    What has not changed is uploaded once for all commands of a session.
    """
    client = Volumes()
    engine = SimpleNamespace(is_here=False, client=client, image_id="image", labels={})
    mounts = launcher.FolderMounts(engine)  # type: ignore[arg-type]
    own, model = tmp_path / "own", tmp_path / "model"
    for folder in (own, model):
        folder.mkdir()
        (folder / folder.name).write_text("first")
    command = Command(module="m", log=tmp_path / "log", reads=(own, model))
    sources = []
    for text in ("first", "second"):
        if text != "first":
            (own / "own").write_text(text)
        sources.append([mount["Source"] for mount in mounts.mounts(command)])
    assert sources == [["volume-1", "volume-2"], ["volume-3", "volume-2"]]
    assert client.filled == [
        {"volume-1": {"own": b"first"}, "volume-2": {"model": b"first"}},
        {"volume-3": {"own": b"second"}},
    ]


class ContainerOf:
    """A container whose engine answers `wait` with these: errors are raised, numbers are exit codes."""

    short_id = "c0ffee"
    attrs = {"State": {"OOMKilled": False}}

    def __init__(self, *answers: Exception | int) -> None:
        self._answers = list(answers)

    def wait(self) -> dict[str, int]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {"StatusCode": answer}

    def logs(self, **_: Any) -> Any:
        raise requests.ConnectionError

    def reload(self) -> None:
        pass

    stop = remove = lambda *_, **__: None


def job_of(tmp_path: Path, *answers: Exception | int) -> launcher.ContainerJob:
    """A job whose engine answers so."""
    return launcher.ContainerJob(ContainerOf(*answers), Command(module="m", log=tmp_path / "log"), None, None)


def test_an_engine_that_cannot_be_asked_is_not_a_dead_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: one broken connection to the engine, and the device counted as ended with exit code 255."""
    monkeypatch.setattr(launcher, "ENGINE_RETRY_S", 0.01)
    away = requests.ConnectionError("the engine restarts")
    assert job_of(tmp_path, away, away, 7).wait(20.0) == 7, "it is asked again"
    assert job_of(tmp_path, away, NotFound("no such container")).wait(20.0) == launcher.LOST_EXIT_CODE
    never = job_of(tmp_path, away)
    assert never.wait(0.1) is None
    assert never.stop(grace_s=0.0) == launcher.LOST_EXIT_CODE, "a job that is stopped asks no more"


@pytest.mark.parametrize(
    ("told", "share"),
    [
        ({"limit": 100, "usage": 98, "stats": {"inactive_file": 6, "active_file": 2, "total_cache": 9}}, 0.9),
        (
            {
                "limit": 100,
                "usage": 98,
                "stats": {"inactive_file": 1, "total_inactive_file": 6, "total_active_file": 2},
            },
            0.9,
        ),
        ({"limit": 100, "usage": 0}, 0.0),
        ({}, None),
    ],
)
def test_files_that_can_be_read_again_fill_no_memory(told: dict[str, Any], share: float | None) -> None:
    """Both versions of control groups count them as used; one that has ended tells nothing."""
    assert launcher.filled_share(told) == share


class Chunks(list[bytes]):
    """A followed log: these chunks, then silence until the container ends."""

    class _Response:
        close = staticmethod(lambda: None)

    def __init__(self, chunks: list[bytes], ended: threading.Event) -> None:
        super().__init__(chunks)
        self._ended, self._response = ended, self._Response

    def __iter__(self) -> Iterator[bytes]:
        yield from super().__iter__()
        self._ended.wait(PATIENCE_S)


class Paused(ContainerOf):
    """A container that has written this to stderr, and ends once it is let go on; out of reach it never does."""

    def __init__(self, *chunks: bytes, reached: bool = True) -> None:
        super().__init__(137)
        self._chunks, self._reached = list(chunks), reached
        self.ended = threading.Event()
        self.asked: list[str] = []

    def logs(self, *, stderr: bool, stream: bool = False, **_: Any) -> Any:
        chunks = self._chunks if stderr else []
        return Chunks(chunks, self.ended) if stream else b"".join(chunks)

    def wait(self) -> dict[str, int]:
        self.ended.wait(PATIENCE_S)
        return super().wait()

    def kill(self) -> None:
        self._ask("kill")
        raise requests.ConnectionError("a paused container is not killed")

    def unpause(self) -> None:
        self._ask("unpause")
        self.ended.set()

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if not self._reached:
            raise requests.ConnectionError("no route to host")


def watched(tmp_path: Path, container: Paused) -> launcher.ContainerJob:
    """A job of it that is given up soon."""
    return launcher.ContainerJob(container, Command(module="m", log=tmp_path / "log"), None, None, HASTY)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_container_that_shows_no_more_signs_of_life_is_ended(tmp_path: Path, size: int) -> None:
    """Its log has what it wrote and nothing of its marks, in whatever pieces both come; and an engine that kills
    nothing paused is told to let it go on, to its end."""
    said = b"one\0\n\0\ntwo: \0\n2\0, \n\0\nthree\n"
    container = Paused(*(said[k : k + size] for k in range(0, len(said), size)))
    job = watched(tmp_path, container)
    assert list(job.lines()) == []
    assert job.wait(PATIENCE_S) == SILENT_CODE == job.stop(0)
    assert container.asked == ["kill", "unpause"]
    assert (tmp_path / "log").read_bytes() == b"onetwo: 2\0, \nthree\n"


def test_a_container_whose_engine_is_gone_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a laptop that sleeps: nothing is heard of it, and it cannot be ended. Its output ends all the same."""
    monkeypatch.setattr(launcher, "AFTER_KILL_S", 0.1)
    container = Paused(b"\0\n", reached=False)
    job = watched(tmp_path, container)
    assert list(job.lines()) == []
    assert job.wait(PATIENCE_S) == SILENT_CODE
    container.ended.set()
