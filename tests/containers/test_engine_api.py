"""Finding an engine on this machine, and reading its images."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from containers import engine_api


def test_sockets() -> None:
    """DOCKER_HOST wins; without it the default socket comes before Fleetune's; another machine has no socket here."""
    assert engine_api.candidate_sockets({}) == (engine_api.DEFAULT_SOCKET, engine_api.FLEETUNE_SOCKET)
    assert engine_api.candidate_sockets({"DOCKER_HOST": "unix:///somewhere"}) == ("/somewhere",)
    assert engine_api.candidate_sockets({"DOCKER_HOST": "tcp://192.0.2.1:2376"}) == ()


def test_no_answer(tmp_path: Path) -> None:
    """A socket without an engine is reported with the reason."""
    with pytest.raises(engine_api.EngineUnavailable, match=r"nothing \(No such file"):
        engine_api.find_engine({"DOCKER_HOST": f"unix://{tmp_path}/nothing"})
    with pytest.raises(engine_api.EngineUnavailable, match="another machine"):
        engine_api.find_engine({"DOCKER_HOST": "ssh://192.0.2.1"})


@contextmanager
def _engine(place: Path, answer: bytes) -> Iterator[Callable[[], bytes]]:
    """An engine that gives one answer to its first request; yields a function that returns the request."""
    heard: list[bytes] = []

    def serve() -> None:
        line, _ = server.accept()
        with line:
            heard.append(line.recv(4096))
            line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))

    with socket.create_server(str(place), family=socket.AF_UNIX) as server:
        server.settimeout(5)
        served = threading.Thread(target=serve)
        served.start()
        yield lambda: heard[0]
        served.join()


def test_images(tmp_path: Path) -> None:
    """Every name of an image maps to its labels, and images without a name are left out."""
    said = [
        {"RepoTags": ["one:latest", "uno:2"], "Labels": {"key": "value"}},
        {"RepoTags": None, "Labels": {"key": "other"}},
        {"RepoTags": ["bare:1"], "Labels": None},
    ]
    with _engine(tmp_path / "s", json.dumps(said).encode()) as question:
        found = engine_api.image_labels(str(tmp_path / "s"))
    assert found == {"one:latest": {"key": "value"}, "uno:2": {"key": "value"}, "bare:1": {}}
    assert question().startswith(b"GET /images/json ")


def test_an_invalid_answer(tmp_path: Path) -> None:
    """An answer that is not an engine's raises EngineUnavailable."""
    for number, nonsense in enumerate((b"[1]", b"{", b'{"message": "no"}')):
        place = tmp_path / str(number)
        with _engine(place, nonsense), pytest.raises(engine_api.EngineUnavailable, match=str(place)):
            engine_api.image_labels(str(place))
