"""Transports to engines on other machines: mutual TLS, and HTTP over the user's own `ssh`.

TLS files are checked before they are used, and each kind of rejection gets a message of its own.

Every ssh connection is one `ssh HOST docker system dial-stdio` with the user's keys, agent and ~/.ssh/config, which
never prompts. Its stdin and stdout are one end of a socket pair, so that the docker library holds a true socket, with
timeouts and half-close. The library's own ssh is not used: it needs paramiko even where it calls ssh, and its
substitute for a socket can do neither. Many connections to one machine are cheaper with `ControlMaster auto`.
"""

import os
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from docker.transport.basehttpadapter import BaseHTTPAdapter
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection

from fleetune.contracts.record import record
from fleetune.errors import FleetuneError, Refused, TryAgain

SSH_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=15")
"""No prompts; gives up on a machine that is not there, and after 45 s on one that has gone."""
MAX_CONNECTIONS = 16
SSH_EXIT_TIMEOUT_S = 5.0
TAIL_BYTES = 4096
TLS_PROBE_TIMEOUT_S = 3.0
KEEPALIVE_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
)
"""Detects a lost machine within 45 s, however long an answer may take."""
CONNECTION_LOST = (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


@record
class TlsFiles:
    """Certificate and key of a client, and the certificate authority that it trusts."""

    authority: Path
    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """An SSL context for connecting; OSError or ssl.SSLError where a file is missing or malformed."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.certificate, self.key, password=lambda: "")  # without it, Python would prompt
        return context


class KeepAliveAdapter(HTTPAdapter):
    """HTTPS adapter with TCP keepalive, for `mount` of the docker library's client."""

    def init_poolmanager(self, *arguments: Any, **settings: Any) -> None:
        super().init_poolmanager(*arguments, socket_options=list(KEEPALIVE_OPTIONS), **settings)


def load_tls_files(owner: str, folder: Path) -> TlsFiles:
    """The files of `folder` under Docker's names (ca.pem, cert.pem, key.pem); Refused names a file that is unusable."""
    files = TlsFiles(authority=folder / "ca.pem", certificate=folder / "cert.pem", key=folder / "key.pem")
    for path in (files.authority, files.certificate, files.key):
        try:
            path.read_bytes()
        except OSError as error:
            raise Refused(
                f"{owner}: {path} cannot be read ({error.strerror}); tls names the folder with ca.pem, cert.pem "
                "and key.pem"
            ) from None
    try:
        ssl.create_default_context(cafile=str(files.authority))
    except ssl.SSLError:
        raise Refused(f"{owner}: {files.authority} is no certificate; it must be that of the engine's CA") from None
    try:
        files.context()
    except ssl.SSLError as error:
        raise Refused(
            f"{owner}: {files.certificate} and {files.key} are no certificate with its private key, which must not "
            f"need a password ({error.reason or 'unreadable'})"
        ) from None
    return files


def tls_failure(owner: str, address: str, folder: Path, error: BaseException) -> FleetuneError | None:
    """The error for a connection that TLS rejected; None when something else went wrong."""
    tls_error = next((each for each in _causes(error) if isinstance(each, ssl.SSLError)), None)
    cut = any(isinstance(each, CONNECTION_LOST) for each in _causes(error))
    if cut:  # the alert may have been lost with the connection
        tls_error = _handshake_error(address, load_tls_files(owner, folder)) or tls_error
    if tls_error is None:
        return None
    if isinstance(tls_error, ssl.SSLCertVerificationError):
        why = tls_error.verify_message.rstrip(".")
        return Refused(f"{owner}: its certificate is not accepted by {folder / 'ca.pem'} ({why}); is it the same CA?")
    if "ALERT" in (tls_error.reason or ""):
        why = str(tls_error.reason).lower().replace("_", " ")
        return Refused(
            f"{owner} does not accept {folder / 'cert.pem'} ({why}); it must be a client certificate of the engine's CA"
        )
    reason = tls_error.reason or "it closes the connection"
    return TryAgain(f"{owner} does not speak TLS ({reason}); start it with --tlsverify")


def _handshake_error(address: str, files: TlsFiles) -> ssl.SSLError | None:
    """The alert that an engine sends on our certificate when no request follows; None where it accepts it."""
    parts = urlsplit(address)
    try:
        with (
            socket.create_connection((parts.hostname, parts.port), TLS_PROBE_TIMEOUT_S) as plain,
            files.context().wrap_socket(plain, server_hostname=parts.hostname) as connection,
        ):
            connection.recv(1)
    except ssl.SSLError as error:
        return error
    except OSError:
        pass
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and all it wraps, as causes, contexts, reasons or arguments."""
    waiting, seen = [error], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        inner = (each.__cause__, each.__context__, getattr(each, "reason", None), *each.args)
        waiting += [one for one in inner if isinstance(one, BaseException)]


def ssh_command(address: str) -> tuple[str, ...]:
    """Command line that connects its stdin and stdout to the engine behind `ssh://[USER@]HOST[:PORT]`."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    start = parts.netloc.lower().rindex(host)  # urlsplit lowercases host names; ~/.ssh/config does not
    options = [word for option in SSH_OPTIONS for word in ("-o", option)]
    user = ["-l", parts.username] if parts.username else []
    port = ["-p", str(parts.port)] if parts.port else []
    return ("ssh", *options, *user, *port, "--", parts.netloc[start : start + len(host)], "docker system dial-stdio")


class _Connection(HTTPConnection):
    """HTTP over a socket that `dial` returns."""

    def __init__(self, *, dial: Callable[[], socket.socket], **options: Any) -> None:
        super().__init__(**options)
        self._dial = dial

    def connect(self) -> None:
        self.sock = self._dial()
        self.sock.settimeout(self.timeout)


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class SshAdapter(BaseHTTPAdapter):
    """HTTP adapter over ssh, for `mount` of the docker library's client; `close` ends its ssh processes."""

    def __init__(self, command: tuple[str, ...]) -> None:
        super().__init__()
        self._command = command
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stderr = tempfile.TemporaryFile()
        self._pool = _Pool("localhost", maxsize=MAX_CONNECTIONS, dial=self._dial)

    def get_connection(self, url: str, proxies: Any = None) -> Any:
        """The one connection pool."""
        return self._pool

    def request_url(self, request: Any, proxies: Any) -> str:
        """The path alone, because scheme and host mean nothing here."""
        return str(request.path_url)

    def close(self) -> None:
        """End all connections and their processes. Safe to repeat."""
        super().close()
        self._pool.close()
        with self._lock:
            for process in self._processes:
                process.terminate()
            for process in self._processes:
                _end(process)
            self._processes.clear()
            self._stderr.close()

    def last_error_line(self) -> str:
        """The last line that an ssh process wrote to stderr; empty when none did."""
        with self._lock:
            self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = self._stderr.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _dial(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            self._processes = [process for process in self._processes if process.poll() is None]
            try:
                end = theirs.fileno()
                process = subprocess.Popen(
                    self._command, stdin=end, stdout=end, stderr=self._stderr, start_new_session=True
                )
            except OSError:
                ours.close()
                raise
            self._processes.append(process)
        return ours


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(SSH_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
