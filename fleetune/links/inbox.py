"""The receiving side: one ROUTER behind the gate, read by one IO thread into a queue.

Strangers are stopped before they can make this process hold more than one frame. Peers on the list are trusted with its
memory: zmq collects all frames of a message before anybody sees the first.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from fleetune.errors import Refused
from fleetune.links.gate import Sequences, open_only_to_curve, zap_answer
from fleetune.links.keys import KeyPair
from fleetune.links.message import CHUNK_BYTES, MAX_HEADER_BYTES, SEQUENCE, Envelope, check_frames, parse_header
from fleetune.links.peer import patient

FRAME_SLACK_BYTES = 1024
MOST_NOTES = 50
MOST_PER_TURN = 16
HANDSHAKE_FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A checked message whose long parts are not joined yet (the receiving thread does that)."""

    sender: str
    envelope: Envelope
    frames: list[memoryview]
    at_s: float


@dataclass(frozen=True, slots=True)
class Door:
    """What an inbox admits."""

    run: str
    allowed: Mapping[str, bytes]
    limit_bytes: int


class Inbox:
    """Owns the ROUTER, the authenticator and the IO thread."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], keys: KeyPair, bind: str, door: Door, note: Callable[[str], None]
    ) -> None:
        self.arrived: queue.SimpleQueue[Arrived | None] = queue.SimpleQueue()
        """Checked messages; None when the IO thread has ended."""
        self.refused = 0
        self.failure = ""
        """Why the IO thread ended, where nobody asked it to."""
        self.lost_from: dict[str, int] = {}
        """sender -> how many of its messages are known to be lost."""
        self.heard_s: dict[str, float] = {}
        """sender -> when its newest message came, of this machine's monotonic clock."""
        self._door, self._listener = door, note
        self._names = {key: name for name, key in door.allowed.items()}
        self._sequences = Sequences()
        self._lock = threading.Lock()
        self._closed = False
        self._watches: queue.SimpleQueue[tuple[zmq.Socket[bytes], Callable[[int], None]]] = queue.SimpleQueue()
        self._bell, self._ring = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        self._bell.bind("inproc://bell")
        self._ring.connect("inproc://bell")
        self._zap = context.socket(zmq.REP)
        self._zap.bind("inproc://zeromq.zap.01")  # before any client can knock
        self._router = context.socket(zmq.ROUTER)
        self._handlers: dict[zmq.Socket[bytes], Callable[[], None]] = {
            self._router: self._read,
            self._zap: self._answer,
        }
        self._monitors: list[zmq.Socket[bytes]] = []
        self._poller = zmq.Poller()
        for socket in (self._bell, self._zap, self._router):
            self._poller.register(socket, zmq.POLLIN)
        self._open(keys, bind)
        self._thread = threading.Thread(target=self._run, name="fleetune-links", daemon=True)
        self._thread.start()

    def watch(self, monitor: zmq.Socket[bytes], saw: Callable[[int], None]) -> None:
        """From now on `saw` gets every event of that monitor, in the IO thread; `close` closes the monitor."""
        with self._lock:
            self._watches.put((monitor, saw))
            self._tell(b"watch")

    def close(self) -> None:
        """End the IO thread and close every socket; the sockets that are watched must have been closed before.

        zmq waits for ever to hand an event to a monitor that has gone, so monitors go last.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._tell(b"close")
        self._thread.join()
        while not self._watches.empty():
            self._monitors.append(self._watches.get()[0])
        self._close_ears()

    def _tell(self, word: bytes) -> None:
        with suppress(zmq.ZMQError):  # an IO thread that has ended needs telling no more
            self._ring.send(word, zmq.NOBLOCK)

    def _open(self, keys: KeyPair, bind: str) -> None:
        patient(self._router)
        self._router.maxmsgsize = max(CHUNK_BYTES, MAX_HEADER_BYTES) + FRAME_SLACK_BYTES
        open_only_to_curve(self._router, keys.secret)
        self._attend(self._router.get_monitor_socket(HANDSHAKE_FAILURES), self._handshake_failed)
        try:
            self._router.bind(bind)
        except zmq.ZMQError as error:
            self._close_sockets()
            self._close_ears()
            raise Refused(f"bind: {bind!r} cannot be listened on ({error}); give tcp://ADDRESS:PORT or :*") from None
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:  # a bug here must not leave receivers waiting for ever
            self.failure = f"links: the IO thread ended ({type(error).__name__}: {error})"
            self._say(self.failure)
        finally:
            self._close_sockets()
            self.arrived.put(None)

    def _turn(self) -> bool:
        """Wait until something happens and handle it; False once it is time to end."""
        for socket, _ in self._poller.poll():
            if socket is not self._bell:
                self._handlers[socket]()
            elif self._bell.recv() == b"watch":
                self._attend(*self._watches.get_nowait())
            else:
                return False
        return True

    def _attend(self, monitor: zmq.Socket[bytes], saw: Callable[[int], None]) -> None:
        def handle() -> None:
            saw(int(parse_monitor_message(monitor.recv_multipart())["event"]))

        self._monitors.append(monitor)
        self._handlers[monitor] = handle
        self._poller.register(monitor, zmq.POLLIN)

    def _read(self) -> None:
        """Take what has arrived; a few messages at a time, so that the authenticator gets its turn."""
        for _ in range(MOST_PER_TURN):
            try:
                _, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            sender = str(frames[0].get("User-Id"))
            try:
                arrived = self._check(sender, frames)
            except Refused as error:
                self._refuse(f"message from {sender} dropped: {error}")
                continue
            self.heard_s[sender] = arrived.at_s
            if arrived.envelope.kind != SEQUENCE:
                self.arrived.put(arrived)

    def _check(self, sender: str, frames: list[zmq.Frame]) -> Arrived:
        envelope = parse_header(frames[0].buffer)
        if envelope.run != self._door.run:
            raise Refused("it belongs to another run")
        views = [frame.buffer for frame in frames[1:]]
        check_frames(envelope, views, self._door.limit_bytes)
        missed = self._sequences.advance(sender, envelope.session, envelope.sequence)
        if missed:
            self.lost_from = {**self.lost_from, sender: self.lost_from.get(sender, 0) + missed}  # readers keep theirs
            self._say(f"{missed} earlier messages from {sender} were lost or refused")
        return Arrived(sender, envelope, views, time.monotonic())

    def _answer(self) -> None:
        reply, name = zap_answer(self._zap.recv_multipart(), self._names)
        self._zap.send_multipart(reply)
        if name is None:
            self._refuse("client turned away: its key is not on the list of this run")

    def _handshake_failed(self, event: int) -> None:
        if event != zmq.EVENT_HANDSHAKE_FAILED_AUTH:  # those were counted when the authenticator answered
            self._refuse("client turned away: it does not speak CURVE with the key of this server")

    def _refuse(self, why: str) -> None:
        self.refused += 1
        if self.refused <= MOST_NOTES:
            self._say(why + (" (further ones are only counted)" if self.refused == MOST_NOTES else ""))

    def _say(self, sentence: str) -> None:
        with suppress(Exception):  # whoever listens must not be able to end the IO thread
            self._listener(sentence)

    def _close_sockets(self) -> None:
        self._router.disable_monitor()
        for socket in (self._router, self._zap, self._bell):
            socket.close(linger=0)

    def _close_ears(self) -> None:
        for socket in (self._ring, *self._monitors):
            socket.close(linger=0)
