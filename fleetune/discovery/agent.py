"""Discovery agent (`python -m fleetune.discovery.agent`): runs on a device and answers the discover stage.

It ends on request, when the stage is gone (the launcher kills it, or `idle_s` expires), and on any error, with one
sentence on stderr.

A message of a probe can be lost when a connection breaks, as it may on a busy machine. Messages between two peers keep
their order, so that the answer to a later message shows the loss: while an agent waits for an answer it sends an empty
ping every FOLLOW_S, and sends the lost one again when that is answered first.
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fleetune.contracts import json_io
from fleetune.discovery.agent_pool import BEAT, BEAT_S, STAGE, AgentHello, AgentTask
from fleetune.discovery.link_probe import ProbeRequest, RoundTrip, sweep
from fleetune.discovery.machine import inspect_machine, sample_load
from fleetune.errors import FleetuneError, TryAgain
from fleetune.links.authentication import KeyPair
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.message import Message, Received

FOLLOW_S = 5.0
"""Seconds without an answer after which an empty ping follows a ping."""


class Agent:
    """Answers the messages of the stage and of other agents on one device."""

    def __init__(self, task: AgentTask, endpoint: Endpoint, now_s: Callable[[], float] = time.monotonic) -> None:
        self._task = task
        self._now_s = now_s
        self._beat_at_s = now_s()
        self._endpoint = endpoint
        self._payload = memoryview(b"")
        self._pings = 0
        self._peer_cpu_s = 0.0
        """Processor time of the peer at its last answer."""

    def run(self) -> None:
        """Introduce this device, then serve requests until the stage sends `end`; TryAgain if it falls silent."""
        self._endpoint.connect(STAGE, self._task.stage_address, self._task.allowed[STAGE])
        self._beat("inspecting its machine", at_once=True)
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
                self.probe(json_io.load(ProbeRequest, header, "probe"))
            elif received.sender == STAGE and kind == "load":
                self._endpoint.send(STAGE, Message("load", json_io.dump(sample_load())))
            elif received.sender == STAGE and kind == "end":
                return

    def _connect_peers(self, addresses: dict[str, Any]) -> None:
        for peer, address in addresses.items():
            self._endpoint.connect(peer, str(address), self._task.allowed[peer])
        for peer in addresses:
            waited_s = 0.0
            while not self._is_connected(peer):
                waited_s += BEAT_S
                if waited_s >= self._task.answer_s:
                    raise TryAgain(f"{peer} did not admit this device within {self._task.answer_s:g} s")
                self._beat(f"connecting to {peer}")
        self._endpoint.send(STAGE, Message("ready", {}))

    def _is_connected(self, peer: str) -> bool:
        """Wait up to BEAT_S for the connection to a peer."""
        with suppress(TryAgain):
            self._endpoint.wait_connected(peer, BEAT_S)
        return self._endpoint.connected(peer)

    def _beat(self, doing: str, at_once: bool = False) -> None:
        """Tell the stage that this agent works, once in BEAT_S: less than any measurement would notice."""
        now_s = self._now_s()
        if at_once or now_s - self._beat_at_s >= BEAT_S:
            self._beat_at_s = now_s
            self._endpoint.send(STAGE, Message(BEAT, {"doing": doing}))

    def _answer(self, ping: Received) -> None:
        header = {**ping.message.header, "at_s": ping.at_s, "cpu_s": time.process_time()}
        self._endpoint.send(ping.sender, Message("pong", header))

    def probe(self, probe: ProbeRequest) -> None:
        """Measure the link to a peer, and tell the stage what was found."""
        self._payload = memoryview(bytearray(b"\x01") * probe.most_bytes)
        probed = sweep(lambda size: self._ping(probe, size), probe.budget_s, probe.most_bytes)
        self._payload = memoryview(b"")
        self._endpoint.send(STAGE, Message("probed", json_io.dump(probed)))

    def _ping(self, probe: ProbeRequest, size_bytes: int) -> RoundTrip:
        """Send `size_bytes` and wait for the peer's small answer; again if either is lost.

        Processor time includes all threads, because zmq's own threads encrypt. Every answer carries the peer's total,
        so its cost of one message is the difference between two answers.
        """
        peer, given_up_s = probe.peer, self._now_s() + self._task.answer_s
        while True:
            self._beat(f"probing its link to {peer}")
            self._pings += 1
            number, started_s, cpu_s = self._pings, self._now_s(), time.process_time()
            self._endpoint.send(peer, Message("ping", {"ping": number}, (self._payload[:size_bytes],)))
            received = self._await_answer(peer, number, given_up_s)
            if received is None:
                self._beat(f"probing its link to {peer}, which lost a message of {size_bytes} bytes", at_once=True)
                continue
            header = received.message.header
            round_trip_s, spent_s = self._now_s() - started_s, time.process_time() - cpu_s
            before_s, self._peer_cpu_s = self._peer_cpu_s, float(header["cpu_s"])
            back_s = round_trip_s - (float(header["at_s"]) - started_s)
            same_clock = probe.one_clock and 0 <= back_s <= round_trip_s  # False where the clocks differ after all
            return RoundTrip(round_trip_s, spent_s, self._peer_cpu_s - before_s, back_s if same_clock else None)

    def _await_answer(self, peer: str, number: int, given_up_s: float) -> Received | None:
        """Wait for the answer to a ping; None if it or the ping is lost.

        TryAgain at the time `given_up_s`, unless answers have arrived while this process itself was suspended.
        """
        follow_s = self._now_s() + FOLLOW_S
        while True:
            received = self._endpoint.receive(BEAT_S)
            if received is not None and received.sender == peer and (answered := _answered_ping(received)) >= number:
                return received if answered == number else None
            if received is None and self._now_s() >= given_up_s:
                raise TryAgain(f"{peer} did not answer a probe of {self._task.device} within {self._task.answer_s:g} s")
            self._beat(f"waiting for an answer of {peer}")
            if self._now_s() >= follow_s:
                self._pings += 1
                self._endpoint.send(peer, Message("ping", {"ping": self._pings}))
                follow_s = self._now_s() + FOLLOW_S


def _answered_ping(received: Received) -> int:
    """Number of the ping that a message answers; 0 if it is no answer."""
    number = received.message.header.get("ping")
    return number if received.message.kind == "pong" and isinstance(number, int) else 0


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
