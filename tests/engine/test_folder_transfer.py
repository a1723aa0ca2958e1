"""Folders carried to engines that cannot see them, and back, over every kind of connection."""

import gc
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.types import Mount

from containers import engine_api
from fleetune.contracts.fleet import Engine
from fleetune.errors import Refused, TryAgain
from fleetune.launching.docker import folder_transfer
from fleetune.launching.docker.engine_client import connect, find_image
from tests.support.engine.second_engine import IMAGE

LABELS = {"fleetune.test": secrets.token_hex(4)}
PATIENCE_S = 60
READS_AND_WRITES = """
import os, sys
source, target = sys.argv[1:]
for folder, _, files in os.walk(source):
    for name in files:
        path = os.path.join(folder, name)
        there = os.path.join(target, os.path.relpath(path, source))
        os.makedirs(os.path.dirname(there), exist_ok=True)
        with open(path, "rb") as file, open(there, "wb") as copy:
            copy.write(file.read()[::-1])
print("written", os.getuid(), flush=True)
try:
    open(os.path.join(source, "new"), "w")
except OSError as error:
    print(error.strerror, flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["tls", "ssh"])
def client(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[docker.DockerClient]:
    """The second engine over TLS, and the first one over ssh: a true one would start the same command there."""
    if request.param == "ssh":
        program = tmp_path / "bin" / "ssh"
        program.parent.mkdir()
        program.write_text(
            "#!/bin/sh\nfor last; do :; done\n"
            f"export DOCKER_HOST=unix://{engine_api.find_engine().socket}\nexec $last\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        engine = Engine(name="pi", address="ssh://me@pi")
    else:
        engine = request.getfixturevalue("second").engine
    with closing(connect(engine)) as made:
        yield made
        assert left(made) == []
    gc.collect()  # whatever is still open warns here


def left(client: docker.DockerClient) -> list[str]:
    """What these tests have made on an engine, and not removed."""
    ours = {"label": "{}={}".format(*next(iter(LABELS.items())))}
    containers = client.containers.list(all=True, filters=ours, ignore_removed=True)
    return [thing.id for thing in (*containers, *client.volumes.list(filters=ours))]


def say(container: Any, line: bytes) -> None:
    """Write a line to its stdin, which is for one visitor and is closed when that goes: the response goes first, since
    it holds a TLS connection open."""
    visitor = container.attach_socket(params={"stdin": 1, "stream": 1})
    getattr(visitor, "_sock", visitor).sendall(line)
    visitor._response.close()  # private: docker-py offers no other way to close the response of a visitor
    visitor.close()


def test_there_and_back(client: docker.DockerClient, tmp_path: Path) -> None:
    """A container reads what was carried, cannot change it, and what it writes is fetched while it runs and after."""
    source, target = tmp_path / "in", tmp_path / "out"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "big").write_bytes(content := os.urandom(3_000_000))
    (source / "small").write_bytes(b"abc")
    image = find_image(client, "it", IMAGE)
    with ExitStack() as stack:
        volumes = folder_transfer.upload_folders(client, image.id, [source], LABELS)
        volumes[target] = folder_transfer.empty_volume(client, image.id, target, LABELS)
        for name in volumes.values():
            stack.callback(client.volumes.get(name).remove)
        container = client.containers.create(
            image.id,
            ["-c", READS_AND_WRITES, str(source), str(target)],
            mounts=[Mount(str(path), name, "volume", read_only=path == source) for path, name in volumes.items()],
            labels=LABELS,
            **{"read_only": True, "cap_drop": ["ALL"], "network_mode": "none", "stdin_open": True},
        )
        stack.callback(container.remove, force=True)
        container.start()
        said = container.logs(stream=True, follow=True)
        assert next(said).startswith(b"written 10001")
        folder_transfer.fetch_folder(container, target, target)
        assert (target / "deep" / "big").read_bytes() == content[::-1]
        (target / "small").unlink()
        say(container, b"go\n")
        assert container.wait(timeout=PATIENCE_S)["StatusCode"] == 0
        assert b"Read-only file system" in b"".join(said)
        folder_transfer.fetch_folder(container, target, target)
        assert (target / "small").read_bytes() == b"cba"
    with pytest.raises(TryAgain, match=f"{target} cannot be fetched: it, or the container that wrote it, is gone"):
        folder_transfer.fetch_folder(container, target, target)


def test_no_such_image(client: docker.DockerClient, tmp_path: Path) -> None:
    """Where the engine cannot make the container that carries, no volume is left either."""
    with pytest.raises(TryAgain, match=f"{tmp_path} could not be copied to the engine .*nothing"):
        folder_transfer.upload_folders(client, "fleetune-nothing", [tmp_path], LABELS)


def test_a_file_that_goes(client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that changes while it is carried is named as such, and leaves nothing."""
    source = tmp_path / "in"
    source.mkdir()
    (source / "f").write_text("f")
    found = folder_transfer.list_entries(source)
    (source / "f").unlink()
    # replaced: the file goes between the listing of its folder and the copying
    monkeypatch.setattr(folder_transfer, "list_entries", lambda folder: found)
    with pytest.raises(TryAgain, match=f"{source}/f could not be read while it was copied"):
        folder_transfer.upload_folders(client, find_image(client, "it", IMAGE).id, [source], LABELS)


def test_a_device_is_not_fetched(client: docker.DockerClient, tmp_path: Path) -> None:
    """What is no file or folder stays where it is, and the connection with it."""
    target = tmp_path / "out"
    container = client.containers.create(
        find_image(client, "it", IMAGE).id,
        ["-c", f"import os; os.makedirs('{target}'); os.mkfifo('{target}/pipe')"],
        labels=LABELS,
        user="0",
        network_mode="none",
    )
    try:
        container.start()
        container.wait(timeout=PATIENCE_S)
        with pytest.raises(Refused, match="out/pipe', which is no file or folder"):
            folder_transfer.fetch_folder(container, target, target)
    finally:
        container.remove(force=True)
