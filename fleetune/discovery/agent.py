"""Discovery agent (`python -m fleetune.discovery.agent`): runs on a device and answers the discover stage.

It ends on request, when the stage is gone (the launcher kills it, or `idle_s` expires), and on any error, with one
sentence on stderr.
"""

import sys
import time
from typing import Any

from fleetune.contracts import json_io
from fleetune.discovery.agent_pool import STAGE, AgentHello, AgentTask
from fleetune.discovery.link_probe import ProbeRequest, RoundTrip, sweep
from fleetune.discovery.machine_facts import inspect_machine
from fleetune.discovery.machine_load import sample_load
from fleetune.errors import FleetuneError, TryAgain
from fleetune.links.authentication import KeyPair
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.message import Message, Received


class Agent:
    """Answers the messages of the stage and of other agents on one device."""

    def __init__(self, task: AgentTask, endpoint: Endpoint) -> None:
        self._task = task
        self._endpoint = endpoint
        self._payload = memoryview(b"")
        self._pings = 0
        self._peer_cpu_s = 0.0
        """Processor time of the peer at its last answer."""

    def run(self) -> None:
        """Introduce this device, then serve requests until the stage sends `end`; TryAgain if it falls silent."""
        self._endpoint.connect(STAGE, self._task.stage_address, self._task.allowed[STAGE])
        hello = AgentHello(address=self._endpoint.address, facts=inspect_machine(self._task.accelerator))
        self._endpoint.send(STAGE, Message("here", json_io.dump(hello)))
        while True:
            received = self._endpoint.receive(self._task.idle_s)
            if received is None:
                raise TryAgain(f"the stage has been silent for {self._task.idle_s:g} s")
            kind, header = received.message.kind, received.message.header
            if kind == "ping":
                self._answer(received)
            elif received.sender == STAGE and kind == "peers":
                self._connect_peers(header)
            elif received.sender == STAGE and kind == "probe":
                self._probe(json_io.load(ProbeRequest, header, "probe"))
            elif received.sender == STAGE and kind == "load":
                self._endpoint.send(STAGE, Message("load", json_io.dump(sample_load())))
            elif received.sender == STAGE and kind == "end":
                return

    def _connect_peers(self, addresses: dict[str, Any]) -> None:
        for peer, address in addresses.items():
            self._endpoint.connect(peer, str(address), self._task.allowed[peer])
        for peer in addresses:
            self._endpoint.wait_connected(peer, self._task.idle_s)
        self._endpoint.send(STAGE, Message("ready", {}))

    def _answer(self, ping: Received) -> None:
        header = {**ping.message.header, "at_s": ping.at_s, "cpu_s": time.process_time()}
        self._endpoint.send(ping.sender, Message("pong", header))

    def _probe(self, probe: ProbeRequest) -> None:
        self._payload = memoryview(bytearray(b"\x01") * probe.most_bytes)
        probed = sweep(lambda size: self._ping(probe, size), probe.budget_s, probe.most_bytes)
        self._payload = memoryview(b"")
        self._endpoint.send(STAGE, Message("probed", json_io.dump(probed)))

    def _ping(self, probe: ProbeRequest, size_bytes: int) -> RoundTrip:
        """Send `size_bytes` and wait for the peer's small answer.

        Processor time includes all threads, because zmq's own threads encrypt. Every answer carries the peer's total,
        so its cost of one message is the difference between two answers.
        """
        self._pings += 1
        peer = probe.peer
        started_s, cpu_s = time.monotonic(), time.process_time()
        self._endpoint.send(peer, Message("ping", {"ping": self._pings}, (self._payload[:size_bytes],)))
        while (received := self._endpoint.receive(self._task.idle_s)) is not None:
            header = received.message.header
            if received.sender == peer and header.get("ping") == self._pings:
                round_trip_s, spent_s = time.monotonic() - started_s, time.process_time() - cpu_s
                before_s, self._peer_cpu_s = self._peer_cpu_s, float(header["cpu_s"])
                back_s = round_trip_s - (float(header["at_s"]) - started_s)
                same_clock = probe.one_clock and 0 <= back_s <= round_trip_s  # False where the clocks differ after all
                return RoundTrip(round_trip_s, spent_s, self._peer_cpu_s - before_s, back_s if same_clock else None)
        raise TryAgain(f"{peer} did not answer {size_bytes} bytes within {self._task.idle_s:g} s")


def main() -> int:
    """Read the task from stdin and serve; return the exit code of an error, or 0."""
    try:
        task = json_io.parse(AgentTask, sys.stdin.buffer.readline(), "agent's task")
        keys = KeyPair(public=task.public, secret=task.secret)
        listen = Listen(bind=task.door.bind, address=task.door.address, delays_s=task.door.delays_s)
        with Endpoint(task.device, keys, task.allowed, run=task.run, listen=listen, note=_note) as endpoint:
            try:
                Agent(task, endpoint).run()
            finally:
                endpoint.close(linger_s=0)  # nothing is left to send
    except FleetuneError as error:
        _note(str(error))
        return error.exit_code
    return 0


def _note(sentence: str) -> None:
    sys.stderr.write(sentence + "\n")


if __name__ == "__main__":
    sys.exit(main())
