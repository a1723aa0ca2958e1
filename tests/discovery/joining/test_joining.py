"""Joining of devices with a host, end to end."""

import socket
import stat
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker
import pytest
import requests
from docker.tls import TLSConfig

from fleetune.contracts import json_io
from fleetune.contracts.fleet_request import Join
from fleetune.discovery.joining import JoinedDevice, collect_devices
from fleetune.discovery.joining.credentials import derive_keys, issue_credentials, read_token
from fleetune.discovery.joining.device_side import ADMISSION_TIMEOUT_S, JoinOptions, serve
from fleetune.discovery.joining.introduction import DEVICE, HOST, JOIN_RUN, EngineReport, Introduction
from fleetune.errors import Refused
from fleetune.links.authentication import new_key_pair
from fleetune.links.endpoint import Endpoint
from fleetune.links.message import Message
from tests.support.discovery.joining.both_sides import PATIENCE_S, Devices, host, token_file


def asked_for_info(device: JoinedDevice) -> dict[str, object]:
    """Answer of the engine to a docker client that uses only the credentials of the device."""
    folder = device.engine.tls
    tls = TLSConfig(client_cert=(f"{folder}/cert.pem", f"{folder}/key.pem"), ca_cert=f"{folder}/ca.pem", verify=True)
    client = docker.DockerClient(base_url=device.engine.address, version="1.41", tls=tls)
    try:
        return dict(client.info())
    finally:
        client.close()


@pytest.fixture(autouse=True)
def no_other_authority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove environment variables that would replace the certificate authority."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("first", ["device", "host"])
def test_a_device_with_the_token_joins(first: str, devices: Devices, token: Path, tmp_path: Path) -> None:
    """Host and device find each other by mDNS in either order, and a docker client can use the engine."""
    if first == "device":
        said = devices.start()
        said.wait("is open at port")
    with host(token, tmp_path / "kept") as listening:
        said = said if first == "device" else devices.start()
        listening.said.wait("device nano-1 has joined: engine 9.9")
        said.wait("this device has joined its fleet")
        (joined,) = listening.end()
    assert (joined.name, joined.facts.cores, joined.facts.memory_bytes) == ("nano-1", 3, 4_000_000_000)
    assert joined.facts.runtimes == ("nvidia", "runc")
    assert joined.engine.address.startswith("tcp://127.0.0.1:") and joined.engine.host == "127.0.0.1"
    assert asked_for_info(joined)["ServerVersion"] == "9.9"
    said.wait("no longer listens")


def test_what_is_handed_out_is_kept_from_others(devices: Devices, token: Path, tmp_path: Path) -> None:
    """Only the owner can read the stored credentials."""
    with host(token, tmp_path / "kept") as listening:
        devices.start(host_port=listening.port)
        listening.said.wait("has joined")
        (joined,) = listening.end()
    folder = Path(joined.engine.tls or "")
    assert folder == tmp_path / "kept" / "nano-1" and stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {
        "ca.pem": 0o600,
        "cert.pem": 0o600,
        "key.pem": 0o600,
    }


def test_a_client_without_the_credentials_is_refused(devices: Devices, token: Path, tmp_path: Path) -> None:
    """A client without credentials, or with those of another device, is refused."""
    with host(token, tmp_path / "kept") as listening:
        devices.start(name="a", host_port=listening.port)
        listening.said.wait("device a has joined")
        devices.start(name="b", host_port=listening.port)
        listening.said.wait("device b has joined")
        a, b = listening.end()
    url = a.engine.address.replace("tcp", "https") + "/info"
    assert (
        requests.get(url, verify=f"{a.engine.tls}/ca.pem", cert=certificate_and_key(a), timeout=10).status_code == 200
    )
    for cert in (None, certificate_and_key(b)):
        with pytest.raises((requests.exceptions.SSLError, requests.exceptions.ConnectionError)):
            requests.get(url, verify=f"{a.engine.tls}/ca.pem", cert=cert, timeout=10)
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(url, verify=f"{b.engine.tls}/ca.pem", cert=certificate_and_key(a), timeout=10)


def certificate_and_key(device: JoinedDevice) -> tuple[str, str]:
    """Certificate and key files in the form that requests expects."""
    return f"{device.engine.tls}/cert.pem", f"{device.engine.tls}/key.pem"


