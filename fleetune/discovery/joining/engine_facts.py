"""What an engine says of the machine it runs on."""

import socket
import ssl
import threading
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any

from fleetune.contracts import wire
from fleetune.contracts.record import positive, record
from fleetune.errors import Refused, TryAgain

TIMEOUT_S = 3.0
LIMIT_S = 10.0
MOST_BYTES = 1 << 20


@record
class EngineFacts:
    """A device's machine, as far as its engine knows it."""

    version: str
    """Of the engine."""
    cores: int
    memory_bytes: int
    runtimes: tuple[str, ...] = ()
    """What its containers can be run by; `nvidia` is among them where they can have a GPU."""

    def __post_init__(self) -> None:
        positive("engine", cores=self.cores, memory_bytes=self.memory_bytes)


def of_socket(place: str) -> EngineFacts:
    """Ask the engine behind a unix socket; TryAgain when it gives no sense."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(TIMEOUT_S)
        try:
            line.connect(place)
        except OSError as error:
            raise TryAgain(f"the engine at {place} does not answer ({error.strerror}); is it running?") from None
        return ask(line, place)


def ask(line: socket.socket, place: str, limit_s: float = LIMIT_S) -> EngineFacts:
    """Ask over any connection, of TLS too, within `limit_s` in all; TryAgain names `place` and what went wrong."""
    connection = HTTPConnection("localhost")
    connection.sock = line
    end = threading.Timer(limit_s, _cut, (line,))  # a time limit for each piece is none for many small ones
    end.start()
    try:
        if isinstance(line, ssl.SSLSocket):
            line.do_handshake()
        connection.request("GET", "/info")
        said = wire.parse_plain(connection.getresponse().read(MOST_BYTES), f"engine at {place}")
        return wire.load(EngineFacts, _plain(said), f"engine at {place}")
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
        why = str(error) if isinstance(error, Refused) else getattr(error, "strerror", None) or type(error).__name__
        raise TryAgain(f"the engine at {place} does not answer as one does ({why})") from None
    finally:
        end.cancel()
        end.join()
        connection.close()


def _cut(line: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(line, socket.SHUT_RDWR)  # as of a plain one: that of TLS is not made for other threads


def _plain(said: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": said["ServerVersion"],
        "cores": said["NCPU"],
        "memory_bytes": said["MemTotal"],
        "runtimes": sorted(said.get("Runtimes") or ()),
    }
