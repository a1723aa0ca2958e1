"""Relay: a TCP connection that can lose data and break, for tests of links and rehearsals of failures."""

import queue
import socket
import threading
from contextlib import suppress

PIECE_BYTES = 1 << 16


class Relay:
    """Passes connections on to an address of this machine."""

    def __init__(self, target: str) -> None:
        """target: tcp://HOST:PORT."""
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = (host, int(port))
        self._door = socket.create_server(("127.0.0.1", 0))
        self._swallow = threading.Event()
        self.swallowed: queue.SimpleQueue[int] = queue.SimpleQueue()
        """Bytes of each piece of data that was dropped."""
        self._halves: list[socket.socket] = []
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    @property
    def address(self) -> str:
        """Address to connect to instead of the target."""
        return f"tcp://127.0.0.1:{self._door.getsockname()[1]}"

    def swallow(self) -> None:
        """Drop the caller's data from now on."""
        self._swallow.set()

    def cut(self, swallow: bool = False) -> None:
        """Break the connections; new ones work again, or the caller's data are dropped from now on."""
        (self._swallow.set if swallow else self._swallow.clear)()
        halves, self._halves = self._halves, []
        for half in halves:
            with suppress(OSError):
                half.shutdown(socket.SHUT_RDWR)
            half.close()

    def close(self) -> None:
        """Break the connections and accept no more."""
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # wakes whoever accepts; a close would not
        self._door.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._door.accept()
                try:
                    called = socket.create_connection(self._target)
                except OSError:
                    caller.close()
                    continue
                self._halves += [caller, called]
                for ends in ((caller, called, True), (called, caller, False)):
                    threading.Thread(target=self._carry, args=ends, name="relay", daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, forward: bool) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                if forward and self._swallow.is_set():
                    self.swallowed.put(len(data))
                else:
                    target.sendall(data)
