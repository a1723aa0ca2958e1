"""Fake engine: answers `/info`, and echoes on a connection upgraded from HTTP."""

import json
import os
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

INFORMATION = {"ServerVersion": "9.9", "NCPU": 3, "MemTotal": 4_000_000_000, "Runtimes": {"runc": {}, "nvidia": {}}}
ANSWERS = {"version": {"ApiVersion": "1.41"}, "json": [], "networks": [], "volumes": {"Volumes": []}}
"""To the questions that are not about itself, by the last part of their path."""
ECHO = b"POST /echo HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
TAKEN_OVER = b"HTTP/1.1 101 UPGRADED\r\n\r\n"
LAST_WORDS = b"that was all"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Answer with the engine's information, for any version of the API."""
        last = self.path.partition("?")[0].rpartition("/")[2]
        body = json.dumps(ANSWERS.get(last, INFORMATION)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """Echo all data, then send LAST_WORDS."""
        self.close_connection = True
        self.wfile.write(TAKEN_OVER)
        with suppress(ConnectionError):
            while data := self.rfile.read1(1 << 16):
                self.wfile.write(data)
            self.wfile.write(LAST_WORDS)

    def address_string(self) -> str:
        """Placeholder, as unix sockets have no address."""
        return "client"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A thread per connection; closing the server waits for all of them."""


@contextmanager
def fake_engine(folder: Path) -> Iterator[str]:
    """An engine that runs until the block ends; yields its socket."""
    place = os.path.relpath(folder / "engine.sock")
    with Server(place, Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield place
        finally:
            server.shutdown()
            thread.join()