def test_a_device_with_another_token_is_refused(devices: Devices, token: Path, tmp_path: Path) -> None:
    """A wrong token is reported by both sides and logged, and a device with the right token still joins."""
    other = token_file(tmp_path, "another horse, another battery")
    with host(token, tmp_path / "kept") as listening:
        stranger = devices.start(
            name="eve", token=other, host_port=listening.port, clock=lambda: time.monotonic() * 2 * ADMISSION_TIMEOUT_S
        )
        assert "127.0.0.1 may not join: turned away: its token is another" in listening.said.wait("may not join")
        stranger.wait(f"host 127.0.0.1:{listening.port} does not admit this device: is its token another?")
        devices.start(host_port=listening.port)
        listening.said.wait("device nano-1 has joined")
        assert [device.name for device in listening.end()] == ["nano-1"]
    (line,) = (tmp_path / "kept" / "refused.log").read_text().splitlines()
    assert line.startswith("2026-01-02T00:00:00+00:00 127.0.0.1 may not join: turned away")


@pytest.mark.parametrize("kind", ["knows the host's key", "does not speak as a device", "says nothing more"])
def test_a_stranger_is_written_down(kind: str, devices: Devices, token: Path, tmp_path: Path) -> None:
    """Every kind of unauthenticated client is logged by its address; devices that join are not."""
    keys = derive_keys(read_token(token))
    words = {"does not speak as a device": b"GET / HTTP/1.1\r\n\r\n" * 10, "says nothing more": b"\xff"}
    with host(token, tmp_path / "kept") as listening:
        devices.start(host_port=listening.port)
        listening.said.wait("device nano-1 has joined")
        if kind in words:
            with socket.create_connection(("127.0.0.1", listening.port)) as line:
                line.sendall(words[kind])
                listening.said.wait("127.0.0.1 may not join")
        else:
            other = new_key_pair()
            with Endpoint(DEVICE, other, {HOST: keys.host.public}, run=JOIN_RUN, note=lambda _: None) as stranger:
                stranger.connect(HOST, f"tcp://127.0.0.1:{listening.port}", keys.host.public)
                listening.said.wait("127.0.0.1 may not join")
        assert len(listening.end()) == 1
    assert len((tmp_path / "kept" / "refused.log").read_text().splitlines()) == 1


def test_no_refusal_is_written_where_there_was_none(devices: Devices, token: Path, tmp_path: Path) -> None:
    """Devices that join and leave while the host listens are not logged as refusals."""

    def patient() -> float:
        return time.monotonic() / 10  # a device that gives up hangs up

    with host(token, tmp_path / "kept") as listening:
        for name in ("a", "b"):
            devices.start(name, host_port=listening.port, clock=patient).wait("has joined its fleet")
            devices.end()
        assert len(listening.end()) == 2
    assert not (tmp_path / "kept" / "refused.log").exists()


def test_two_devices_of_one_name(devices: Devices, token: Path, tmp_path: Path) -> None:
    """Two devices of one name end the host with both addresses, and the second device is told why."""
    with host(token, tmp_path / "kept") as listening:
        devices.start(host_port=listening.port)
        first = listening.said.wait("has joined").rpartition(" ")[2]
        second = devices.start(host_port=listening.port)
        with pytest.raises(Refused, match=f"two devices join as 'nano-1', at {first} and at tcp://127.0.0.1:"):
            listening.outcome()
    second.wait("refuses this device: two devices join as 'nano-1'")


