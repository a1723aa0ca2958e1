"""Forwarding, authentication and limits of the proxy."""

import asyncio
import gc
import queue
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from fleetune.discovery.joining import tls_proxy
from fleetune.discovery.joining.credentials import client_context, issue_credentials, server_context
from fleetune.discovery.joining.network import LOOPBACK, LocalNetwork, listening_sockets
from fleetune.discovery.joining.tls_proxy import PlainStream, ProxiedConnection, Stream, TlsProxy, TlsStream
from tests.support.discovery.joining.fake_engine import ECHO, LAST_WORDS, TAKEN_OVER

SERVER, CLIENT = issue_credentials([LOOPBACK], datetime.now(UTC))
HERE = LocalNetwork(addresses=(LOOPBACK,))
PATIENCE_S = 30.0


@pytest.fixture
def ended() -> "queue.SimpleQueue[ProxiedConnection]":
    """Queue of connections that have ended."""
    return queue.SimpleQueue()


@pytest.fixture(params=["plain", "tls"])
def proxy(
    request: pytest.FixtureRequest, engine: str, ended: "queue.SimpleQueue[ProxiedConnection]"
) -> Iterator[TlsProxy]:
    """Proxy in front of the engine, with and without TLS."""
    context = server_context(SERVER) if request.param == "tls" else None
    with TlsProxy(listening_sockets(HERE), engine, context, ended.put) as made:
        yield made


@pytest.fixture
def tls_proxied(engine: str, ended: "queue.SimpleQueue[ProxiedConnection]") -> Iterator[TlsProxy]:
    """Proxy with TLS."""
    with TlsProxy(listening_sockets(HERE), engine, server_context(SERVER), ended.put) as made:
        yield made


async def connected(proxy: TlsProxy, is_tls: bool) -> Stream:
    """Open a stream to the proxy."""
    stream: Stream = PlainStream(*await asyncio.open_connection(LOOPBACK, proxy.port))
    if is_tls:
        stream = TlsStream(stream, client_context(CLIENT), LOOPBACK)
    await stream.open()
    return stream


async def until_end(stream: Stream) -> bytes:
    """Read until the stream ends."""
    data = bytearray()
    while piece := await stream.read():
        data += piece
    return bytes(data)


def test_an_upgraded_connection(
    proxy: TlsProxy, ended: "queue.SimpleQueue[ProxiedConnection]", request: pytest.FixtureRequest
) -> None:
    """Bytes pass both ways unchanged; ending one direction leaves the other open."""
    payload = bytes(range(256)) * 20_000

    async def talk() -> bytes:
        stream = await connected(proxy, "tls" in request.node.name)
        answer = asyncio.ensure_future(until_end(stream))
        await stream.write(ECHO + payload)
        await stream.end()
        try:
            return await asyncio.wait_for(answer, PATIENCE_S)
        finally:
            stream.abort()

    assert asyncio.run(talk()) == TAKEN_OVER + payload + LAST_WORDS
    passed = ended.get(timeout=PATIENCE_S)
    assert (passed.remote, passed.inbound_bytes) == (LOOPBACK, len(ECHO + payload))
    assert passed.outbound_bytes == len(TAKEN_OVER + payload + LAST_WORDS)


def test_an_end_by_the_engine_leaves_the_other_direction_open(tmp_path_factory: pytest.TempPathFactory) -> None:
    """An engine that has ended its direction still receives data."""
    place = str(tmp_path_factory.mktemp("s") / "s")

    async def talk() -> bytes:
        heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def say_and_listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"all")
            writer.write_eof()
            heard.set_result(await reader.read())
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_unix_server(say_and_listen, place):
            proxy = TlsProxy(listening_sockets(HERE), place, server_context(SERVER))
            try:
                stream = await connected(proxy, True)
                said = await until_end(stream)
                await stream.write(said + b" heard")
                await stream.end()
                return await asyncio.wait_for(heard, PATIENCE_S)
            finally:
                stream.abort()
                await asyncio.to_thread(proxy.close)

    assert asyncio.run(talk()) == b"all heard"


