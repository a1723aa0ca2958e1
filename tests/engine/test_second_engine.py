"""A second engine over mutual TLS, as another machine's: who may use it, and what can be reached from where."""

import gc
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import docker
import pytest

from fleetune.contracts.fleet import Engine
from fleetune.errors import Refused, TryAgain
from fleetune.launching.docker.engine_client import connect, describe_engine, find_image
from tests.support.engine.certificates import Authority
from tests.support.engine.second_engine import IMAGE, Second

LABELS = {"fleetune.test": "1"}
PATIENCE_S = 60
SERVES = """
import socket
with socket.create_server(("0.0.0.0", 5000)) as server:
    print("ready", flush=True)
    while True:
        with server.accept()[0] as line:
            line.sendall(b"served")
"""
ASKS = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as line:
    print(line.recv(20).decode(), flush=True)
"""


@pytest.fixture(autouse=True)
def nothing_open() -> Iterator[None]:
    """Sockets that are left open warn when they are collected."""
    yield
    gc.collect()


@pytest.fixture
def clients(second: Second) -> Iterator[dict[str, docker.DockerClient]]:
    """Both engines."""
    with closing(connect(None)) as first, closing(second.client()) as other:
        yield {"first": first, "second": other}


def with_files(second: Second, folder: Path) -> Engine:
    """The same engine, shown other certificates."""
    return Engine(name="second", address=second.engine.address, tls=str(folder))


def test_the_right_certificate(clients: dict[str, docker.DockerClient], second: Second) -> None:
    """It answers whoever its CA has signed, is another engine than the first, and has the image that was copied."""
    roots = {name: client.info()["DockerRootDir"] for name, client in clients.items()}
    assert roots["second"] == str(second.folder / "data") != roots["first"]
    facts = describe_engine(clients["second"])
    assert facts.cores >= 1 and facts.memory_bytes > 1e8 and "runc" in facts.runtimes
    images = {find_image(client, name, IMAGE).id for name, client in clients.items()}
    assert len(images) == 1


def test_no_such_image(clients: dict[str, docker.DockerClient]) -> None:
    """An image that only the other engine may have is refused with what this one has."""
    with pytest.raises(Refused, match=rf"engine second has no image fleetune-nothing; it has .*{IMAGE}"):
        find_image(clients["second"], "second", "fleetune-nothing")


def test_a_wrong_certificate(second: Second, tmp_path: Path) -> None:
    """A client of another CA is refused by the engine, and one for servers as well; the sentence names the file."""
    stranger = Authority().issue(tmp_path / "stranger")
    shutil.copy(Path(second.engine.tls or "") / "ca.pem", stranger / "ca.pem")
    with pytest.raises(Refused, match=rf"does not accept {stranger}/cert.pem \(.*(bad certificate|unknown ca).*\)"):
        connect(with_files(second, stranger))
    server = second.authority.issue(tmp_path / "server", addresses=("127.0.0.1",))
    with pytest.raises(Refused, match=rf"does not accept {server}/cert.pem"):
        connect(with_files(second, server))


def test_an_engine_of_another_ca(second: Second, tmp_path: Path) -> None:
    """An engine that our CA has not signed is not spoken to."""
    stranger = Authority().issue(tmp_path / "stranger")
    with pytest.raises(Refused, match=rf"its certificate is not accepted by {stranger}/ca.pem"):
        connect(with_files(second, stranger))


def test_no_certificate(second: Second, tmp_path: Path) -> None:
    """Without a certificate there is no connection: not by us, nor by whoever else tries."""
    with pytest.raises(Refused, match=rf"{tmp_path}/ca.pem cannot be read"):
        connect(with_files(second, tmp_path))
    bare = ["docker", "--host", second.engine.address, "--tls", "version"]
    said = subprocess.run(bare, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert said.returncode != 0 and "ApiVersion" not in said.stdout


def test_nobody_there(second: Second) -> None:
    """A port that nobody listens on is named, and may be tried again."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TryAgain, match=rf"engine second \({address}\) does not answer \(Connection refused\)"):
            connect(Engine(name="second", address=address, tls=second.engine.tls))


@pytest.fixture
def run(clients: dict[str, docker.DockerClient]) -> Iterator[Callable[..., Any]]:
    """Start a script in a container of a network of its own on either engine; removed at the end."""
    with ExitStack() as stack:
        networks = {}
        for name, client in clients.items():
            networks[name] = client.networks.create("fleetune-test-meeting", driver="bridge", labels=LABELS)
            stack.callback(networks[name].remove)

        def start(engine: str, *words: str, **settings: Any) -> Any:
            made = clients[engine].containers.create(
                IMAGE, ["-c", *words], network=networks[engine].id, labels=LABELS, **settings
            )
            stack.callback(made.remove, force=True)
            made.start()
            return made

        yield start


@pytest.fixture
def here(second: Second) -> Iterator[int]:
    """This process serves at `reach`; the port."""
    with socket.create_server((second.reach, 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as line:
                        line.sendall(b"served")

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_where_everything_meets(run: Callable[..., Any], here: int, second: Second) -> None:
    """At `reach`, ports that either engine publishes and this process's are reached from both engines and from here."""
    ports = {"here": here}
    for engine in ("first", "second"):
        container = run(engine, SERVES, ports={"5000/tcp": (second.reach, None)})
        said = container.logs(stream=True, follow=True)
        assert next(said).startswith(b"ready")
        # private: docker-py has no other name for the response
        said._response.close()  # its own close leaves the socket to be collected
        container.reload()
        ports[engine] = int(container.ports["5000/tcp"][0]["HostPort"])
    for port in ports.values():
        with socket.create_connection((second.reach, port), PATIENCE_S) as line:
            assert line.recv(20) == b"served"
    asking = [run(engine, ASKS, second.reach, str(port)) for engine in ("first", "second") for port in ports.values()]
    assert [each.wait(timeout=PATIENCE_S)["StatusCode"] for each in asking] == [0] * len(asking)
    assert {each.logs() for each in asking} == {b"served\n"}


def test_the_first_engine_is_left_alone(clients: dict[str, docker.DockerClient]) -> None:
    """Its own bridge is still there, and no rule of the firewall speaks of the second one's networks."""
    options = clients["first"].networks.get("bridge").attrs["Options"]
    assert Path("/sys/class/net", options["com.docker.network.bridge.name"]).exists()
    with suppress(FileNotFoundError):
        for table in ("filter", "nat"):
            rules = subprocess.run(["iptables", "-t", table, "-S"], capture_output=True, text=True, check=True).stdout
            assert " -s 10.219." not in rules
