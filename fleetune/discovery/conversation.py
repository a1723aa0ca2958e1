"""The stage's side of the conversation with its agents."""

import time
from collections.abc import Callable
from typing import Any

from fleetune.contracts.record import record
from fleetune.discovery.link_work import LinkProbe
from fleetune.errors import FleetuneError, Infeasible, TryAgain
from fleetune.launching import Job, exit_in_words, used_in_words
from fleetune.links.endpoint import Endpoint
from fleetune.links.message import Message, Received

LOOK_S = 0.1
FAREWELL_S = 5.0


@record
class Limits:
    """How long discovery waits, and how long it measures."""

    answer_s: float = 60.0
    """For one answer of an agent; its start and a look for a GPU included."""
    probe_s: float = 1.0
    """For the sweep over one link; slower links get fewer sizes and repeats."""


class Conversation:
    """What the stage says to agents, and their answers or the reason why there are none."""

    def __init__(self, endpoint: Endpoint, run: str, limits: Limits, note: Callable[[str], None]) -> None:
        self.jobs: dict[str, Job] = {}
        self.memory_bytes: dict[str, int] = {}
        """What devices may use, where that is emulated."""
        self.probes: list[LinkProbe] = []
        self.note = note
        self.endpoint = endpoint
        self.run = run
        self.limits = limits

    def say(self, device: str, kind: str, header: dict[str, Any]) -> None:
        """Send an agent a word."""
        self.endpoint.send(device, Message(kind, header))

    def hear(self, kind: str, waiting_for: set[str]) -> Received:
        """The next message of that kind from one of those; TryAgain when their agent ended or says nothing."""
        deadline_s = time.monotonic() + self.limits.answer_s
        while time.monotonic() < deadline_s:
            received = self.endpoint.receive(LOOK_S)
            if received is not None and received.message.kind == kind and received.sender in waiting_for:
                return received
            for device in sorted(self.jobs):
                code = self.jobs[device].poll()
                if code is not None and received is None:
                    raise self._failure(device, f"its discovery agent {self._end(device, code)}")
        device = min(waiting_for)
        raise self._failure(device, f"its discovery agent did not say {kind!r} within {self.limits.answer_s:g} s")

    def end(self) -> None:
        """Let the agents end by themselves."""
        for device in self.jobs:
            self.say(device, "end", {})
        for job in self.jobs.values():
            job.wait(FAREWELL_S)

    def _end(self, device: str, code: int) -> str:
        if self.jobs[device].out_of_memory:
            allowed_bytes = self.memory_bytes.get(device)
            whose = "the device's memory" if allowed_bytes is None else f"its {allowed_bytes / 1e9:.2f} GB"
            return f"ran out of {whose}{used_in_words(self.jobs[device])}; give it more by emulate.memory_bytes"
        return exit_in_words(code)

    def _failure(self, device: str, what: str) -> FleetuneError:
        log = self.jobs[device].tail(20).strip()
        if log:
            self.note(f"end of the log of device {device}:\n{log}")
        last_words = (log.splitlines() or [""])[-1]
        if self.jobs[device].out_of_memory:
            return Infeasible(f"device {device}: {what}")
        return TryAgain(f"device {device}: {what}; its last words were {last_words!r}; try again")
