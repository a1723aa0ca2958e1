"""Minimal HTTP client for container engines: which engine of this machine answers, and which images it has.

It needs the standard library only, because an engine is started before anything is installed; the docker library also
leaves sockets open where nothing answers.
"""

import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

__all__ = [
    "DEFAULT_SOCKET", "FLEETUNE_SOCKET", "EngineInfo", "EngineUnavailable", "candidate_sockets", "engine_info",
    "find_engine", "get", "image_labels",
]  # fmt: skip

DEFAULT_SOCKET = "/var/run/docker.sock"
FLEETUNE_SOCKET = "/run/fleetune-engine/docker.sock"
"""Socket of the engine that `make engine` starts."""
TIMEOUT_S = 10.0


class EngineUnavailable(Exception):
    """Nothing at an address speaks the engine's API; str() says where, and why."""


@dataclass(frozen=True, kw_only=True)
class EngineInfo:
    """An engine that answers at a unix socket."""

    socket: str
    version: str
    cgroup_version: str
    """Version of the control groups that limit its containers: `1`, `2`, or empty where the engine does not say."""

    @property
    def summary(self) -> str:
        """One line for people."""
        limits = f", limits by cgroup v{self.cgroup_version}" if self.cgroup_version else ""
        return f"engine {self.version} answers at {self.socket}{limits}"


def candidate_sockets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Unix sockets where an engine of this machine may listen: DOCKER_HOST alone where it is set, else the default
    socket, then Fleetune's. Empty when DOCKER_HOST names another machine."""
    host = environment.get("DOCKER_HOST", "")
    if not host:
        return (DEFAULT_SOCKET, FLEETUNE_SOCKET)
    return (host.removeprefix("unix://"),) if host.startswith("unix://") else ()


def find_engine(environment: Mapping[str, str] = os.environ) -> EngineInfo:
    """The first engine that answers; EngineUnavailable names every socket that was tried."""
    failures = []
    for path in candidate_sockets(environment):
        try:
            return engine_info(path)
        except EngineUnavailable as error:
            failures.append(str(error))
    raise EngineUnavailable(" nor ".join(failures) or "DOCKER_HOST names another machine, not asked")


def engine_info(path: str) -> EngineInfo:
    """The engine behind the unix socket `path`; EngineUnavailable when none answers."""
    with _as_unavailable(path):
        info = _get_json(path, "/info")
        cgroup_version = str(info.get("CgroupVersion", ""))
        return EngineInfo(socket=path, version=str(info["ServerVersion"]), cgroup_version=cgroup_version)


def image_labels(path: str) -> dict[str, dict[str, str]]:
    """Image name with tag (`fleetune-plan:latest`) -> its labels, for every image of the engine behind a socket."""
    with _as_unavailable(path):
        return {
            str(name): dict(image["Labels"] or {})
            for image in _get_json(path, "/images/json")
            for name in image["RepoTags"] or ()
        }


def get(connected: socket.socket, target: str, *, max_bytes: int | None = None, limit_s: float | None = None) -> bytes:
    """The body of the answer to GET `target`, at most its first `max_bytes`; `connected` is not closed.

    `limit_s` bounds the whole exchange, a TLS handshake included; the socket's own timeout bounds each read only, and
    a peer that sends byte by byte would never exceed it. Raises OSError or HTTPException.
    """
    connection = HTTPConnection("localhost")
    connection.sock = connected
    deadline = threading.Timer(limit_s, _shut_down, (connected,)) if limit_s is not None else None
    if deadline is not None:
        deadline.start()
    try:
        if isinstance(connected, ssl.SSLSocket):
            connected.do_handshake()
        connection.request("GET", target)
        with connection.getresponse() as response:
            return response.read(max_bytes)
    finally:
        if deadline is not None:
            deadline.cancel()
            deadline.join()


def _shut_down(connected: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)  # SSLSocket.shutdown must not be called by another thread


@contextmanager
def _as_unavailable(path: str) -> Iterator[None]:
    """Raise EngineUnavailable if there is no answer or an invalid one."""
    try:
        yield
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        advice = f"; be a member of the group of {path}" if isinstance(error, PermissionError) else ""
        raise EngineUnavailable(f"at {path} ({reason}{advice})") from None


def _get_json(path: str, target: str) -> Any:
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(TIMEOUT_S)
        connected.connect(path)
        return json.loads(get(connected, target))
