"""Both directions of a connection, each with its own end: plain, or through TLS.

asyncio's own TLS ends both directions when one ends, but `docker attach` sends the end of stdin and reads on.
"""

import asyncio
import ssl
from contextlib import suppress
from typing import Protocol

CHUNK_BYTES = 1 << 16


class Stream(Protocol):
    """A connection."""

    async def open(self) -> None:
        """Agree with the other side on how to talk; OSError where that fails."""

    async def read(self) -> bytes:
        """What has arrived, empty at the end of that direction."""

    async def write(self, data: bytes) -> None:
        """Send, and wait while the other side is slow."""

    async def end(self) -> None:
        """Nothing more will be written; reading goes on."""

    async def finish(self) -> None:
        """Close once all is sent."""

    def abort(self) -> None:
        """Close at once; safe to repeat."""


class Plain:
    """Bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def open(self) -> None:
        """See Stream."""

    async def read(self) -> bytes:
        """See Stream."""
        return await self._reader.read(CHUNK_BYTES)

    async def write(self, data: bytes) -> None:
        """See Stream."""
        self._writer.write(data)
        await self._writer.drain()

    async def end(self) -> None:
        """See Stream."""
        self._writer.write_eof()

    async def finish(self) -> None:
        """See Stream."""
        self._writer.close()
        await self._writer.wait_closed()

    def abort(self) -> None:
        """See Stream."""
        self._writer.transport.abort()


class Tls:
    """Bytes through TLS; a direction ends with TLS' own farewell (close_notify), or with the connection's."""

    def __init__(self, inner: Plain, context: ssl.SSLContext, server_name: str | None = None) -> None:
        """A server, or a client of `server_name`."""
        self._inner = inner
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._arrived, self._leaving, server_side=server_name is None, server_hostname=server_name
        )
        self._held = bytearray()
        self._read_all = False

    async def open(self) -> None:
        """See Stream."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                await self._flush()  # tells the other side why
                raise
            else:
                return await self._flush()

    async def read(self) -> bytes:
        """See Stream."""
        self._decrypt()
        while not self._held and not self._read_all:
            await self._fill()
            self._decrypt()
            await self._flush()
        data = bytes(self._held)
        self._held.clear()
        return data

    async def write(self, data: bytes) -> None:
        """See Stream."""
        self._tls.write(data)
        await self._flush()

    async def end(self) -> None:
        """See Stream."""
        self._decrypt()  # the farewell must find nothing that is still to be read
        with suppress(ssl.SSLError):  # it waits for the other side's farewell, which may be long in coming
            self._tls.unwrap()
        await self._flush()
        await self._inner.end()

    async def finish(self) -> None:
        """See Stream."""
        await self._inner.finish()

    def abort(self) -> None:
        """See Stream."""
        self._inner.abort()

    def _decrypt(self) -> None:
        """Hold all that can be read without waiting."""
        try:
            while not self._read_all:
                data = self._tls.read(CHUNK_BYTES)
                self._held += data
                self._read_all = not data
        except ssl.SSLWantReadError:
            return
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._read_all = True

    async def _fill(self) -> None:
        data = await self._inner.read()
        if data:
            self._arrived.write(data)
        else:
            self._arrived.write_eof()

    async def _flush(self) -> None:
        if self._leaving.pending:
            await self._inner.write(self._leaving.read())
