"""Mutual TLS with engines: certificates proven before they are used, and refusals told apart."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from requests.adapters import HTTPAdapter

from fleetune.contracts.record import record
from fleetune.errors import FleetuneError, Refused, TryAgain

PATIENCE_S = 3.0
GONE = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
)
"""A machine that has gone is noticed within 45 s, however long an answer may take."""


CUT = (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


@record
class Files:
    """What one side of a mutual TLS connection shows and trusts."""

    authority: Path
    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Ready to connect; OSError or ssl.SSLError where a file is not what it should be."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.certificate, self.key, password=lambda: "")  # without it, it would ask
        return context


class KeepAliveAdapter(HTTPAdapter):
    """For `mount` of the docker library's client."""

    def init_poolmanager(self, *arguments: Any, **settings: Any) -> None:
        super().init_poolmanager(*arguments, socket_options=list(GONE), **settings)


def proven(owner: str, folder: Path) -> Files:
    """The files in `folder` under the names that Docker gives them; Refused, with the file, when one does not serve."""
    files = Files(authority=folder / "ca.pem", certificate=folder / "cert.pem", key=folder / "key.pem")
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
        raise Refused(f"{owner}: {files.authority} is no certificate; it has to be that of the engine's CA") from None
    try:
        files.context()
    except ssl.SSLError as error:
        raise Refused(
            f"{owner}: {files.certificate} and {files.key} do not serve as a certificate and its key, which must not "
            f"need a password ({error.reason or 'unreadable'})"
        ) from None
    return files


def complaint(owner: str, address: str, folder: Path, error: BaseException) -> FleetuneError | None:
    """What TLS had against a connection; None when something else went wrong."""
    seen = next((each for each in _causes(error) if isinstance(each, ssl.SSLError)), None)
    cut = any(isinstance(each, CUT) for each in _causes(error))
    if cut:  # what it had to say may have been lost with the connection
        seen = _refusal(address, proven(owner, folder)) or seen
    if seen is None:
        return None
    if isinstance(seen, ssl.SSLCertVerificationError):
        why = seen.verify_message.rstrip(".")
        return Refused(f"{owner}: its certificate is not accepted by {folder / 'ca.pem'} ({why}); is it the same CA?")
    if "ALERT" in (seen.reason or ""):
        why = str(seen.reason).lower().replace("_", " ")
        return Refused(
            f"{owner} does not accept {folder / 'cert.pem'} ({why}); it has to be one of its CA, for clients"
        )
    return TryAgain(f"{owner} does not speak TLS ({seen.reason or 'it hangs up'}); start it with --tlsverify")


def _refusal(address: str, files: Files) -> ssl.SSLError | None:
    """What an engine says to our certificate when nothing else is said to it."""
    parts = urlsplit(address)
    try:
        with (
            socket.create_connection((parts.hostname, parts.port), PATIENCE_S) as plain,
            files.context().wrap_socket(plain, server_hostname=parts.hostname) as line,
        ):
            line.recv(1)
    except ssl.SSLError as error:
        return error
    except OSError:
        pass
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from: libraries wrap theirs as causes and as arguments."""
    waiting, seen = [error], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        inner = (each.__cause__, each.__context__, getattr(each, "reason", None), *each.args)
        waiting += [one for one in inner if isinstance(one, BaseException)]
