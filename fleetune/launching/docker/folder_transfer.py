"""Transfer of folders to and from engines that cannot see this machine's folders, through volumes.

A volume is filled through a container that is created but never started: nothing runs, and only the engine's own API is
needed. The files belong to the images' user, whoever owns them here.
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
from fleetune.launching.docker.engine_client import describe_error
from fleetune.launching.docker.tar_archive import END, folder_header, list_entries, pack, unpack

__all__ = ["empty_volume", "fetch_folder", "upload_folders"]

TRANSFER_ERRORS = (DockerException, RequestException)
MOUNT_FOLDER = "carried"
FETCH_ATTEMPTS = 3


def upload_folders(
    client: docker.DockerClient, image_id: str, folders: Sequence[Path], labels: Mapping[str, str]
) -> dict[Path, str]:
    """Copy each folder into a new volume: folder -> name of its volume, to be mounted at the folder's own path.

    Modes become 0644 and 0755, the owner 10001; links are followed. Refused, before anything is made, for what is
    neither file nor folder; TryAgain when the engine fails. After any exception no volume is left.
    """
    wanted = tuple(dict.fromkeys(folders))
    entries = {folder: list_entries(folder) for folder in wanted}

    def stream(targets: Mapping[Path, str]) -> Iterator[bytes]:
        for folder in wanted:
            yield from pack(entries[folder], targets[folder])
        yield END

    return _fill_volumes(client, image_id, wanted, labels, stream) if wanted else {}


def empty_volume(client: docker.DockerClient, image_id: str, folder: Path, labels: Mapping[str, str]) -> str:
    """Name of a new, empty volume that the images' user can write to, to be mounted at `folder`."""

    def stream(targets: Mapping[Path, str]) -> Iterator[bytes]:
        yield folder_header(targets[folder])
        yield END

    return _fill_volumes(client, image_id, (folder,), labels, stream)[folder]


def fetch_folder(container: Any, folder: Path, into: Path) -> None:
    """Copy `folder` inside a running or stopped container over the folder `into` here.

    A file appears here whole or not at all; files that only exist here stay. Refused for links, devices, and contents
    beyond any plausible size; TryAgain when the container or the folder is gone, or its files change faster than they
    are fetched.
    """
    for attempt in range(1, FETCH_ATTEMPTS + 1):
        try:
            with closing(_pieces(container, folder)) as pieces:
                unpack(pieces, into)
            return
        except TryAgain:  # the engine cuts its stream where a file changes while it is read
            if attempt == FETCH_ATTEMPTS:
                raise


def _pieces(container: Any, folder: Path) -> Generator[bytes, None, None]:
    try:
        stream, _ = container.get_archive(str(folder))
        yield from stream
    except NotFound:
        raise TryAgain(f"{folder} cannot be fetched: it, or the container that wrote it, is gone") from None
    except TRANSFER_ERRORS as error:
        raise TryAgain(f"{folder} could not be fetched from its container ({describe_error(error)})") from None


def _fill_volumes(
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
        targets = {folder: f"{MOUNT_FOLDER}/{number}" for number, folder in enumerate(folders)}
        mounts = [Mount(target=f"/{targets[folder]}", source=volumes[folder], type="volume") for folder in folders]
        carrier = client.containers.create(image_id, mounts=mounts, labels=dict(labels), network_mode="none")
        made.append(carrier)
        # Put at the root, because an engine keeps mode and owner of the folder that it puts into.
        carrier.put_archive("/", stream(targets))
        carrier.remove()
        made.pop()
        return volumes
    except BaseException as error:
        _remove(reversed(made))
        if isinstance(error, TRANSFER_ERRORS):
            names = ", ".join(map(str, folders))
            raise TryAgain(f"{names} could not be copied to the engine ({describe_error(error)})") from None
        raise


def _remove(made: Iterable[Any]) -> None:
    """Remove what was made, ignoring an engine that is gone; containers come before the volumes they hold."""
    for each in made:
        with suppress(*TRANSFER_ERRORS):
            each.remove(force=True)
