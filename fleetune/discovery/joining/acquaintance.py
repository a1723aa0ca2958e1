"""A device's side of the conversation with one host."""

import socket
from collections.abc import Callable
from dataclasses import dataclass

from fleetune.contracts import wire
from fleetune.discovery.joining.announcing import Announced
from fleetune.discovery.joining.protocol import DEVICE, HOST, RUN, Introduction
from fleetune.discovery.joining.surroundings import Surroundings
from fleetune.discovery.joining.token import Pairs
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.message import Message

ADMIT_S = 5.0
REST_S = 5.0
"""A host that does not admit this device is knocked at no more for so long."""
CONNECT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a device needs to introduce itself anywhere."""

    keys: Pairs
    introduce: Callable[[str, str], Introduction]
    """By its own address on the way to a host, and the address where it hears the answer."""
    surroundings: Surroundings
    say: Callable[[str], None]


class Acquaintance:
    """Knocks at a host's addresses, introduces the device once it is admitted, and again when the host has come back.

    Nothing waits here: `look` is called every now and then.
    """

    def __init__(self, host: Announced, device: Device) -> None:
        self._host, self._device = host, device
        self._lines: dict[str, Endpoint] = {}
        self._admitted: str | None = None
        self._met = False
        self._turn_s = device.surroundings.clock()
        """When the knocking began, or when the rest ends."""
        self._last_said = ""

    def look(self) -> None:
        """Do what is due."""
        now_s = self._device.surroundings.clock()
        if not self._lines:
            if now_s >= self._turn_s:
                self._knock(now_s)
            return
        if self._admitted is not None and not self._lines[self._admitted].connected(HOST):
            self._admitted, self._turn_s = None, now_s
        if self._admitted is None:
            self._admitted = next((place for place, line in self._lines.items() if line.connected(HOST)), None)
            if self._admitted is not None:
                self._introduce(self._admitted)
        if self._admitted is not None:
            self._hear(self._lines[self._admitted])
        elif now_s - self._turn_s >= ADMIT_S:
            self._rest(now_s)

    @property
    def admitted(self) -> bool:
        """Whether the host has let this device in, and is still there."""
        return self._admitted is not None

    def close(self) -> None:
        """Leave the host."""
        for line in self._lines.values():
            line.close(linger_s=0)
        self._lines.clear()
        self._admitted = None

    def _knock(self, now_s: float) -> None:
        self._turn_s = now_s
        keys = self._device.keys
        for address, port in self._host.places:
            listen = Listen(bind=f"tcp://{self._device.surroundings.towards(address)}:*", max_message_bytes=1 << 10)
            line = Endpoint(DEVICE, keys.device, {HOST: keys.host.public}, run=RUN, listen=listen, note=lambda _: None)
            self._lines[f"{address}:{port}"] = line
            line.connect(HOST, f"tcp://{address}:{port}", keys.host.public)

    def _introduce(self, place: str) -> None:
        line = self._lines[place]
        own = self._device.surroundings.towards(place.partition(":")[0])
        line.send(HOST, Message("here", wire.dump(self._device.introduce(own, line.address))))
        self._met = True
        self._say(f"host {self._host.name} at {place} admits this device, which has introduced itself")

    def _hear(self, line: Endpoint) -> None:
        while (received := line.receive(0)) is not None:
            if received.message.kind == "welcome":
                self._say(f"host {self._host.name}: this device has joined its fleet")
            elif received.message.kind == "refused":
                self._say(f"host {self._host.name} refuses this device: {received.message.header.get('why')}")

    def _rest(self, now_s: float) -> None:
        """Nobody admitted this device in time; a host that did once has ended, which is as it should be."""
        self.close()
        self._turn_s = now_s + REST_S
        if self._met:
            return
        if any(_listens(*place) for place in self._host.places):
            self._say(f"host {self._host.name} does not admit this device: is its token another?")
        else:
            self._say(f"host {self._host.name} does not listen now; this device introduces itself when it does")

    def _say(self, sentence: str) -> None:
        if sentence != self._last_said:
            self._device.say(sentence)
        self._last_said = sentence


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True
