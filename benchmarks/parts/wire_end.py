"""One of two processes between which tensors travel: by the library's exchange, and by zmq and CURVE alone.

`python -m benchmarks.parts.wire_end`, an End as JSON on stdin. Both ends hold an exchange and a bare socket; on the
bare socket the sender also says what comes next. The sender prints a line of JSON per transfer: both ends' usage.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import zmq

from benchmarks.parts.usage import Meter
from fleetune.contracts import wire
from fleetune.contracts.record import record
from fleetune.links.authentication import KeyPair
from fleetune.links.endpoint import Endpoint
from fleetune.links.message import CHUNK_BYTES, Message
from fleetune.training.exchange import Exchange, TransferKey

OURS, BARE, PING, END = "ours", "bare", "ping", "end"
PINGS = 200
PATIENCE_S = 60.0


@record
class End:
    """What an end is told."""

    public: str
    secret: str
    other: str
    """Public key of the other end."""
    sends: bool
    meeting: str
    """File in which the receiver leaves the addresses of its exchange and its bare socket for the sender."""
    size_bytes: int
    repeats: int


class Wires:
    """The exchange and the bare socket of one end."""

    def __init__(self, end: End) -> None:
        keys = KeyPair(public=end.public.encode(), secret=end.secret.encode())
        self.name, self.other = ("sender", "receiver") if end.sends else ("receiver", "sender")
        self.endpoint = Endpoint(self.name, keys, {self.other: end.other.encode()}, run="wire", note=_note)
        self.exchange = Exchange(self.endpoint, "nobody", torch.device("cpu"), 0)
        self._context = zmq.Context(io_threads=2)
        self.bare = self._context.socket(zmq.DEALER if end.sends else zmq.ROUTER)
        self.bare.sndhwm = self.bare.rcvhwm = 0
        self.bare.rcvtimeo = round(PATIENCE_S * 1000)
        self.bare.curve_secretkey = keys.secret
        (self._call if end.sends else self._open)(end, keys)

    def _open(self, end: End, keys: KeyPair) -> None:
        self.bare.curve_server = True
        self.bare.bind("tcp://127.0.0.1:*")
        addresses = [self.endpoint.address, self.bare.getsockopt_string(zmq.LAST_ENDPOINT)]
        part = Path(end.meeting).with_suffix(".part")
        part.write_text(json.dumps(addresses), encoding="ascii")
        part.rename(end.meeting)

    def _call(self, end: End, keys: KeyPair) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not Path(end.meeting).exists() and time.monotonic() < give_up_s:
            time.sleep(0.01)
        ours, bare = json.loads(Path(end.meeting).read_text(encoding="ascii"))
        self.bare.curve_serverkey, self.bare.curve_publickey = end.other.encode(), keys.public
        self.bare.connect(bare)
        self.endpoint.connect(self.other, ours, end.other.encode())
        self.endpoint.wait_connected(self.other, PATIENCE_S)

    def close(self) -> None:
        """End both."""
        self.endpoint.close()
        self._context.destroy(linger=0)


def key(number: int) -> TransferKey:
    """Of the exchange's transfer `number`."""
    return TransferKey("values", 0, 1, number, "sender")


def receive(end: End) -> None:
    """Do as the sender says."""
    wires = Wires(end)
    number = 0
    while True:
        sender, word, *rest = wires.bare.recv_multipart()
        if word == END.encode():
            break
        if word == b"address":
            wires.endpoint.connect(wires.other, rest[0].decode(), end.other.encode())
        meter = Meter()
        wires.bare.send_multipart([sender, b"go"])
        got: Any = None
        if word == OURS.encode():
            got = wires.exchange.receive(key(number)).tensors[0]
            number += 1
        elif word == BARE.encode():
            got = wires.bare.recv_multipart(copy=False)
        elif word == PING.encode():
            _echo(wires)
        usage = meter.read()
        wires.bare.send_multipart([sender, json.dumps([usage.cpu_s, usage.peak_bytes]).encode()])
        del got
    wires.close()


def send(end: End) -> None:
    """Bare and ours in turns, then small messages there and back."""
    wires = Wires(end)
    _tell(wires, b"address", wires.endpoint.address.encode())
    wires.bare.recv()
    tensor = torch.ones(end.size_bytes // 4)
    view = memoryview(tensor.numpy()).cast("B")
    for number in range(end.repeats):
        for kind in (BARE, OURS):
            _tell(wires, kind.encode())
            meter = Meter()
            if kind == BARE:
                chunks = [view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES)]
                wires.bare.send_multipart(chunks, copy=False)
            else:
                wires.exchange.send(wires.other, key(number), {0: tensor})
            theirs = json.loads(wires.bare.recv())
            mine = meter.read()
            _say({"kind": kind, "send": [mine.cpu_s, mine.peak_bytes], "receive": theirs})
    _say({"kind": PING, "round_trips_s": _round_trips_s(wires)})
    wires.bare.send(END.encode())
    time.sleep(0.1)  # the bare socket does not linger
    wires.close()


def _tell(wires: Wires, *words: bytes) -> None:
    wires.bare.send_multipart(words)
    assert wires.bare.recv() == b"go"


def _echo(wires: Wires) -> None:
    for _ in range(PINGS):
        received = wires.endpoint.receive(PATIENCE_S)
        assert received is not None
        wires.endpoint.send(wires.other, Message("commit", received.message.header))


def _round_trips_s(wires: Wires) -> list[float]:
    _tell(wires, PING.encode())
    found = []
    for number in range(PINGS):
        start_s = time.perf_counter()
        wires.endpoint.send(wires.other, Message("ready", {"round": number, "loss": 0.5, "square_norm": 0.25}))
        assert wires.endpoint.receive(PATIENCE_S) is not None
        found.append(time.perf_counter() - start_s)
    wires.bare.recv()
    return found


def _say(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


def _note(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def main() -> None:
    """Be the end that stdin says."""
    torch.set_num_threads(1)
    end = wire.parse(End, sys.stdin.buffer.readline(), "end")
    (send if end.sends else receive)(end)


if __name__ == "__main__":
    main()
