"""TLS proxy: accepts connections from the network, optionally with TLS, and forwards them to a local unix socket.

Streams close each direction separately. asyncio's own TLS closes both when one ends, but `docker attach` closes stdin
and continues to read.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

CHUNK_BYTES = 1 << 16


class Stream(Protocol):
    """Connection whose two directions end separately."""

    async def open(self) -> None:
        """Perform the handshake; OSError if it fails."""

    async def read(self) -> bytes:
        """Return received bytes; empty at the end of that direction."""

    async def write(self, data: bytes) -> None:
        """Send data, and wait while the peer is slow."""

    async def end(self) -> None:
        """Close the writing direction; reading continues."""

    async def finish(self) -> None:
        """Close the connection after all data is sent."""

    def abort(self) -> None:
        """Close the connection immediately; safe to repeat."""


class PlainStream:
    """Unencrypted stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def open(self) -> None:
        """Perform the handshake, if there is one."""

    async def read(self) -> bytes:
        """Return received bytes; empty at the end of that direction."""
        return await self._reader.read(CHUNK_BYTES)

    async def write(self, data: bytes) -> None:
        """Send data, and wait while the peer is slow."""
        self._writer.write(data)
        await self._writer.drain()

    async def end(self) -> None:
        """Close the writing direction; reading continues."""
        self._writer.write_eof()

    async def finish(self) -> None:
        """Close the connection after all data is sent."""
        self._writer.close()
        await self._writer.wait_closed()

    def abort(self) -> None:
        """Close the connection immediately; safe to repeat."""
        self._writer.transport.abort()


class TlsStream:
    """TLS stream; a direction ends with close_notify, or with the end of the connection."""

    def __init__(self, inner: PlainStream, context: ssl.SSLContext, server_name: str | None = None) -> None:
        """Server side; with `server_name`, client side."""
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._decrypted = bytearray()
        self._at_end = False

    async def open(self) -> None:
        """Perform the handshake, if there is one."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                await self._flush()  # sends the alert to the peer
                raise
            else:
                return await self._flush()

    async def read(self) -> bytes:
        """Return received bytes; empty at the end of that direction."""
        self._decrypt()
        while not self._decrypted and not self._at_end:
            await self._fill()
            self._decrypt()
            await self._flush()
        data = bytes(self._decrypted)
        self._decrypted.clear()
        return data

    async def write(self, data: bytes) -> None:
        """Send data, and wait while the peer is slow."""
        self._tls.write(data)
        await self._flush()

    async def end(self) -> None:
        """Close the writing direction; reading continues."""
        self._decrypt()  # unwrap() requires that no data is pending
        with suppress(ssl.SSLError):  # raised while the peer's close_notify is outstanding
            self._tls.unwrap()
        await self._flush()
        await self._inner.end()

    async def finish(self) -> None:
        """Close the connection after all data is sent."""
        await self._inner.finish()

    def abort(self) -> None:
        """Close the connection immediately; safe to repeat."""
        self._inner.abort()

    def _decrypt(self) -> None:
        """Decrypt and buffer all data that is available without waiting."""
        try:
            while not self._at_end:
                data = self._tls.read(CHUNK_BYTES)
                self._decrypted += data
                self._at_end = not data
        except ssl.SSLWantReadError:
            return
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._at_end = True

    async def _fill(self) -> None:
        data = await self._inner.read()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._inner.write(self._outgoing.read())


MAX_CONNECTIONS = 128
MAX_UNAUTHENTICATED, MAX_UNAUTHENTICATED_PER_ADDRESS = 48, 24
"""Maximum connections without authentication so far: in all, and per remote address."""
HANDSHAKE_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 60.0


@dataclass(slots=True)
class ProxiedConnection:
    """Remote address of a connection and the bytes forwarded in each direction."""

    remote: str
    inbound_bytes: int = 0
    outbound_bytes: int = 0


class TlsProxy:
    """Proxy that serves in its own thread until closed; owns the listening sockets.

    With a `context`, a client must authenticate by TLS before anything is forwarded. Without one, the target
    authenticates clients, and a client that has received more than `unauthenticated_bytes` counts as authenticated. The
    proxy's thread calls `on_end` with every connection that has ended. After the target has closed its direction, the
    client has `close_timeout_s` seconds to close the other.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        target: str,
        context: ssl.SSLContext | None = None,
        on_end: Callable[[ProxiedConnection], None] = lambda _: None,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
        unauthenticated_bytes: int = 0,
    ) -> None:
        self._sockets, self._target, self._context = sockets, target, context
        self._on_end, self._close_timeout_s = on_end, close_timeout_s
        self._unauthenticated_bytes = unauthenticated_bytes
        self._unauthenticated: list[ProxiedConnection] = []
        self.port = int(sockets[0].getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="fleetune-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close all connections and sockets and end the thread; safe to repeat."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        servers = [await asyncio.start_server(self._accept, sock=each) for each in self._sockets]
        await self._stop.wait()
        for listener in self._sockets:
            self._loop.remove_reader(listener)
        for _ in range(3):  # a connection that asyncio has just taken starts, is attached to its server, and accepted:
            await asyncio.sleep(0)  # closing the server between these steps would drop it without closing it
        for server in servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ProxiedConnection(remote=str((writer.get_extra_info("peername") or ("unknown",))[0]))
        from_address = sum(each.remote == connection.remote for each in self._unauthenticated)
        full = len(self._unauthenticated) >= MAX_UNAUTHENTICATED or from_address >= MAX_UNAUTHENTICATED_PER_ADDRESS
        if full or len(self._tasks) >= MAX_CONNECTIONS:
            return writer.transport.abort()
        self._unauthenticated.append(connection)
        task = self._loop.create_task(self._serve(reader, writer, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # it may be cancelled before it begins

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: ProxiedConnection
    ) -> None:
        plain = PlainStream(reader, writer)
        client: Stream = plain if self._context is None else TlsStream(plain, self._context)
        try:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await client.open()
            if self._context is not None:
                self._mark_authenticated(connection)
            await self._forward_connection(client, connection)
        except* OSError:  # closed, timed out, or not authenticated; SSLError and TimeoutError are OSErrors
            pass
        finally:
            client.abort()
            self._mark_authenticated(connection)
            self._on_end(connection)

    def _mark_authenticated(self, connection: ProxiedConnection) -> None:
        """Stop counting the connection as unauthenticated."""
        self._unauthenticated = [each for each in self._unauthenticated if each is not connection]

    async def _forward_connection(self, client: Stream, connection: ProxiedConnection) -> None:
        target = PlainStream(*await asyncio.open_unix_connection(self._target))
        try:
            await self._forward(client, target, connection)
            async with asyncio.timeout(self._close_timeout_s):
                await client.finish()
        finally:
            target.abort()

    async def _forward(self, client: Stream, target: Stream, connection: ProxiedConnection) -> None:
        """Forward both directions until both have ended."""

        async def forward_inbound() -> None:
            while data := await client.read():
                connection.inbound_bytes += len(data)
                await target.write(data)
            await target.end()

        async with asyncio.TaskGroup() as group:
            inbound = group.create_task(forward_inbound())
            while data := await target.read():
                connection.outbound_bytes += len(data)
                if connection.outbound_bytes > self._unauthenticated_bytes:
                    self._mark_authenticated(connection)
                await client.write(data)
            await client.end()
            async with asyncio.timeout(self._close_timeout_s):
                await inbound