def test_a_device_that_was_started_again(devices: Devices, token: Path, tmp_path: Path) -> None:
    """The port and credentials of a restarted device replace the old ones."""
    with host(token, tmp_path / "kept") as listening:
        devices.start(host_port=listening.port)
        first = listening.said.wait("has joined").rpartition(" ")[2]
        devices.end()
        again = devices.start(host_port=listening.port)
        again.wait("has joined its fleet")
        (joined,) = listening.end()
    assert joined.engine.address != first
    assert asked_for_info(joined)["NCPU"] == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "../../etc"}, "'../../etc' is not a name"),
        ({"name": "refused.log"}, "not refused.log"),
        ({"name": "x" * 65}, "at most 64 characters"),
        ({"name": "local"}, "choose another"),
        ({"address": "unix:///run/engine"}, "tls is for tcp:// addresses"),
        ({"key": "x" * (1 << 15)}, "key has 32768 characters"),
        ({"answer_to": "ipc:///tmp/x"}, "write tcp://ADDRESS:PORT"),
        ({"answer_to": "tcp://"}, "write tcp://ADDRESS:PORT"),
        ({"answer_to": "tcp://127.0.0.1"}, "write tcp://ADDRESS:PORT"),
        ({"answer_to": "tcp://127.0.0.1:99999"}, "write tcp://ADDRESS:PORT"),
        ({"answer_to": "tcp://127.0.0.1:9;127.0.0.1:8"}, "write tcp://ADDRESS:PORT"),
        ({"answer_to": "tcp://somewhere.invalid:9"}, "write tcp://ADDRESS:PORT"),
        ({"address": "tcp://somewhere.invalid:9"}, "write tcp://ADDRESS:PORT"),
        ({"name": "coordinator"}, "choose another"),
        ({"facts": {"version": "9.9", "cores": 0, "memory_bytes": 1}}, "cores must be a number above 0"),
        ({"odd": 1}, "odd: unknown key"),
        ({}, "device a: its certificates cannot be used"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_bad_introduction(changes: dict[str, Any], said: str, token: Path, tmp_path: Path) -> None:
    """An invalid introduction is refused, and only the refusal is stored."""
    keys = derive_keys(read_token(token))
    with (
        host(token, tmp_path / "kept") as listening,
        Endpoint(DEVICE, keys.device, {HOST: keys.host.public}, run=JOIN_RUN, note=lambda _: None) as line,
    ):
        good = {"name": "a", "address": "tcp://127.0.0.1:9", "answer_to": line.address, "ca": "", "cert": "", "key": ""}
        facts = {"version": "9.9", "cores": 1, "memory_bytes": 1, "runtimes": []}
        line.connect(HOST, f"tcp://127.0.0.1:{listening.port}", keys.host.public)
        line.send(HOST, Message("here", {**good, "facts": facts, **changes}))
        assert said in listening.said.wait("may not join")
        assert listening.end() == ()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["refused.log"]
    assert said in (tmp_path / "kept" / "refused.log").read_text()


def test_an_engine_that_cannot_be_reached(token: Path, tmp_path: Path) -> None:
    """A device whose engine the host cannot reach is told so and does not join."""
    keys = derive_keys(read_token(token))
    _, client = issue_credentials(["127.0.0.1"], datetime.now(UTC))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = taken.getsockname()[1]
    with (
        host(token, tmp_path / "kept") as listening,
        Endpoint(DEVICE, keys.device, {HOST: keys.host.public}, run=JOIN_RUN, note=lambda _: None) as line,
    ):
        words = Introduction(
            name="a",
            address=f"tcp://127.0.0.1:{closed}",
            answer_to=line.address,
            facts=EngineReport(version="9.9", cores=1, memory_bytes=1),
            ca=client.ca,
            cert=client.cert,
            key=client.key,
        )
        assert client.key not in repr(words) and client.key not in repr(client)
        line.connect(HOST, f"tcp://127.0.0.1:{listening.port}", keys.host.public)
        line.send(HOST, Message("here", json_io.dump(words)))
        answer = line.receive(PATIENCE_S)
        assert answer is not None and answer.message.kind == "refused"
        assert "the engine at tcp://127.0.0.1" in answer.message.header["why"]
        listening.said.wait("device a may not join: the engine at tcp://127.0.0.1")
        assert listening.end() == ()


def test_a_token_that_others_can_read(devices: Devices, token: Path, tmp_path: Path) -> None:
    """Both sides refuse a token file that others can read."""
    token.chmod(0o644)
    with pytest.raises(Refused, match="chmod 600"):
        collect_devices(Join(token_file=str(token)), tmp_path / "kept", print)
    with pytest.raises(Refused, match="chmod 600"):
        serve(JoinOptions(name="a", token_file=token, engine=devices.engine), print, threading.Event())
    assert not (tmp_path / "kept").exists()


def test_a_device_waits_for_its_host(devices: Devices, token: Path, tmp_path: Path) -> None:
    """A device retries the host it was given, and joins whenever one listens."""

    def hasty() -> float:
        return time.monotonic() * 4

    with host(token, tmp_path / "first") as listening:
        port = listening.port
        devices.start(host_port=port, clock=hasty).wait("has joined its fleet")
    late = devices.start(name="late", host_port=port, clock=hasty)
    late.wait("does not listen now")
    with host(token, tmp_path / "second", port) as listening:
        for _ in range(2):
            listening.said.wait("has joined")
        assert [device.name for device in listening.end()] == ["late", "nano-1"]
