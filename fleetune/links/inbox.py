"""Inbox: the receiving side of an endpoint, one authenticated ROUTER socket that one IO thread reads into a queue.

A delay queue behind it holds messages back to emulate the latency of a link: every kernel can shape rates, but not
every kernel can delay packets.

Unauthenticated clients can occupy memory for one frame at most. Admitted peers are trusted with more, because zmq
collects all frames of a message before it delivers the first.
"""

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import zmq
from zmq.utils.monitor import parse_monitor_message

from fleetune.contracts.link_frames import FRAME_BYTES
from fleetune.errors import Refused
from fleetune.links.authentication import KeyPair, ReplayGuard, configure_curve_server, zap_reply
from fleetune.links.message import MAX_HEADER_BYTES, SEQUENCE, Envelope, check_frames, parse_header
from fleetune.links.peer import set_socket_options

FRAME_SLACK_BYTES = 1024
MAX_NOTES = 50
MAX_MESSAGES_PER_POLL = 16
HANDSHAKE_FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


@dataclass(frozen=True, slots=True)
class InboundMessage:
    """Validated message; the receiving thread joins the frames of its parts."""

    sender: str
    envelope: Envelope
    frames: list[memoryview]
    at_s: float


class Wake:
    """Ends the wait of a receiving thread, without a message."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Run, peers (name -> public key) and message size that an inbox admits."""

    run: str
    allowed: Mapping[str, bytes]
    limit_bytes: int
    urgent: str = ""
    """Kind of messages with a queue of their own."""


