"""A worker's connections, and those that it can make."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fleetune.links.endpoint import Endpoint
from fleetune.training.exchange import Exchange
from fleetune.training.liveness import Heartbeat
from fleetune.training.task import COORDINATOR


class Peer(NamedTuple):
    """Another worker: where it listens, if it lives, and its public key."""

    address: str
    public: bytes


class WorkerLinks:
    """What a worker sends and receives by."""

    def __init__(self, exchange: Exchange, endpoint: Endpoint, beat: Heartbeat, peers: Mapping[str, Peer]) -> None:
        self.exchange, self.endpoint, self.beat = exchange, endpoint, beat
        self._peers = dict(peers)
        self._connected = set[str]()
        self._sent_before: dict[str, int] = {}

    def follow(self, addresses: Mapping[str, str], gone: Iterable[str]) -> None:
        """Drop connections to workers that have ended. addresses: of those that have come back; gone: the others.

        A connection that stays would find the next worker at the same address, as of a container, and tell it of
        messages that it has never lost.
        """
        known = {name: "" for name in gone} | dict(addresses)
        for name, address in known.items():
            if name not in self._peers or self._peers[name].address == address:
                continue
            self._peers[name] = self._peers[name]._replace(address=address)
            if name in self._connected:
                self.endpoint.disconnect(name)
                self._connected.discard(name)
                self._sent_before.pop(name, None)

    def connect(self, peers: Iterable[str]) -> None:
        """Connect to these workers, unless that is done."""
        for name in set(peers) - self._connected:
            self.endpoint.connect(name, *self._peers[name])
            self._connected.add(name)

    def round_bytes(self) -> dict[str, int]:
        """Return the bytes of a round that ends now, by worker; where a link is shared some of them wait to be sent."""
        found = Counter(self.bytes_sent())
        while True:
            waiting = self.exchange.queued_bytes()
            more = self.bytes_sent()
            found.update(more)
            if not more:  # else some of what waited was sent while it was counted
                found.update(waiting)
                return dict(found)

    def bytes_sent(self) -> dict[str, int]:
        """Return the bytes sent to each worker since the last call."""
        now = {peer: n for peer, n in self.endpoint.sent_bytes.items() if peer != COORDINATOR}
        delta = {peer: n - self._sent_before.get(peer, 0) for peer, n in now.items()}
        self._sent_before = now
        return {peer: n for peer, n in delta.items() if n}
