"""Listens on the network and hands every connection on, byte by byte, to a unix socket of this machine."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from fleetune.discovery.joining.streams import Plain, Stream, Tls

MOST_CONNECTIONS = 128
MOST_UNPROVEN, MOST_UNPROVEN_OF_ONE = 48, 24
"""Connections that have not shown yet that they may be here: in all, and of one address."""
HANDSHAKE_S = 5.0
FAREWELL_S = 60.0


@dataclass(slots=True)
class Passed:
    """One connection that has ended: where it came from, and what went each way."""

    remote: str
    inward_bytes: int = 0
    outward_bytes: int = 0


class Front:
    """Serves from a thread of its own until closed; owns the listening sockets.

    With a context every client must prove itself by TLS before anything is handed on; without one, the target proves
    them, and one that got more than `unproven_bytes` of it is proven. `ended` gets every connection at its end, in the
    front's thread. Once the other end has said all it will, a client has `farewell_s` to end too.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        target: str,
        context: ssl.SSLContext | None = None,
        ended: Callable[[Passed], None] = lambda _: None,
        farewell_s: float = FAREWELL_S,
        unproven_bytes: int = 0,
    ) -> None:
        self._sockets, self._target, self._context = sockets, target, context
        self._ended, self._farewell_s, self._unproven_bytes = ended, farewell_s, unproven_bytes
        self._unproven: list[Passed] = []
        self.port = int(sockets[0].getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="fleetune-front", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End every connection, the sockets and the thread; safe to repeat."""
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
        servers = [await asyncio.start_server(self._meet, sock=each) for each in self._sockets]
        await self._stop.wait()
        for server in servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = Passed(remote=str((writer.get_extra_info("peername") or ("unknown",))[0]))
        of_one = sum(each.remote == passed.remote for each in self._unproven)
        full = len(self._unproven) >= MOST_UNPROVEN or of_one >= MOST_UNPROVEN_OF_ONE
        if full or len(self._tasks) >= MOST_CONNECTIONS:
            return writer.transport.abort()
        self._unproven.append(passed)
        task = self._loop.create_task(self._serve(reader, writer, passed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passed: Passed) -> None:
        plain = Plain(reader, writer)
        client: Stream = plain if self._context is None else Tls(plain, self._context)
        try:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            async with asyncio.timeout(HANDSHAKE_S):
                await client.open()
            if self._context is not None:
                self._prove(passed)
            await self._hand_on(client, passed)
        except* OSError:  # it has gone, is too slow, or cannot prove itself: errors of TLS and of time are such
            pass
        finally:
            client.abort()
            self._prove(passed)
            self._ended(passed)

    def _prove(self, passed: Passed) -> None:
        """It counts as unproven no longer."""
        self._unproven = [each for each in self._unproven if each is not passed]

    async def _hand_on(self, client: Stream, passed: Passed) -> None:
        target = Plain(*await asyncio.open_unix_connection(self._target))
        try:
            await self._join(client, target, passed)
            async with asyncio.timeout(self._farewell_s):
                await client.finish()
        finally:
            target.abort()

    async def _join(self, client: Stream, target: Stream, passed: Passed) -> None:
        """Hand on in both directions until both have ended."""

        async def inward() -> None:
            while data := await client.read():
                passed.inward_bytes += len(data)
                await target.write(data)
            await target.end()

        async with asyncio.TaskGroup() as group:
            there = group.create_task(inward())
            while data := await target.read():
                passed.outward_bytes += len(data)
                if passed.outward_bytes > self._unproven_bytes:
                    self._prove(passed)
                await client.write(data)
            await client.end()
            async with asyncio.timeout(self._farewell_s):
                await there