class Inbox:
    """Owns the ROUTER, the authenticator and the IO thread."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: KeyPair,
        bind: str,
        admission: Admission,
        note: Callable[[str], None],
    ) -> None:
        self.arrived: queue.SimpleQueue[InboundMessage | Wake | None] = queue.SimpleQueue()
        """Validated messages; None when the IO thread has ended."""
        self.urgent: queue.SimpleQueue[InboundMessage | None] = queue.SimpleQueue()
        """Validated messages of the kind `Admission.urgent`; None when the IO thread has ended."""
        self.refused = 0
        self.failure = ""
        """Error that ended the IO thread; empty while it runs and after `close`."""
        self.lost_from: dict[str, int] = {}
        """sender -> number of its messages known to be lost."""
        self.last_arrival_s: dict[str, float] = {}
        """sender -> arrival of its newest message, in seconds of this machine's monotonic clock."""
        self._admission, self._note = admission, note
        self._names = {key: name for name, key in admission.allowed.items()}
        self._replay_guard = ReplayGuard()
        self._lock = threading.Lock()
        self._closed = False
        self._changes: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        """What the IO thread has to do with monitors."""
        self._wake_receiver, self._wake_sender = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        self._wake_receiver.bind("inproc://wake")
        self._wake_sender.connect("inproc://wake")
        self._zap = context.socket(zmq.REP)
        self._zap.bind("inproc://zeromq.zap.01")  # before the first client can connect
        self._router = context.socket(zmq.ROUTER)
        self._handlers: dict[zmq.Socket[bytes], Callable[[], None]] = {
            self._router: self._read,
            self._zap: self._authenticate,
        }
        self._monitors: set[zmq.Socket[bytes]] = set()
        self._poller = zmq.Poller()
        for socket in (self._wake_receiver, self._zap, self._router):
            self._poller.register(socket, zmq.POLLIN)
        self._bind(keys, bind)
        self._thread = threading.Thread(target=self._run, name="fleetune-links", daemon=True)
        self._thread.start()

    def add_monitor(self, monitor: zmq.Socket[bytes], on_event: Callable[[int], None]) -> None:
        """Have the IO thread call `on_event` with every event of a monitor socket, which `close` closes."""
        with self._lock:
            self._monitors.add(monitor)
            self._changes.put(lambda: self._register_monitor(monitor, on_event))
            self._wake(b"monitor")

    def remove_monitor(self, monitor: zmq.Socket[bytes]) -> None:
        """Have the IO thread close a monitor socket, whose monitored socket must be closed before."""
        with self._lock:
            self._changes.put(lambda: self._drop_monitor(monitor))
            self._wake(b"monitor")

    def close(self) -> None:
        """End the IO thread and close all sockets; the monitored sockets must be closed before.

        Monitors close last, because zmq blocks forever when it delivers an event to a closed monitor.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._wake(b"close")
        self._thread.join()
        self._close_monitors()

    def _wake(self, word: bytes) -> None:
        with suppress(zmq.ZMQError):  # the IO thread has already ended
            self._wake_sender.send(word, zmq.NOBLOCK)

    def _bind(self, keys: KeyPair, bind: str) -> None:
        set_socket_options(self._router)
        self._router.maxmsgsize = max(FRAME_BYTES, MAX_HEADER_BYTES) + FRAME_SLACK_BYTES
        configure_curve_server(self._router, keys.secret)
        monitor = self._router.get_monitor_socket(HANDSHAKE_FAILURES)
        self._monitors.add(monitor)
        self._register_monitor(monitor, self._handshake_failed)
        try:
            self._router.bind(bind)
        except zmq.ZMQError as error:
            self._close_sockets()
            self._close_monitors()
            raise Refused(f"bind: {bind!r} cannot be listened on ({error}); give tcp://ADDRESS:PORT or :*") from None
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)

    def _run(self) -> None:
        try:
            while self._poll_once():
                pass
        except Exception as error:  # a bug must not leave receivers waiting forever
            self.failure = f"links: the IO thread ended ({type(error).__name__}: {error})"
            self._notify(self.failure)
        finally:
            self._close_sockets()
            self.arrived.put(None)
            self.urgent.put(None)

    def _poll_once(self) -> bool:
        """Wait for socket events and handle them; False after a request to close."""
        for socket, _ in self._poller.poll():
            if socket in self._handlers:
                self._handlers[socket]()
            elif socket is not self._wake_receiver:  # a monitor that was dropped just now
                continue
            elif self._wake_receiver.recv() == b"monitor":
                self._changes.get_nowait()()
            else:
                return False
        return True

    def _register_monitor(self, monitor: zmq.Socket[bytes], on_event: Callable[[int], None]) -> None:
        def handle() -> None:
            on_event(int(parse_monitor_message(monitor.recv_multipart())["event"]))

        self._handlers[monitor] = handle
        self._poller.register(monitor, zmq.POLLIN)

    def _drop_monitor(self, monitor: zmq.Socket[bytes]) -> None:
        del self._handlers[monitor]
        self._poller.unregister(monitor)
        with self._lock:
            self._monitors.discard(monitor)
        monitor.close(linger=0)

    def _read(self) -> None:
        """Read a bounded number of messages, so that the authenticator is served in between."""
        for _ in range(MAX_MESSAGES_PER_POLL):
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
            self.last_arrival_s[sender] = arrived.at_s
            if self._admission.urgent and arrived.envelope.kind == self._admission.urgent:
                self.urgent.put(arrived)
            elif arrived.envelope.kind != SEQUENCE:
                self.arrived.put(arrived)

    def _check(self, sender: str, frames: list[zmq.Frame]) -> InboundMessage:
        envelope = parse_header(frames[0].buffer)
        if envelope.run != self._admission.run:
            raise Refused("it belongs to another run")
        views = [frame.buffer for frame in frames[1:]]
        check_frames(envelope, views, self._admission.limit_bytes)
        missed = self._replay_guard.advance(sender, envelope.session, envelope.sequence)
        if missed:
            # a new dict, because other threads read the old one
            self.lost_from = {**self.lost_from, sender: self.lost_from.get(sender, 0) + missed}
            self._notify(f"{missed} earlier messages from {sender} were lost or refused")
        return InboundMessage(sender, envelope, views, time.monotonic())

    def _authenticate(self) -> None:
        reply, name = zap_reply(self._zap.recv_multipart(), self._names)
        self._zap.send_multipart(reply)
        if name is None:
            self._refuse("client turned away: its key is not on the list of this run")

    def _handshake_failed(self, event: int) -> None:
        if event != zmq.EVENT_HANDSHAKE_FAILED_AUTH:  # already counted by _authenticate
            self._refuse("client turned away: it does not speak CURVE with the key of this server")

    def _refuse(self, why: str) -> None:
        self.refused += 1
        if self.refused <= MAX_NOTES:
            self._notify(why + (" (further ones are only counted)" if self.refused == MAX_NOTES else ""))

    def _notify(self, sentence: str) -> None:
        with suppress(Exception):  # an error in the callback must not end the IO thread
            self._note(sentence)

    def _close_sockets(self) -> None:
        self._router.disable_monitor()
        for socket in (self._router, self._zap, self._wake_receiver):
            socket.close(linger=0)

    def _close_monitors(self) -> None:
        for socket in (self._wake_sender, *self._monitors):
            socket.close(linger=0)


class DelayQueue:
    """Wraps the queue `arrived` and delays every message by its sender's seconds in `delays_s` after its arrival.

    Messages of one sender keep their order; messages of other senders can overtake them. Safe for several receiving
    threads, of which one waits at a time, without polling, until a message arrives or the first delayed one is due.
    """

    def __init__(
        self,
        arrived: "queue.SimpleQueue[InboundMessage | Wake | None]",
        delays_s: Mapping[str, float],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arrived, self._delays_s, self._clock_s = arrived, dict(delays_s), clock_s
        self._due: list[tuple[float, int, InboundMessage]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def get(self, timeout_s: float | None) -> InboundMessage | Wake | None:
        """Return the next due message, with `at_s` set to its due time; a wake at once; None after `arrived` ended.

        Raises queue.Empty if no message is due within `timeout_s` (None: wait forever; 0: do not wait).
        """
        deadline_s = None if timeout_s is None else self._clock_s() + timeout_s
        if not self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise queue.Empty
        try:
            return self._next(deadline_s)
        finally:
            self._lock.release()

    def _next(self, deadline_s: float | None) -> InboundMessage | Wake | None:
        while not (self._due and self._due[0][0] <= self._clock_s()):
            try:
                arrived = self._arrived.get(timeout=self._wait_s(deadline_s))
            except queue.Empty:
                if deadline_s is not None and self._clock_s() >= deadline_s:
                    raise
                continue
            if not isinstance(arrived, InboundMessage):
                return arrived
            delay_s = self._delays_s.get(arrived.sender, 0.0)
            if delay_s == 0:
                return arrived
            due_s = arrived.at_s + delay_s
            heapq.heappush(self._due, (due_s, next(self._numbers), replace(arrived, at_s=due_s)))
        return heapq.heappop(self._due)[2]

    def _wait_s(self, deadline_s: float | None) -> float | None:
        """Return the maximum seconds to wait for the next arrival, at least 0; None: forever."""
        moments_s = [self._due[0][0]] if self._due else []
        if deadline_s is not None:
            moments_s.append(deadline_s)
        return max(0.0, min(moments_s) - self._clock_s()) if moments_s else None
