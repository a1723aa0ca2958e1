"""Messages to one peer leave no faster than the share of a link allows."""

import threading

from fleetune.links.message import Message
from fleetune.links.peer import MIN_PIECE_BYTES, PacedSender, piece_bytes


class Line:
    """A clock that only waiting moves, and what was sent at which time."""

    def __init__(self, messages: int, header_bytes: int = 0) -> None:
        self.now_s = 0.0
        self._header_bytes = header_bytes
        self.sent: list[tuple[float, str]] = []
        self.messages, self.done = messages, threading.Event()

    def wait(self, seconds: float) -> None:
        """Move the clock."""
        self.now_s += seconds

    def now(self) -> float:
        """Return the time; all is done once the sender asks for it behind the last message."""
        now_s = self.now_s
        if len(self.sent) == self.messages:
            self.done.set()
        return now_s

    def send(self, message: Message) -> int:
        """Note when a message leaves; return its bytes."""
        self.sent.append((self.now_s, message.kind))
        return self._header_bytes + sum(memoryview(part).nbytes for part in message.parts)


def departures(sizes: tuple[int, ...], header_bytes: int = 0) -> list[tuple[float, str]]:
    """When messages a, b, ... with so many bytes of parts leave at 100 bytes a second."""
    line = Line(len(sizes), header_bytes)
    sender = PacedSender(line.send, 100.0, now_s=line.now, wait_s=line.wait)
    for kind, size in zip("abc", sizes, strict=False):
        sender.send(Message(kind, {}, (bytes(size),)))
    assert line.done.wait(30)
    sender.close()
    return line.sent


def test_messages_leave_one_after_the_other_at_the_rate() -> None:
    """At 100 bytes a second messages of 50, 100 and 10 bytes leave after 0, 0.5 and 1.5 s, in order."""
    assert departures((50, 100, 10)) == [(0.0, "a"), (0.5, "b"), (1.5, "c")]


def test_headers_count() -> None:
    """Bug: parts alone were counted, and small pieces with long headers took a third more of a link than its share."""
    assert departures((50, 0, 10), header_bytes=50) == [(0.0, "a"), (1.0, "b"), (1.5, "c")]


def test_idle_time_is_not_saved_up() -> None:
    """After a pause of 10 s the next two messages are a second apart, not sent at once."""
    line = Line(1)
    sender = PacedSender(line.send, 100.0, now_s=line.now, wait_s=line.wait)
    sender.send(Message("a", {}, (bytes(100),)))
    assert line.done.wait(30)
    line.now_s, line.messages = 10.0, 3
    line.done.clear()
    for kind in "bc":
        sender.send(Message(kind, {}, (bytes(100),)))
    assert line.done.wait(30)
    sender.close()
    assert line.sent[1:] == [(10.0, "b"), (11.0, "c")]


def test_what_is_queued_can_be_dropped() -> None:
    """Messages behind one that takes 10 s are dropped while the first of them waits; the next one keeps to the rate."""
    line, waits = Line(2), threading.Event()
    go_on = threading.Event()

    def wait(seconds: float) -> None:
        waits.set()
        assert go_on.wait(30)
        line.wait(seconds)

    sender = PacedSender(line.send, 100.0, now_s=line.now, wait_s=wait)
    for kind in ("a", "old", "older"):
        sender.send(Message(kind, {}, (bytes(1000),)))
    assert waits.wait(30)
    sender.drop_queued()
    sender.send(Message("b", {}, (bytes(10),)))
    go_on.set()
    assert line.done.wait(30)
    sender.close()
    assert line.sent == [(0.0, "a"), (10.0, "b")]


def test_closing_drops_what_waits() -> None:
    """A worker that ends does not wait for its share of the link."""
    line = Line(1)
    sender = PacedSender(line.send, 1.0, now_s=line.now)
    sender.send(Message("a", {}, (bytes(1000),)))
    sender.send(Message("b", {}, (bytes(1000),)))
    assert line.done.wait(30)
    sender.close()
    assert [kind for _, kind in line.sent] == ["a"]


def test_chunks_are_short_in_time() -> None:
    """A message lasts 20 ms at most, but is not smaller than its header is worth."""
    assert piece_bytes(1e6, 1 << 30) == 20_000
    assert piece_bytes(1e3, 1 << 30) == MIN_PIECE_BYTES
    assert piece_bytes(1e12, 1 << 20) == 1 << 20
