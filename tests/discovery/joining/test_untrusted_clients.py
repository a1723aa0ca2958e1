"""Limits on the cost of untrusted hosts and clients."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.fleet import Device as FleetDevice
from fleetune.contracts.fleet_request import DeviceRequest
from fleetune.discovery.joining import device_side, host_side, introduction, tls_proxy
from fleetune.discovery.joining.credentials import client_context, derive_keys, issue_credentials, server_context
from fleetune.discovery.joining.device_side import DeviceIdentity, HostSession, update_sessions
from fleetune.discovery.joining.host_side import REJECTION_BYTES, RefusalLog
from fleetune.discovery.joining.introduction import OLD_REFUSAL_LOG, REFUSAL_LOG, Introduction, check_joining_name
from fleetune.discovery.joining.network import LOOPBACK, MAX_ADDRESSES, AnnouncedHost, LocalNetwork, listening_sockets
from fleetune.discovery.joining.tls_proxy import PlainStream, ProxiedConnection, TlsProxy, TlsStream
from fleetune.errors import Refused, TryAgain

HOSTS = 10
PATIENCE_S = 30.0


class FakeEndpoint:
    """Stand-in for an endpoint that is admitted at the honest host's port only; counts open instances."""

    open = 0
    attempts = 0
    honest = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        FakeEndpoint.open += 1
        FakeEndpoint.attempts += 1
        assert FakeEndpoint.open == 1, "one attempt at a time"
        self.address, self._port = "tcp://127.0.0.1:1", 0

    def connect(self, peer: str, address: str, key: bytes) -> None:
        """Remember the port, as Endpoint.connect."""
        self._port = int(address.rpartition(":")[2])

    def connected(self, peer: str) -> bool:
        """Stand-in for Endpoint.connected."""
        return self._port == FakeEndpoint.honest

    def send(self, *_: Any) -> None:
        """Stand-in for Endpoint.send."""

    def receive(self, timeout_s: float) -> None:
        """Stand-in for Endpoint.receive."""

    def close(self, linger_s: float) -> None:
        """Stand-in for Endpoint.close."""
        FakeEndpoint.open -= 1


@contextmanager
def silent() -> Iterator[int]:
    """Port that accepts connections and sends nothing."""
    with socket.create_server((LOOPBACK, 0), backlog=200) as server:
        yield int(server.getsockname()[1])


def test_announced_hosts_cost_one_attempt_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: ten announced hosts exhausted a device's file descriptors.

    Now one address is tried at a time, and an honest host is reached after one address of each.
    """
    # replaced: only an end that counts its instances shows that there is one at a time
    monkeypatch.setattr(device_side, "Endpoint", FakeEndpoint)
    monkeypatch.setattr(FakeEndpoint, "attempts", 0)
    with silent() as bad, silent() as good, socket.create_server((LOOPBACK, 0)) as taken:
        closed = int(taken.getsockname()[1])
        taken.close()
        monkeypatch.setattr(FakeEndpoint, "honest", good)
        now_s = [0.0]
        here = LocalNetwork(addresses=(LOOPBACK,), clock=lambda: now_s[0])
        words = Introduction(
            name="a", address="tcp://127.0.0.1:9", answer_to="tcp://127.0.0.1:9", ca="", cert="", key="",
            facts=introduction.EngineReport(version="1", cores=1, memory_bytes=1),
        )  # fmt: skip
        device = DeviceIdentity(keys=derive_keys("token"), introduce=lambda *_: words, network=here, say=lambda _: None)
        known: dict[str, HostSession] = {}
        for number in range(HOSTS):
            places = ((LOOPBACK, closed), *([(LOOPBACK, bad)] * (MAX_ADDRESSES - 1)))
            update_sessions(known, AnnouncedHost(f"bad-{number}", places), device)
        update_sessions(known, AnnouncedHost("good", ((LOOPBACK, good),)), device)
        most = 0
        while not known["good"].admitted:
            now_s[0] += 0.4
            for each in known.values():
                each.poll()
                most = max(most, sum(other.has_socket for other in known.values()))
            assert FakeEndpoint.attempts <= HOSTS + 1
        assert most == 1
        for each in known.values():
            each.close()
    assert FakeEndpoint.open == 0


@pytest.mark.parametrize("is_tls", [True, False], ids=["tls", "plain"])
def test_unauthenticated_connections_per_address_are_limited(
    is_tls: bool, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: idle connections blocked devices; unauthenticated ones are limited per address."""
    monkeypatch.setattr(tls_proxy, "MAX_UNAUTHENTICATED_PER_ADDRESS", 2)
    server, client = issue_credentials([LOOPBACK], datetime.now(UTC))
    context = server_context(server) if is_tls else None
    here = LocalNetwork(addresses=(LOOPBACK,))

    async def talk(front: TlsProxy) -> None:
        proven = []
        for _ in range(4):
            stream: Any = PlainStream(*await asyncio.open_connection(LOOPBACK, front.port))
            if is_tls:
                stream = TlsStream(stream, client_context(client), LOOPBACK)
            await stream.open()
            await stream.write(b"GET /info HTTP/1.1\r\nHost: engine\r\n\r\n")
            assert (await stream.read()).startswith(b"HTTP/1.1 200 OK")
            proven.append(stream)
        idle = [await asyncio.open_connection(LOOPBACK, front.port) for _ in range(2)]
        reader, writer = await asyncio.open_connection(LOOPBACK, front.port)
        try:
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        except ConnectionResetError:
            pass
        for _, each in (*idle, (reader, writer)):
            each.close()
            with suppress(OSError):
                await each.wait_closed()
        for stream in proven:
            await stream.finish()

    with TlsProxy(listening_sockets(here), engine, context) as front:
        asyncio.run(talk(front))


