"""A fake engine with the answers that `connect` and `describe_engine` need, over a unix socket or TLS."""

import json
import socketserver
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VERSION = {"ApiVersion": "1.41"}
INFO = {
    "ServerVersion": "20.10.24",
    "NCPU": 4,
    "MemTotal": 8_000_000_000,
    "OperatingSystem": "Debian",
    "OSType": "linux",
    "Architecture": "aarch64",
    "Runtimes": {"runc": {}},
}
ANSWERS: dict[str, Any] = {"/version": VERSION, "/info": INFO, "/v1.41/info": INFO}


def context(folder: Path) -> ssl.SSLContext:
    """SSL context of a server with the certificate in `folder` that requires one of its clients."""
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.pem"))
    made.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    made.verify_mode = ssl.CERT_REQUIRED
    return made


@contextmanager
def on_socket(path: Path, answers: Mapping[str, Any] = ANSWERS) -> Iterator[str]:
    """Run an engine behind a unix socket; yields its address."""
    with _running(_UnixServer(str(path), _handler(answers))):
        yield f"unix://{path}"


@contextmanager
def on_port(tls: ssl.SSLContext | None, answers: Mapping[str, Any] = ANSWERS) -> Iterator[str]:
    """Run an engine behind a loopback port, with TLS or without; yields its address."""
    server = _PortServer(("127.0.0.1", 0), _handler(answers))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with _running(server):
        yield f"tcp://127.0.0.1:{server.server_address[1]}"


class _Quiet:
    """Ignores clients that hang up."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _UnixServer(_Quiet, socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    pass


class _PortServer(_Quiet, ThreadingHTTPServer):
    daemon_threads = False


@contextmanager
def _running(server: Any) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(answers: Mapping[str, Any]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path.partition("?")[0]
            said = answers.get(known, {"message": f"no such thing: {known}"})
            content = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(200 if known in answers else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
