"""Volumes and containers made to transfer folders, none of which is left after a failure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, NotFound
from requests.exceptions import ConnectionError as Gone

from fleetune.errors import Refused, TryAgain
from fleetune.launching.docker import folder_transfer

LABELS = {"fleetune.run": "r1"}


class Thing:
    """A volume or a container of the fake engine."""

    def __init__(self, engine: "FakeEngine", name: str, settings: dict[str, Any]) -> None:
        self.name, self.settings, self._engine = name, settings, engine
        engine.things.append(self)

    def put_archive(self, path: str, data: Iterator[bytes]) -> None:
        """Read the data, or fail at this step."""
        self._engine.steps("put")
        self._engine.received = b"".join(data)

    def remove(self, force: bool = False) -> None:
        """Remove it; a volume only when no container uses it."""
        assert self.settings.get("mounts") or not any(thing.settings.get("mounts") for thing in self._engine.things)
        if not force:
            self._engine.steps("remove")
        self._engine.things.remove(self)


class FakeEngine:
    """An engine that keeps its things in a list, and fails at a chosen step."""

    def __init__(self, fails_at: str = "", error: BaseException | None = None) -> None:
        self.things: list[Thing] = []
        self.received = b""
        self._fails_at, self._error = fails_at, error
        self.volumes = self.containers = self

    def steps(self, name: str) -> None:
        """Raise the error at the chosen step."""
        if name == self._fails_at and self._error:
            raise self._error

    def create(self, *arguments: Any, **settings: Any) -> Thing:
        """Create a volume, or a container where an image is given."""
        self.steps("container" if arguments else f"volume {len(self.things)}")
        return Thing(self, f"t{len(self.things)}", settings)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two folders with one file each."""
    made = [tmp_path / "a", tmp_path / "b"]
    for folder in made:
        folder.mkdir()
        (folder / "f").write_text(folder.name)
    return made


def test_each_folder_gets_a_volume(folders: list[Path]) -> None:
    """Each distinct folder gets one labelled volume, and the container that filled them is removed."""
    engine = FakeEngine()
    assert folder_transfer.upload_folders(engine, "image", [*folders, folders[0]], LABELS) == dict(
        zip(folders, ("t0", "t1"), strict=True)
    )
    assert [thing.settings for thing in engine.things] == [{"labels": LABELS}] * 2
    assert folder_transfer.upload_folders(engine, "image", [], LABELS) == {}
    assert len(engine.things) == 2


@pytest.mark.parametrize("step", ["volume 1", "container", "put", "remove"])
@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (APIError("500", explanation="no space\n left"), TryAgain),
        (Gone("cut"), TryAgain),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_failure_leaves_nothing(
    folders: list[Path], step: str, error: BaseException, seen: type[BaseException]
) -> None:
    """A failure or an interrupt at any step leaves neither a volume nor a container."""
    engine = FakeEngine(step, error)
    with pytest.raises(seen) as caught:
        folder_transfer.upload_folders(engine, "image", folders, LABELS)
    assert engine.things == []
    if seen is TryAgain:
        assert str(caught.value).startswith(f"{folders[0]}, {folders[1]} could not be copied to the engine (")


def test_refused_before_anything_is_made(folders: list[Path]) -> None:
    """A folder that cannot be transferred is refused before the first request to the engine."""
    (folders[1] / "broken").symlink_to("nowhere")
    engine = FakeEngine("volume 0", AssertionError("asked"))
    with pytest.raises(Refused, match="broken"):
        folder_transfer.upload_folders(engine, "image", folders, LABELS)


class Container:
    """A container that gives one prepared answer per request."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def get_archive(self, path: str) -> tuple[Iterator[bytes], dict[str, Any]]:
        """The next answer."""
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return iter(answer), {}


@pytest.mark.parametrize(
    ("error", "why"),
    [(NotFound("404"), "it, or the container that wrote it, is gone"), (Gone("cut"), r"could not be fetched.*\(cut\)")],
)
def test_nothing_to_fetch(tmp_path: Path, error: BaseException, why: str) -> None:
    """The error distinguishes a missing container from a lost engine."""
    with pytest.raises(TryAgain, match=f"{tmp_path} .*{why}"):
        folder_transfer.fetch_folder(Container(*[error] * folder_transfer.FETCH_ATTEMPTS), tmp_path, tmp_path)


def test_files_that_change_are_fetched_again(tmp_path: Path, folders: list[Path]) -> None:
    """A stream that ends too soon is requested again, up to FETCH_ATTEMPTS times."""
    whole = [*folder_transfer.pack(folder_transfer.list_entries(folders[0]), "a"), folder_transfer.END]
    container = Container(whole[:2], whole)
    folder_transfer.fetch_folder(container, tmp_path / "t", tmp_path / "t")
    assert (tmp_path / "t" / "f").read_text() == "a"
    with pytest.raises(TryAgain, match="was cut off or damaged"):
        folder_transfer.fetch_folder(
            Container(*[whole[:2]] * folder_transfer.FETCH_ATTEMPTS), tmp_path / "t", tmp_path / "t"
        )
