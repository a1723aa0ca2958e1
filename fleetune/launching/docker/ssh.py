"""The engine's HTTP over the user's own `ssh`: their keys, agent and ~/.ssh/config, and nothing is ever asked.

Every connection is one `ssh HOST docker system dial-stdio` whose stdin and stdout are one end of a socket pair, so
that the docker library holds a true socket: with time limits, and closable in one direction. The library's own ssh is
set aside: it needs paramiko even where it calls ssh, and what it takes for a socket can do neither. Many connections
to one machine are cheaper with `ControlMaster auto` in ~/.ssh/config.
"""

import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from docker.transport.basehttpadapter import BaseHTTPAdapter
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection

OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=15")
"""Never asks; gives up on a machine that is not there, and after 45 s on one that has gone."""
AT_ONCE = 16
GRACE_S = 5.0
TAIL_BYTES = 4096


def command(address: str) -> tuple[str, ...]:
    """What reaches the engine behind `ssh://[USER@]HOST[:PORT]`."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    start = parts.netloc.lower().rindex(host)  # urlsplit writes names small; those of ~/.ssh/config may not be
    options = [word for option in OPTIONS for word in ("-o", option)]
    user = ["-l", parts.username] if parts.username else []
    port = ["-p", str(parts.port)] if parts.port else []
    return ("ssh", *options, *user, *port, "--", parts.netloc[start : start + len(host)], "docker system dial-stdio")


class _Connection(HTTPConnection):
    """One HTTP connection over whatever socket `dial` gives."""

    def __init__(self, *, dial: Callable[[], socket.socket], **options: Any) -> None:
        super().__init__(**options)
        self._dial = dial

    def connect(self) -> None:
        self.sock = self._dial()
        self.sock.settimeout(self.timeout)


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class SshAdapter(BaseHTTPAdapter):
    """For `mount` of the docker library's client; its processes end with it."""

    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__()
        self._words = words
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._said = tempfile.TemporaryFile()
        self._pool = _Pool("localhost", maxsize=AT_ONCE, dial=self._dial)

    def get_connection(self, url: str, proxies: Any = None) -> Any:
        """The one pool there is."""
        return self._pool

    def request_url(self, request: Any, proxies: Any) -> str:
        """Without scheme and host, which name nothing here."""
        return str(request.path_url)

    def close(self) -> None:
        """End every connection and its process. Safe to repeat."""
        super().close()
        self._pool.close()
        with self._lock:
            for process in self._processes:
                process.terminate()
            for process in self._processes:
                _end(process)
            self._processes.clear()
            self._said.close()

    def last_words(self) -> str:
        """The last line that an ssh wrote to its stderr, `` when none did."""
        with self._lock:
            self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = self._said.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _dial(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            self._processes = [process for process in self._processes if process.poll() is None]
            try:
                end = theirs.fileno()
                process = subprocess.Popen(
                    self._words, stdin=end, stdout=end, stderr=self._said, start_new_session=True
                )
            except OSError:
                ours.close()
                raise
            self._processes.append(process)
        return ours


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
