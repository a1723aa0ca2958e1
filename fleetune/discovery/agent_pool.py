"""Agent pool: the messages between the discover stage and its agents, and the stage's side of the conversation.

An agent reads an AgentTask from stdin and then talks over the links: it sends `here` (its facts and address), `ready`
once it is connected to the `peers` it was given, `probed` for every `probe`, and its counters for every `load`. `ping`
and `pong` are the probes themselves, and `end` ends the agent.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.record import record
from fleetune.discovery.link_probe import LinkProbe
from fleetune.discovery.machine_facts import MachineFacts
from fleetune.discovery.machine_load import LoadSample
from fleetune.errors import FleetuneError, Infeasible, TryAgain
from fleetune.formatting import gigabytes
from fleetune.launching import Job, ListenSettings, describe_exit, describe_used_memory
from fleetune.links.endpoint import Endpoint
from fleetune.links.message import Message, Received

STAGE = "@discover"
"""Name of the stage on the links; device names cannot contain @."""
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
    """Maximum wait for one answer of an agent, including its start and its search for a GPU."""
    probe_s: float = 1.0
    """Budget for the sweep over one link; slower links get fewer sizes and repeats."""


class AgentPool:
    """The running agents of a fleet: sends them messages, and reports why one does not answer."""

    def __init__(self, endpoint: Endpoint, run: str, limits: DiscoveryTimeLimits, note: Callable[[str], None]) -> None:
        self.jobs: dict[str, Job] = {}
        self.memory_bytes: dict[str, int] = {}
        """Memory limit of devices whose memory is emulated."""
        self.probes: list[LinkProbe] = []
        self.note = note
        self.endpoint = endpoint
        self.run = run
        self.limits = limits

    def send(self, device: str, kind: str, header: dict[str, Any]) -> None:
        """Send a message to the agent of a device."""
        self.endpoint.send(device, Message(kind, header))

    def receive(self, kind: str, waiting_for: set[str]) -> Received:
        """Return the next message of that kind from one of those devices.

        Raises TryAgain if an agent ended or none answers in time, Infeasible if an agent ran out of memory.
        """
        deadline_s = time.monotonic() + self.limits.answer_s
        while time.monotonic() < deadline_s:
            received = self.endpoint.receive(POLL_S)
            if received is not None and received.message.kind == kind and received.sender in waiting_for:
                return received
            for device in sorted(self.jobs):
                code = self.jobs[device].poll()
                if code is not None and received is None:
                    raise self._failure(device, f"its discovery agent {self._exit_reason(device, code)}")
        device = min(waiting_for)
        raise self._failure(device, f"its discovery agent did not say {kind!r} within {self.limits.answer_s:g} s")

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
