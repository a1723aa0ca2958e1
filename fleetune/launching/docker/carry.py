"""Folders on engines that cannot see this machine's: carried over into volumes, and what was written carried back.

A volume is filled through a container that is created for it and never started: nothing runs that is not wanted, and
nothing but the engine's own API is needed there. Its files are the images' user's, whoever owns them here.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException, NotFound
from docker.types import Mount
from requests.exceptions import RequestException

from fleetune.errors import TryAgain
from fleetune.launching.docker.archive import END, entries, folder_head, pack, unpack
from fleetune.launching.docker.trouble import why

__all__ = ["fetch", "put", "room"]

TROUBLE = (DockerException, RequestException)
PLACE = "carried"
ATTEMPTS = 3


def put(
    client: docker.DockerClient, image_id: str, folders: Sequence[Path], labels: Mapping[str, str]
) -> dict[Path, str]:
    """A volume with the content of each folder: folder -> name of its volume, to be mounted at the folder's own path.

    Modes become 0644 and 0755, the owner 10001; links are followed. Refused, before anything is made, for what is
    neither file nor folder; TryAgain when the engine fails. Then, as after any other exception, nothing is left.
    """
    wanted = tuple(dict.fromkeys(folders))
    found = {folder: entries(folder) for folder in wanted}

    def stream(place: Mapping[Path, str]) -> Iterator[bytes]:
        for folder in wanted:
            yield from pack(found[folder], place[folder])
        yield END

    return _filled(client, image_id, wanted, labels, stream) if wanted else {}


def room(client: docker.DockerClient, image_id: str, folder: Path, labels: Mapping[str, str]) -> str:
    """An empty volume that the images' user can write to, to be mounted at `folder`; its name."""

    def stream(place: Mapping[Path, str]) -> Iterator[bytes]:
        yield folder_head(place[folder])
        yield END

    return _filled(client, image_id, (folder,), labels, stream)[folder]


def fetch(container: Any, folder: Path) -> None:
    """What is in `folder` inside a container, written over `folder` here; while it runs as well as after its end.

    A file appears here whole or not at all; what is here only stays. Refused for links, devices, and more than any
    device would write; TryAgain when the container or the folder is gone, or its files change faster than they are
    fetched.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with closing(_pieces(container, folder)) as pieces:
                unpack(pieces, folder)
            return
        except TryAgain:  # the engine ends its stream where a file has changed under it
            if attempt == ATTEMPTS:
                raise


def _pieces(container: Any, folder: Path) -> Generator[bytes, None, None]:
    try:
        stream, _ = container.get_archive(str(folder))
        yield from stream
    except NotFound:
        raise TryAgain(f"{folder} cannot be fetched: it, or the container that wrote it, is gone") from None
    except TROUBLE as error:
        raise TryAgain(f"{folder} could not be fetched from its container ({why(error)})") from None


def _filled(
    client: docker.DockerClient,
    image_id: str,
    folders: Sequence[Path],
    labels: Mapping[str, str],
    stream: Any,
) -> dict[Path, str]:
    made: list[Any] = []
    try:
        volumes = {}
        for folder in folders:
            made.append(client.volumes.create(labels=dict(labels)))
            volumes[folder] = str(made[-1].name)
        places = {folder: f"{PLACE}/{number}" for number, folder in enumerate(folders)}
        mounts = [Mount(target=f"/{places[folder]}", source=volumes[folder], type="volume") for folder in folders]
        carrier = client.containers.create(image_id, mounts=mounts, labels=dict(labels), network_mode="none")
        made.append(carrier)
        # Put at the root, because an engine leaves mode and owner of the folder that it puts into alone.
        carrier.put_archive("/", stream(places))
        carrier.remove()
        made.pop()
        return volumes
    except BaseException as error:
        _remove(reversed(made))
        if isinstance(error, TROUBLE):
            names = ", ".join(map(str, folders))
            raise TryAgain(f"{names} could not be carried to the engine ({why(error)})") from None
        raise


def _remove(made: Iterable[Any]) -> None:
    """Containers before the volumes they hold; an engine that has gone keeps what it has."""
    for each in made:
        with suppress(*TROUBLE):
            each.remove(force=True)
