"""Cost of sending tensors: memory copies on each side, and CPU time beside zmq and CURVE alone.

Copies are counted by peak memory: every simultaneous copy of a tensor of 64 MiB raises the peak of its process by
64 MiB. The receiver must hold the tensor once, which does not count as a copy. The bare side sends frames of the same
size over zmq and CURVE and drops what arrives.

`python -m benchmarks.runtime.transfers` is one of the two processes that send tensors to each other, by the library's
exchange and by the bare socket in turns. It reads its configuration as JSON from stdin. On the bare socket the sender
announces each transfer; it prints one line of JSON per transfer, with the usage of both ends.
"""

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import zmq

from benchmarks.report import Figure, median_and_spread
from benchmarks.runtime.metering import UsageMeter
from fleetune.contracts import json_io
from fleetune.contracts.link_frames import FRAME_BYTES
from fleetune.contracts.record import record
from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.links.authentication import KeyPair, new_key_pair
from fleetune.links.endpoint import Endpoint
from fleetune.links.message import Message
from fleetune.training.exchange import Exchange, TransferKey

SIZE_BYTES = 64 << 20
SIDES = ("send", "receive")


def transfer_costs(folder: Path, repeats: int) -> list[Figure]:
    """Figures of transfers between two processes, both ways of sending in turns; `folder` receives their logs."""
    events = _transfers(folder, repeats + 1)
    of = {kind: [e for e in events if e["kind"] == kind][1:] for kind in (OURS, BARE)}  # the first warms up
    figures = []
    for side in SIDES:
        held = statistics.median(e[side][1] for e in of[OURS]) / SIZE_BYTES
        figures.append(
            Figure(
                name=f"copies_{side}",
                value=round(held - (1.0 if side == "receive" else 0.0), 2),
                unit="copies",
                target=1.0,
                better="lower",
                about=f"memory beyond the tensor itself while {SIZE_BYTES >> 20} MiB travel",
            )
        )
    for side in SIDES:
        ours, bare = (_per_gb(of[kind], side) for kind in (OURS, BARE))
        figures.append(
            Figure(
                name=f"cpu_{side}",
                unit="x bare",
                better="lower",
                about=f"CPU time beside zmq + CURVE alone: {ours:.2f} and {bare:.2f} s/GB",
                **median_and_spread([a[side][0] / b[side][0] for a, b in zip(of[OURS], of[BARE], strict=True)]),
            )
        )
    trips_s = next(e["round_trips_s"] for e in events if e["kind"] == PING)
    about = "a small message there and back, median"
    value = statistics.median(trips_s)
    return [*figures, Figure(name="control_round_trip", unit="s", better="lower", about=about, value=value)]


def _per_gb(events: Sequence[dict[str, Any]], side: str) -> float:
    return statistics.median(float(e[side][0]) for e in events) / SIZE_BYTES * 1e9


