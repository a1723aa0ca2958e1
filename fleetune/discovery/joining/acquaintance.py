"""A device's side of the conversation with one host."""

import errno
import select
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fleetune.contracts import wire
from fleetune.discovery.joining.announcing import Announced
from fleetune.discovery.joining.protocol import DEVICE, HOST, RUN, Introduction
from fleetune.discovery.joining.surroundings import Surroundings
from fleetune.discovery.joining.token import Pairs
from fleetune.errors import Refused
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.message import Message

ADMIT_S = 5.0
REST_S = 5.0
"""A host that does not admit this device is knocked at no more for so long."""
CONNECT_S = 1.0
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Turns:
    """Who may knock: one at a time, in the order in which they asked. Anybody can announce hosts, and each knock costs
    sockets and threads."""

    waiting: deque[object] = field(default_factory=deque)

    def take(self, who: object) -> bool:
        """Whether it is the turn of `who`, until it leaves."""
        if not any(each is who for each in self.waiting):
            self.waiting.append(who)
        return self.waiting[0] is who

    def leave(self, who: object) -> None:
        """Let the next one knock; safe to repeat."""
        for each in [each for each in self.waiting if each is who]:
            self.waiting.remove(each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a device needs to introduce itself anywhere."""

    keys: Pairs
    introduce: Callable[[str, str], Introduction]
    """By its own address on the way to a host, and the address where it hears the answer."""
    surroundings: Surroundings
    say: Callable[[str], None]
    turns: Turns = field(default_factory=Turns)


class Acquaintance:
    """Knocks at a host's addresses, introduces the device once it is admitted, and again when the host has come back.

    Nothing waits here: `look` is called every now and then. At most one address is tried at a time, by all
    acquaintances of a device together; what is open otherwise has proven that it knows the token.
    """

    def __init__(self, host: Announced, device: Device) -> None:
        self._host, self._device = host, device
        self._places: deque[Place] = deque(host.places)
        """Those still to be tried in this round."""
        self._dialled: socket.socket | None = None
        self._line: Endpoint | None = None
        self._admitted = self._met = self._listens = False
        self._turn_s = device.surroundings.clock()
        """When the newest step began, or when the rest ends."""
        self._last_said = ""

    def look(self) -> None:
        """Do what is due."""
        now_s = self._device.surroundings.clock()
        if self._admitted:
            self._attend(now_s)
        elif self._line is not None:
            self._wait_for_admission(now_s)
        elif self._dialled is not None:
            self._wait_for_answer(now_s)
        elif now_s >= self._turn_s and self._device.turns.take(self):
            self._dial(now_s)

    @property
    def admitted(self) -> bool:
        """Whether the host has let this device in, and is still there."""
        return self._admitted

    def close(self) -> None:
        """Leave the host."""
        self._device.turns.leave(self)
        if self._dialled is not None:
            self._dialled.close()
        if self._line is not None:
            self._line.close(linger_s=0)
        self._dialled = self._line = None
        self._admitted = False

    def _dial(self, now_s: float) -> None:
        """A plain connection first: it costs one socket, and tells whether anybody listens."""
        self._turn_s = now_s
        self._dialled = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if self._dialled.connect_ex(self._places[0]) not in (0, errno.EINPROGRESS):
            self._next(now_s)

    def _wait_for_answer(self, now_s: float) -> None:
        assert self._dialled is not None
        _, answered, _ = select.select([], [self._dialled], [], 0)
        if answered and self._dialled.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
            self._knock(now_s)
        elif answered or now_s - self._turn_s >= CONNECT_S:
            self._next(now_s)

    def _knock(self, now_s: float) -> None:
        """The address listens: prove to it that this device knows the token, and have it do the same."""
        assert self._dialled is not None
        self._dialled.close()
        self._dialled, self._turn_s, self._listens = None, now_s, True
        address, port = self._places[0]
        keys = self._device.keys
        listen = Listen(bind=f"tcp://{self._device.surroundings.towards(address)}:*", max_message_bytes=1 << 10)
        line = Endpoint(DEVICE, keys.device, {HOST: keys.host.public}, run=RUN, listen=listen, note=lambda _: None)
        self._line = line
        try:
            line.connect(HOST, f"tcp://{address}:{port}", keys.host.public)
        except Refused:
            self._next(now_s)

    def _wait_for_admission(self, now_s: float) -> None:
        assert self._line is not None
        if self._line.connected(HOST):
            self._admitted = True
            self._device.turns.leave(self)
            self._introduce(self._line)
            self._hear(self._line)
        elif now_s - self._turn_s >= ADMIT_S:
            self._next(now_s)

    def _attend(self, now_s: float) -> None:
        """Hear an admitted host; one that has gone is knocked at again, in its turn."""
        assert self._line is not None
        if self._line.connected(HOST):
            return self._hear(self._line)
        self.close()
        self._places, self._turn_s, self._listens = deque(self._host.places), now_s, False

    def _introduce(self, line: Endpoint) -> None:
        address, port = self._places[0]
        own = self._device.surroundings.towards(address)
        line.send(HOST, Message("here", wire.dump(self._device.introduce(own, line.address))))
        self._met = True
        self._say(f"host {self._host.name} at {address}:{port} admits this device, which has introduced itself")

    def _hear(self, line: Endpoint) -> None:
        while (received := line.receive(0)) is not None:
            if received.message.kind == "welcome":
                self._say(f"host {self._host.name}: this device has joined its fleet")
            elif received.message.kind == "refused":
                self._say(f"host {self._host.name} refuses this device: {received.message.header.get('why')}")

    def _next(self, now_s: float) -> None:
        """Nobody admitted this device here: on to the next address, after whoever waits; after the last, a rest."""
        self.close()
        self._places.popleft()
        self._turn_s = now_s
        if not self._places:
            self._rest(now_s)

    def _rest(self, now_s: float) -> None:
        """A host that admitted this device once has ended, which is as it should be."""
        self._turn_s = now_s + REST_S
        listens, self._listens, self._places = self._listens, False, deque(self._host.places)
        if self._met:
            return
        if listens:
            self._say(f"host {self._host.name} does not admit this device: is its token another?")
        else:
            self._say(f"host {self._host.name} does not listen now; this device introduces itself when it does")

    def _say(self, sentence: str) -> None:
        if sentence != self._last_said:
            self._device.say(sentence)
        self._last_said = sentence
