"""Which container engine of this machine answers, and which images it has, asked over its unix socket.

Without the docker client library, which leaves sockets open where nothing answers, and before anything is installed.
"""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

__all__ = ["OURS", "Answer", "NoAnswer", "ask", "find", "images", "sockets"]

USUAL = "/var/run/docker.sock"
OURS = "/run/fleetune-engine/docker.sock"
"""Where the engine that `make engine` starts listens."""
TIMEOUT_S = 10.0


class NoAnswer(Exception):
    """Nothing that speaks as an engine does; str() says where, and why."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an engine says of itself."""

    socket: str
    version: str
    cgroups: str
    """Version of the control groups that hold its containers to their limits: `1`, `2`, or `` from an old engine."""

    @property
    def words(self) -> str:
        """The engine in a few words."""
        limits = f", limits by cgroup v{self.cgroups}" if self.cgroups else ""
        return f"engine {self.version} answers at {self.socket}{limits}"


def sockets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where an engine of this machine may listen: what DOCKER_HOST names, else the usual place, then ours.

    Nowhere (an empty tuple) when DOCKER_HOST names another machine.
    """
    host = environment.get("DOCKER_HOST", "")
    if not host:
        return (USUAL, OURS)
    return (host.removeprefix("unix://"),) if host.startswith("unix://") else ()


def find(environment: Mapping[str, str] = os.environ) -> Answer:
    """The first engine that answers; NoAnswer names every place that was asked."""
    silent = []
    for place in sockets(environment):
        try:
            return ask(place)
        except NoAnswer as error:
            silent.append(str(error))
    raise NoAnswer(" nor ".join(silent) or "DOCKER_HOST names another machine, not asked")


def ask(place: str) -> Answer:
    """What the engine behind the unix socket `place` says of itself."""
    with _understood(place):
        said = _asked(place, "/info")
        return Answer(socket=place, version=str(said["ServerVersion"]), cgroups=str(said.get("CgroupVersion", "")))


def images(place: str) -> dict[str, dict[str, str]]:
    """The labels of every image that the engine behind a socket has, by name (`fleetune-plan:latest`)."""
    with _understood(place):
        return {
            str(name): dict(image["Labels"] or {})
            for image in _asked(place, "/images/json")
            for name in image["RepoTags"] or ()
        }


@contextmanager
def _understood(place: str) -> Iterator[None]:
    """NoAnswer for whatever does not speak as an engine does."""
    try:
        yield
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        advice = f"; be a member of the group of {place}" if isinstance(error, PermissionError) else ""
        raise NoAnswer(f"at {place} ({reason}{advice})") from None


def _asked(place: str, what: str) -> Any:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(TIMEOUT_S)
        line.connect(place)
        connection = HTTPConnection("localhost")
        connection.sock = line
        connection.request("GET", what)
        return json.loads(connection.getresponse().read())