def test_the_log_of_refusals_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: refusals from ever new addresses filled the disk; after MAX_LOGGED they are only counted."""
    monkeypatch.setattr(host_side, "MAX_LOGGED", 3)
    (tmp_path / REFUSAL_LOG).write_text("x" * (host_side.MAX_LOG_BYTES + 1))
    told: list[str] = []
    log = RefusalLog(tmp_path, told.append, lambda: datetime(2026, 1, 2, tzinfo=UTC))
    assert (tmp_path / OLD_REFUSAL_LOG).exists() and not (tmp_path / REFUSAL_LOG).exists()
    for number in range(100):
        log.log_if_rejected(
            ProxiedConnection(remote=f"10.0.0.{number}", inbound_bytes=1, outbound_bytes=REJECTION_BYTES - 1)
        )
    log.add("a device", "one\nline" * 1000)
    log.close()
    log.close()
    lines = (tmp_path / REFUSAL_LOG).read_text().splitlines()
    assert len(lines) == 4 and "10.0.0.2 may not join" in lines[2]
    assert lines[3].endswith("98 further refusals are not listed")
    assert len(told) == 4 and told[3].startswith("98 further")
    again = RefusalLog(tmp_path, told.append, lambda: datetime(2026, 1, 2, tzinfo=UTC))
    again.add("a device", "one\nline" * 1000)
    assert len((tmp_path / REFUSAL_LOG).read_text().splitlines()[-1]) < 500


@pytest.mark.parametrize("is_tls", [True, False], ids=["tls", "plain"])
def test_a_query_of_a_slow_engine_ends_in_time(is_tls: bool) -> None:
    """The time limit covers the whole query, even if the answer arrives byte by byte."""
    over = threading.Event()
    server, client = issue_credentials([LOOPBACK], datetime.now(UTC))
    accepting = server_context(server)

    def drip(listener: socket.socket) -> None:
        line, _ = listener.accept()
        with suppress(OSError), line:  # the client gives up, be it during the handshake
            if is_tls:
                line = accepting.wrap_socket(line, server_side=True)
            with line:
                line.sendall(b"HTTP/1.1 200 OK\r\n")
                while not over.wait(0.05):
                    line.sendall(b"x")

    with socket.create_server((LOOPBACK, 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        line: socket.socket = socket.create_connection(listener.getsockname(), PATIENCE_S)
        if is_tls:
            context = client_context(client)
            line = context.wrap_socket(line, server_hostname=LOOPBACK, do_handshake_on_connect=False)
        try:
            with line, pytest.raises(TryAgain, match="gives no valid answer"):
                introduction.query_engine(line, "the drip", limit_s=0.5)
        finally:
            over.set()
            thread.join()


def test_reserved_device_names_are_refused() -> None:
    """Regression: a device named coordinator broke every run; the name is refused."""
    for make in (
        lambda: DeviceRequest(name="coordinator"),
        lambda: FleetDevice(name="coordinator", memory_bytes=1, cores=1, fingerprint=""),
        lambda: check_joining_name("coordinator"),
    ):
        with pytest.raises(Refused, match="device coordinator: this name is reserved"):
            make()