def _transfers(folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Start both processes; returns the sender's events."""
    keys = {side: new_key_pair() for side in SIDES}
    jobs: list[Job] = []

    def start(side: str, other: str) -> Job:
        config = PeerConfig(
            public=keys[side].public.decode(),
            secret=keys[side].secret.decode(),
            other=keys[other].public.decode(),
            sends=side == "send",
            meeting=str(folder / "meeting.json"),
            size_bytes=SIZE_BYTES,
            repeats=repeats,
        )
        line = json_io.text(config).replace("\n", " ").encode()
        command = Command(module="benchmarks.runtime.transfers", first_line=line, log=folder / f"{side}.log")
        jobs.append(ProcessLauncher().start(command))
        return jobs[-1]

    try:
        start("receive", "send")
        sender = start("send", "receive")
        events = [json.loads(line) for line in sender.lines()]
        if sender.wait() != 0:
            raise RuntimeError(f"the sender failed:\n{sender.tail()}")
        return events
    finally:
        for job in jobs:
            job.stop(grace_s=0.5)


OURS, BARE, PING, END = "ours", "bare", "ping", "end"
PINGS = 200
PATIENCE_S = 60.0


@record
class PeerConfig:
    """Configuration of one of the two processes."""

    public: str
    secret: str
    other: str
    """Public key of the other end."""
    sends: bool
    meeting: str
    """File where the receiver writes the addresses of its exchange and its bare socket for the sender."""
    size_bytes: int
    repeats: int


class PeerSockets:
    """The exchange and the bare zmq socket of one process."""

    def __init__(self, config: PeerConfig) -> None:
        keys = KeyPair(public=config.public.encode(), secret=config.secret.encode())
        self.name, self.other = ("sender", "receiver") if config.sends else ("receiver", "sender")
        self.endpoint = Endpoint(self.name, keys, {self.other: config.other.encode()}, run="wire", note=_print_note)
        self.exchange = Exchange(self.endpoint, "nobody", torch.device("cpu"))
        self._context = zmq.Context(io_threads=2)
        self.bare = self._context.socket(zmq.DEALER if config.sends else zmq.ROUTER)
        self.bare.sndhwm = self.bare.rcvhwm = 0
        self.bare.rcvtimeo = round(PATIENCE_S * 1000)
        self.bare.curve_secretkey = keys.secret
        (self._call if config.sends else self._open)(config, keys)

    def _open(self, config: PeerConfig, keys: KeyPair) -> None:
        self.bare.curve_server = True
        self.bare.bind("tcp://127.0.0.1:*")
        addresses = [self.endpoint.address, self.bare.getsockopt_string(zmq.LAST_ENDPOINT)]
        part = Path(config.meeting).with_suffix(".part")
        part.write_text(json.dumps(addresses), encoding="ascii")
        part.rename(config.meeting)

    def _call(self, config: PeerConfig, keys: KeyPair) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not Path(config.meeting).exists() and time.monotonic() < give_up_s:
            time.sleep(0.01)
        ours, bare = json.loads(Path(config.meeting).read_text(encoding="ascii"))
        self.bare.curve_serverkey, self.bare.curve_publickey = config.other.encode(), keys.public
        self.bare.connect(bare)
        self.endpoint.connect(self.other, ours, config.other.encode())
        self.endpoint.wait_connected(self.other, PATIENCE_S)

    def close(self) -> None:
        """Close both sockets."""
        self.endpoint.close()
        self._context.destroy(linger=0)


def key(number: int) -> TransferKey:
    """TransferKey of the exchange's transfer `number`."""
    return TransferKey("values", 0, "main", 1, number, "sender")


def receive(config: PeerConfig) -> None:
    """Receiver: follow the sender's announcements until it ends."""
    sockets = PeerSockets(config)
    number = 0
    while True:
        sender, word, *rest = sockets.bare.recv_multipart()
        if word == END.encode():
            break
        if word == b"address":
            sockets.endpoint.connect(sockets.other, rest[0].decode(), config.other.encode())
        meter = UsageMeter()
        sockets.bare.send_multipart([sender, b"go"])
        got: Any = None
        if word == OURS.encode():
            got = sockets.exchange.receive(key(number)).tensors[0]
            number += 1
        elif word == BARE.encode():
            got = sockets.bare.recv_multipart(copy=False)
        elif word == PING.encode():
            _echo(sockets)
        usage = meter.read()
        sockets.bare.send_multipart([sender, json.dumps([usage.cpu_s, usage.peak_bytes]).encode()])
        del got
    sockets.close()


def send(config: PeerConfig) -> None:
    """Sender: tensors by bare zmq and by the exchange in turns, then round trips of small messages."""
    sockets = PeerSockets(config)
    _announce(sockets, b"address", sockets.endpoint.address.encode())
    sockets.bare.recv()
    tensor = torch.ones(config.size_bytes // 4)
    view = memoryview(tensor.numpy()).cast("B")
    for number in range(config.repeats):
        for kind in (BARE, OURS):
            _announce(sockets, kind.encode())
            meter = UsageMeter()
            if kind == BARE:
                chunks = [view[start : start + FRAME_BYTES] for start in range(0, len(view), FRAME_BYTES)]
                sockets.bare.send_multipart(chunks, copy=False)
            else:
                sockets.exchange.send(sockets.other, key(number), {0: tensor})
            theirs = json.loads(sockets.bare.recv())
            mine = meter.read()
            _print_event({"kind": kind, "send": [mine.cpu_s, mine.peak_bytes], "receive": theirs})
    _print_event({"kind": PING, "round_trips_s": _round_trips_s(sockets)})
    sockets.bare.send(END.encode())
    time.sleep(0.1)  # the bare socket does not linger
    sockets.close()


def _announce(sockets: PeerSockets, *words: bytes) -> None:
    sockets.bare.send_multipart(words)
    assert sockets.bare.recv() == b"go"


def _echo(sockets: PeerSockets) -> None:
    for _ in range(PINGS):
        received = sockets.endpoint.receive(PATIENCE_S)
        assert received is not None
        sockets.endpoint.send(sockets.other, Message("commit", received.message.header))


def _round_trips_s(sockets: PeerSockets) -> list[float]:
    _announce(sockets, PING.encode())
    found = []
    for number in range(PINGS):
        start_s = time.perf_counter()
        sockets.endpoint.send(sockets.other, Message("ready", {"round": number, "loss": 0.5, "square_norm": 0.25}))
        assert sockets.endpoint.receive(PATIENCE_S) is not None
        found.append(time.perf_counter() - start_s)
    sockets.bare.recv()
    return found


def _print_event(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


def _print_note(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def main() -> None:
    """Read the configuration from stdin and send or receive."""
    torch.set_num_threads(1)
    config = json_io.parse(PeerConfig, sys.stdin.buffer.readline(), "end")
    (send if config.sends else receive)(config)


if __name__ == "__main__":
    main()