def test_close_notify_of_pythons_own_tls(tls_proxied: TlsProxy) -> None:
    """Python's own TLS client can end its direction and sees the end of the other."""
    context = client_context(CLIENT)
    with socket.create_connection((LOOPBACK, tls_proxied.port), timeout=PATIENCE_S) as line:
        tls = context.wrap_socket(line, server_hostname=LOOPBACK)
        tls.sendall(b"GET /info HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n")
        assert tls.recv(1 << 16).startswith(b"HTTP/1.1 200")
        while tls.recv(1 << 16):
            pass
        tls.unwrap().close()


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n"], ids=["silent", "plain"])
def test_unauthenticated_clients_are_cut_off(
    tls_proxied: TlsProxy, ended: "queue.SimpleQueue[ProxiedConnection]", words: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends nothing in time, or no TLS, gets nothing from the engine."""
    monkeypatch.setattr(tls_proxy, "HANDSHAKE_TIMEOUT_S", 0.2)
    with socket.create_connection((LOOPBACK, tls_proxied.port), timeout=PATIENCE_S) as line:
        line.sendall(words)
        try:
            assert b"HTTP" not in line.recv(1 << 16)
        except ConnectionResetError:
            pass
    passed = ended.get(timeout=PATIENCE_S)
    assert (passed.inbound_bytes, passed.outbound_bytes) == (0, 0)


def test_older_tls_is_refused(tls_proxied: TlsProxy) -> None:
    """TLS below 1.3, which sends certificates in clear text, is refused."""
    context = client_context(CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection((LOOPBACK, tls_proxied.port), timeout=PATIENCE_S) as line:
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(line, server_hostname=LOOPBACK)


def test_too_many_connections(proxy: TlsProxy, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A connection above the maximum is closed; the others continue."""
    monkeypatch.setattr(tls_proxy, "MAX_CONNECTIONS", 1)

    async def talk() -> bytes:
        first = await connected(proxy, "tls" in request.node.name)
        await first.write(ECHO)
        begun = await first.read()
        reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
        try:
            refused = await asyncio.wait_for(reader.read(), PATIENCE_S)
        except ConnectionResetError:
            refused = b""
        writer.close()
        await first.end()
        whole = begun + refused + await until_end(first)
        first.abort()
        return whole

    assert asyncio.run(talk()) == TAKEN_OVER + LAST_WORDS


def test_an_engine_that_has_gone(
    tmp_path_factory: pytest.TempPathFactory, ended: "queue.SimpleQueue[ProxiedConnection]"
) -> None:
    """Without an engine, clients are disconnected and the proxy continues."""
    place = str(tmp_path_factory.mktemp("s") / "none")
    with TlsProxy(listening_sockets(HERE), place, on_end=ended.put) as made:
        for _ in range(2):
            with socket.create_connection((LOOPBACK, made.port), timeout=PATIENCE_S) as line:
                try:
                    assert line.recv(1) == b""
                except ConnectionResetError:
                    pass
            assert ended.get(timeout=PATIENCE_S).outbound_bytes == 0
        made.close()


def test_a_connection_that_comes_with_the_end_is_closed(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a connection accepted while the proxy was ending was never closed, as its task was cancelled unbegun."""
    accept = TlsProxy._accept  # private: the connection has to come in the very step in which the proxy ends

    def accept_at_the_end(self: TlsProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._stop.set()
        accept(self, reader, writer)

    monkeypatch.setattr(TlsProxy, "_accept", accept_at_the_end)  # private: as above
    with TlsProxy(listening_sockets(HERE), engine, None) as ending:
        with socket.create_connection((LOOPBACK, ending.port), timeout=PATIENCE_S) as line:
            ending._thread.join(PATIENCE_S)  # private: `close` would end what is to end by itself
            gc.disable()  # which would close it in the end
            try:
                with suppress(ConnectionResetError):
                    assert line.recv(1) == b""
            finally:
                gc.enable()


def test_a_connection_that_asyncio_holds_at_the_end_is_closed(engine: str) -> None:
    """Bug: asyncio drops a connection, with warnings, whose server is closed in the step after it was taken."""
    with TlsProxy(listening_sockets(HERE), engine, None) as ending, socket.socket() as line:
        line.settimeout(PATIENCE_S)

        def connect_and_stop() -> None:
            line.connect((LOOPBACK, ending.port))
            # private: it has to end in the step that takes the connection, and before it
            ending._loop.call_soon(ending._stop.set)

        ending._loop.call_soon_threadsafe(connect_and_stop)  # private: the proxy's own thread has to do both at once
        ending._thread.join(PATIENCE_S)  # private: `close` would end it in a step of its own
        with suppress(ConnectionResetError):
            assert line.recv(1) == b""
