"""The side that looks for devices: it listens for a while, and keeps who joined."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from fleetune.contracts import wire
from fleetune.contracts.fleet_request import Join
from fleetune.discovery.joining.announcing import announced
from fleetune.discovery.joining.front import Front
from fleetune.discovery.joining.joined import Joined, kept, reached
from fleetune.discovery.joining.protocol import DEVICE, HOST, RUN, Introduction
from fleetune.discovery.joining.refusals import TURNED_AWAY, Refusals
from fleetune.discovery.joining.surroundings import HOST_PORT, Surroundings, listening
from fleetune.discovery.joining.token import Pairs, pairs, read_token
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.message import Message

LOOK_S = 0.2
FAREWELL_S = 1.0
"""Whoever was turned away must not keep a place on the front."""
MOST_PATH_CHARACTERS = 70
"""Of a folder for unix sockets, whose whole path has at most 107."""
MOST_ANSWERED = 256
"""Each takes a connection; one that is started again counts again."""
MOST_BULK_BYTES = 1 << 10
"""An introduction is all header."""


def listen_for(
    join: Join, folder: Path, note: Callable[[str], None], surroundings: Surroundings | None = None
) -> tuple[Joined, ...]:
    """Devices that introduce themselves within `join.wait_s`, in the order of their names.

    Their papers are kept in folder/NAME; who is not let in is told through `note` and written to folder/refused.log.
    Refused when the token file will not do, nobody can listen here, or two devices have one name.
    """
    here = surroundings or Surroundings()
    keys = pairs(read_token(Path(join.token_file).expanduser()))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    refusals = Refusals(folder, note, here.now)
    with closing(refusals), _open(keys, here, refusals) as (endpoint, front):
        note(f"listening {join.wait_s:g} s for devices that join, at port {front.port} of {', '.join(here.addresses)}")
        desk = _Desk(endpoint, keys, folder, note, refusals)
        with announced(here.addresses, front.port):
            deadline_s = here.clock() + join.wait_s
            while here.clock() < deadline_s:
                received = endpoint.receive(LOOK_S)
                if received is not None and received.message.kind == "here":
                    desk.hear(received.message)
    return tuple(desk.joined[name] for name in sorted(desk.joined))


class _Desk:
    """Where devices introduce themselves."""

    def __init__(
        self, endpoint: Endpoint, keys: Pairs, folder: Path, note: Callable[[str], None], refusals: Refusals
    ) -> None:
        self.joined: dict[str, Joined] = {}
        self._known: dict[str, Introduction] = {}
        self._endpoint, self._keys, self._folder, self._note, self._refusals = endpoint, keys, folder, note, refusals

    def hear(self, message: Message) -> None:
        """Let a device join, or say why it may not; Refused when another one has its name."""
        try:
            introduction = wire.load(Introduction, message.header, "introduction")
        except Refused as error:
            return self._refusals.add("a device with the token", str(error))
        name = introduction.name
        try:
            self._prove_new(introduction)
            device = kept(introduction, reached(introduction), self._folder)
        except FleetuneError as error:
            self._answer(introduction, Message("refused", {"why": str(error)}))
            if isinstance(error, Refused):
                raise
            return self._refusals.add(f"device {name}", str(error))
        self._answer(introduction, Message("welcome", {}))
        if name not in self.joined:
            self._note(f"device {name} has joined: engine {device.facts.version} at {introduction.address}")
        self.joined[name], self._known[name] = device, introduction

    def _prove_new(self, introduction: Introduction) -> None:
        """No other device has this name; one that was started again has another address, and its old one is silent."""
        earlier = self._known.get(introduction.name)
        if earlier is None or earlier.address == introduction.address:
            return
        with suppress(TryAgain):
            reached(earlier)
            raise Refused(
                f"two devices join as {introduction.name!r}, at {earlier.address} and at {introduction.address}; "
                "start one of them with another name: fleetune join --name NAME"
            )

    def _answer(self, introduction: Introduction, message: Message) -> None:
        peer = introduction.answer_to
        if peer not in self._endpoint.sent_bytes:
            if len(self._endpoint.sent_bytes) >= MOST_ANSWERED:
                return self._refusals.add(f"device {introduction.name}", f"{MOST_ANSWERED} devices have been answered")
            self._endpoint.connect(peer, peer, self._keys.device.public)
        self._endpoint.send(peer, message)


@contextmanager
def _open(keys: Pairs, here: Surroundings, refusals: Refusals) -> Iterator[tuple[Endpoint, Front]]:
    """Listen. Behind the front the endpoint is a unix socket: the front knows who knocks."""
    usual = tempfile.gettempdir()
    folder = usual if len(usual) <= MOST_PATH_CHARACTERS else "/tmp"
    with tempfile.TemporaryDirectory(prefix="fleetune-join-", dir=folder) as private:
        socket = f"{private}/host"
        listen = Listen(bind=f"ipc://{socket}", max_message_bytes=MOST_BULK_BYTES)
        known = {DEVICE: keys.device.public}
        with (
            Endpoint(HOST, keys.host, known, run=RUN, listen=listen, note=lambda _: None) as endpoint,
            Front(
                listening(here, usual=HOST_PORT),
                socket,
                ended=refusals.ended,
                farewell_s=FAREWELL_S,
                unproven_bytes=TURNED_AWAY,
            ) as front,
        ):
            yield endpoint, front
