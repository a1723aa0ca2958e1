"""`python -m fleetune.discovery.agent`: runs on a device while the fleet is discovered, and answers the stage.

It ends when told to, when its stage is gone (its launcher sees to that, and `idle_s` where the launcher cannot), and
with one sentence on stderr when anything fails.
"""

import sys
import time
from typing import Any

from fleetune.contracts import wire
from fleetune.discovery.facts import look
from fleetune.discovery.protocol import STAGE, AgentTask, Here, Probe, Trip
from fleetune.discovery.sweep import sweep
from fleetune.errors import FleetuneError, TryAgain
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.keys import KeyPair
from fleetune.links.message import Message, Received


class Agent:
    """One device's side of the conversation."""

    def __init__(self, task: AgentTask, endpoint: Endpoint) -> None:
        self._task = task
        self._endpoint = endpoint
        self._payload = memoryview(b"")
        self._pings = 0
        self._peer_cpu_s = 0.0
        """Processor time that the peer had spent when it answered last."""

    def run(self) -> None:
        """Introduce this device, then do what is asked until told to end."""
        self._endpoint.connect(STAGE, self._task.stage_address, self._task.allowed[STAGE])
        here = Here(address=self._endpoint.address, facts=look(self._task.accelerator))
        self._endpoint.send(STAGE, Message("here", wire.dump(here)))
        while True:
            received = self._endpoint.receive(self._task.idle_s)
            if received is None:
                raise TryAgain(f"the stage has been silent for {self._task.idle_s:g} s")
            kind, header = received.message.kind, received.message.header
            if kind == "ping":
                self._answer(received)
            elif received.sender == STAGE and kind == "peers":
                self._meet(header)
            elif received.sender == STAGE and kind == "probe":
                self._probe(wire.load(Probe, header, "probe"))
            elif received.sender == STAGE and kind == "end":
                return

    def _meet(self, addresses: dict[str, Any]) -> None:
        for peer, address in addresses.items():
            self._endpoint.connect(peer, str(address), self._task.allowed[peer])
        for peer in addresses:
            self._endpoint.wait_connected(peer, self._task.idle_s)
        self._endpoint.send(STAGE, Message("ready", {}))

    def _answer(self, ping: Received) -> None:
        header = {**ping.message.header, "at_s": ping.at_s, "cpu_s": time.process_time()}
        self._endpoint.send(ping.sender, Message("pong", header))

    def _probe(self, probe: Probe) -> None:
        self._payload = memoryview(bytearray(b"\x01") * probe.most_bytes)
        probed = sweep(lambda size: self._ping(probe, size), probe.budget_s, probe.most_bytes)
        self._payload = memoryview(b"")
        self._endpoint.send(STAGE, Message("probed", wire.dump(probed)))

    def _ping(self, probe: Probe, size_bytes: int) -> Trip:
        """Send `size_bytes` and wait for the peer's small answer.

        Both sides' processor time is that of all threads: those of zmq encrypt. The peer tells its own with every
        answer, so what it spent on this message lies between two answers.
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
                told = probe.one_clock and 0 <= back_s <= round_trip_s  # else it is another clock after all
                return Trip(round_trip_s, spent_s, self._peer_cpu_s - before_s, back_s if told else None)
        raise TryAgain(f"{peer} did not answer {size_bytes} bytes within {self._task.idle_s:g} s")


def main() -> int:
    """Read the task, serve, and end with the exit code of whatever went wrong."""
    try:
        task = wire.parse(AgentTask, sys.stdin.buffer.readline(), "agent's task")
        keys = KeyPair(public=task.public, secret=task.secret)
        listen = Listen(bind=task.door.bind, address=task.door.address, delays_s=task.door.delays_s)
        with Endpoint(task.device, keys, task.allowed, run=task.run, listen=listen, note=_note) as endpoint:
            try:
                Agent(task, endpoint).run()
            finally:
                endpoint.close(linger_s=0)  # all has been said
    except FleetuneError as error:
        _note(str(error))
        return error.exit_code
    return 0


def _note(sentence: str) -> None:
    sys.stderr.write(sentence + "\n")


if __name__ == "__main__":
    sys.exit(main())
