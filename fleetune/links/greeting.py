"""Asks a listening process for a sign of life below Python, where no interpreter has to answer.

ZMTP's greeting begins with the byte 0xFF. libzmq's own threads send it as soon as they accept a connection, while the
interpreter may be held by a long computation; a frozen process or machine does not send it. It proves no identity: it
may only put off what a silent device is taken for, and never for ever.
"""

import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

FIRST_BYTE = b"\xff"
CONNECT_S = 0.4
"""Longest wait for a connection, which a kernel answers; after it another one is tried, as a packet may be lost."""
RETRY_S = 0.05
"""Pause after a refused connection: a host may refuse for a moment, while its network changes."""


def greets(address: str, timeout_s: float, ended: Callable[[], bool] = lambda: False) -> bool:
    """Return whether the endpoint at an address (tcp://HOST:PORT) greets within `timeout_s` seconds.

    ended: asked between attempts; True ends them.
    """
    until_s = time.monotonic() + timeout_s
    while not ended():
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return False
        if _is_greeted(address, left_s):
            return True
        time.sleep(max(0.0, min(RETRY_S, until_s - time.monotonic())))
    return False


def _is_greeted(address: str, timeout_s: float) -> bool:
    """Connect once; False for a connection that is refused, closed or not answered, and for other bytes."""
    parts = urlsplit(address)
    try:
        with socket.create_connection((parts.hostname, parts.port), min(CONNECT_S, timeout_s)) as connection:
            connection.settimeout(timeout_s)
            return connection.recv(1) == FIRST_BYTE
    except (OSError, ValueError):  # ValueError: a malformed port
        return False
