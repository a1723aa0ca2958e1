"""Agent pool: the messages between the discover stage and its agents, and the stage's side of the conversation.

An agent reads an AgentTask from stdin and then talks over the links: it sends `here` (its facts and address), `ready`
once it is connected to the `peers` it was given, `probed` for every `probe`, and its counters for every `load`. `ping`
and `pong` are the probes themselves, and `end` ends the agent. While an agent works it sends a `beat` once a second, so
that the limit of an answer is one of silence: on a busy machine a probe may take minutes.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.record import record
from fleetune.discovery.link_probe import LinkProbe
from fleetune.discovery.machine import LoadSample, MachineFacts
from fleetune.errors import FleetuneError, Infeasible, TryAgain
from fleetune.formatting import gigabytes
from fleetune.launching import Job, ListenSettings, describe_exit, describe_used_memory
from fleetune.links.endpoint import Endpoint
from fleetune.links.message import Message, Received

STAGE = "@discover"
"""Name of the stage on the links; device names cannot contain @."""
BEAT = "beat"
"""Message of an agent that works; its header says at what, as `doing`."""
BEAT_S = 1.0
POLL_S = 0.1
SHUTDOWN_S = 5.0


@record
class AgentTask:
    """Settings of an agent; sent on stdin, because they include the agent's secret key."""

    run: str
    device: str
    accelerator: str
    public: bytes
    secret: bytes = field(repr=False)
    allowed: dict[str, bytes]
    """Public keys of the stage and of all devices, by name."""
    stage_address: str
    door: ListenSettings
    """Listening address and delays of incoming messages."""
    idle_s: float
    """Seconds without a message after which the agent ends by itself."""
    answer_s: float
    """Maximum wait for the answer of a peer to one message of a probe."""

    def line(self) -> bytes:
        """JSON on one line, for stdin."""
        return json.dumps(json_io.dump(self)).encode()


@record
class AgentHello:
    """First message of an agent."""

    address: str
    facts: MachineFacts


@record
class DiscoveryTimeLimits:
    """Time limits of discovery."""

    answer_s: float = 60.0
    """Maximum silence of an agent that owes an answer: its start, its search for a GPU, a single message of a probe."""
    probe_s: float = 1.0
    """Budget for the sweep over one link; slower links get fewer sizes and repeats."""


class AgentPool:
    """The running agents of a fleet: sends them messages, and reports why one does not answer."""

    def __init__(
        self,
        endpoint: Endpoint,
        run: str,
        limits: DiscoveryTimeLimits,
        note: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.jobs: dict[str, Job] = {}
        self.memory_bytes: dict[str, int] = {}
        """Memory limit of devices whose memory is emulated."""
        self.probes: list[LinkProbe] = []
        self.note = note
        self.endpoint = endpoint
        self.run = run
        self.limits = limits
        self._now_s = now_s
        self._last_s: dict[str, float] = {}
        """Start of a device's silence: its newest message, or the newest one to it, or the start of its agent."""
        self._doing: dict[str, str] = {}
        """What the newest beat of a device said."""

    def add(self, device: str, job: Job) -> None:
        """Add the agent of a device, which has just been started."""
        self.jobs[device] = job
        self._last_s[device] = self._now_s()

    def send(self, device: str, kind: str, header: dict[str, Any]) -> None:
        """Send a message to the agent of a device."""
        self.endpoint.send(device, Message(kind, header))
        self._last_s[device] = self._now_s()
        self._doing.pop(device, None)

    def receive(self, kind: str, waiting_for: set[str]) -> Received:
        """Return the next message of that kind from one of those devices.

        Raises TryAgain if an agent ended, or if one of those devices has been silent for `limits.answer_s`; Infeasible
        if an agent ran out of memory.
        """
        while True:
            received = self.endpoint.receive(POLL_S)
            if received is not None:
                self._last_s[received.sender] = self._now_s()
                if received.message.kind == kind and received.sender in waiting_for:
                    return received
                if received.message.kind == BEAT:
                    self._doing[received.sender] = str(received.message.header.get("doing", ""))
                continue  # what has arrived already comes before any verdict
            for device in sorted(self.jobs):
                code = self.jobs[device].poll()
                if code is not None:
                    raise self._failure(device, f"its discovery agent {self._exit_reason(device, code)}")
            device = min(waiting_for, key=lambda each: (self._last_s[each], each))
            if self._now_s() - self._last_s[device] >= self.limits.answer_s:
                raise self._failure(device, self._silence(device, kind))

    def sample_loads(self, devices: Sequence[str]) -> dict[str, LoadSample]:
        """Ask agents for their counters; device -> sample."""
        for device in devices:
            self.send(device, "load", {})
        samples: dict[str, LoadSample] = {}
        while len(samples) < len(devices):
            received = self.receive("load", set(devices) - samples.keys())
            header, owner = received.message.header, f"load of {received.sender}"
            samples[received.sender] = json_io.load(LoadSample, header, owner)
        return samples

    def shutdown(self) -> None:
        """Ask all agents to end and wait for them, SHUTDOWN_S each."""
        for device in self.jobs:
            self.send(device, "end", {})
        for job in self.jobs.values():
            job.wait(SHUTDOWN_S)

    def _silence(self, device: str, kind: str) -> str:
        doing = f" while {self._doing[device]}" if self._doing.get(device) else ""
        return f"its discovery agent fell silent{doing}: it did not say {kind!r} within {self.limits.answer_s:g} s"

    def _exit_reason(self, device: str, code: int) -> str:
        if self.jobs[device].out_of_memory:
            allowed_bytes = self.memory_bytes.get(device)
            whose = "the device's memory" if allowed_bytes is None else f"its {gigabytes(allowed_bytes)}"
            return f"ran out of {whose}{describe_used_memory(self.jobs[device])}; give it more by emulate.memory_bytes"
        return describe_exit(code)

    def _failure(self, device: str, what: str) -> FleetuneError:
        log = self.jobs[device].tail(20).strip()
        if log:
            self.note(f"end of the log of device {device}:\n{log}")
        last_words = (log.splitlines() or [""])[-1]
        if self.jobs[device].out_of_memory:
            return Infeasible(f"device {device}: {what}")
        return TryAgain(f"device {device}: {what}; its last words were {last_words!r}; try again")
