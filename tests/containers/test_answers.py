"""Where engines are looked for, and what they say."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from containers import answers


def test_sockets() -> None:
    """DOCKER_HOST wins; without it the usual place comes before ours; another machine is nowhere here."""
    assert answers.sockets({}) == (answers.USUAL, answers.OURS)
    assert answers.sockets({"DOCKER_HOST": "unix:///somewhere"}) == ("/somewhere",)
    assert answers.sockets({"DOCKER_HOST": "tcp://192.0.2.1:2376"}) == ()


def test_no_answer(tmp_path: Path) -> None:
    """A place without an engine is named, with why nothing answers there."""
    with pytest.raises(answers.NoAnswer, match=r"nothing \(No such file"):
        answers.find({"DOCKER_HOST": f"unix://{tmp_path}/nothing"})
    with pytest.raises(answers.NoAnswer, match="another machine"):
        answers.find({"DOCKER_HOST": "ssh://192.0.2.1"})


@contextmanager
def _engine(place: Path, answer: bytes) -> Iterator[Callable[[], bytes]]:
    """An engine that gives one answer to whatever it is asked first; what gives the question."""
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
    """Images are told by each of their names, with their labels; those without a name are not."""
    said = [
        {"RepoTags": ["one:latest", "uno:2"], "Labels": {"key": "value"}},
        {"RepoTags": None, "Labels": {"key": "other"}},
        {"RepoTags": ["bare:1"], "Labels": None},
    ]
    with _engine(tmp_path / "s", json.dumps(said).encode()) as question:
        found = answers.images(str(tmp_path / "s"))
    assert found == {"one:latest": {"key": "value"}, "uno:2": {"key": "value"}, "bare:1": {}}
    assert question().startswith(b"GET /images/json ")


def test_nonsense(tmp_path: Path) -> None:
    """Whatever answers, but not as an engine does, is no engine."""
    for number, nonsense in enumerate((b"[1]", b"{", b'{"message": "no"}')):
        place = tmp_path / str(number)
        with _engine(place, nonsense), pytest.raises(answers.NoAnswer, match=str(place)):
            answers.images(str(place))
