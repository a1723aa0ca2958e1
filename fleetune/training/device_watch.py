"""What the coordinator finds out about its devices, and the threads that wait for it."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fleetune.errors import FleetuneError
from fleetune.launching import Job
from fleetune.links.endpoint import Endpoint
from fleetune.links.greeting import greets
from fleetune.training.liveness import MAX_PROBE_S


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a worker."""

    device: str
    kind: str
    header: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """A device that has ended or was given up."""

    device: str
    why: str
    """What happened to it: a sentence that follows its name."""
    error: FleetuneError
    """What a training that cannot go on without it ends with."""


@dataclass(frozen=True, slots=True)
class MessageLost:
    """All devices live, but a message between two of them, or with the coordinator, was lost."""

    source: str
    target: str
    why: str


@dataclass(frozen=True, slots=True)
class FellSilent:
    """A device was not heard within its limit, or its connection has ended; it is to be asked by `probe`."""

    device: str


@dataclass(frozen=True, slots=True)
class HeardAgain:
    """A device that was asked has given a sign of life."""

    device: str


@dataclass(frozen=True, slots=True)
class NotBack:
    """A lost device whose worker was started again and did not come."""

    device: str
    why: str


Found = Said | Lost | MessageLost | FellSilent | HeardAgain | NotBack


class DeviceWatch:
    """Wakes the thread that receives from an endpoint when a job ends or a silent device gives a sign of life."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        endpoint.wakes_on_disconnect = True
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._closed = False

    def watch_end(self, device: str, job: Job) -> None:
        """Wake the receiving thread when a job ends."""

        def wait() -> None:
            job.wait()
            self._endpoint.wake()

        in_background(f"end-of-{device}", wait)

    def ask(self, device: str, address: str, gone: Callable[[], bool]) -> None:
        """Ask a device for a sign of life, until there is one or `gone`; `answers` tells of it."""

        def wait() -> None:
            if greets(address, MAX_PROBE_S, lambda: self._closed or gone()):
                self._answers.put(device)
                self._endpoint.wake()

        in_background(f"probe-of-{device}", wait)

    def answers(self) -> Iterator[str]:
        """Yield the devices that have given a sign of life since the last call."""
        while not self._answers.empty():
            yield self._answers.get()

    def close(self) -> None:
        """Ask no more."""
        self._closed = True


def in_background(name: str, act: Callable[[], object]) -> threading.Thread:
    """Return a thread of this process that has begun to act, and does not keep the process from ending."""
    thread = threading.Thread(target=act, name=name, daemon=True)
    thread.start()
    return thread
