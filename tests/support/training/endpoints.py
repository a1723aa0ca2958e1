"""Endpoints of one run on loopback."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from fleetune.links.authentication import new_key_pair
from fleetune.links.endpoint import Endpoint, Listen

COORDINATOR = "coordinator"
NAMES = (COORDINATOR, "a", "b", "c", "d", "e")
KEYS = {name: new_key_pair() for name in NAMES}
PATIENCE_S = 30.0


@contextmanager
def connected(names: Sequence[str], listen: Listen | None = None) -> Iterator[dict[str, Endpoint]]:
    """Open endpoints of one run, each connected to all others."""
    public = {name: KEYS[name].public for name in names}
    with ExitStack() as stack:
        ends = {
            name: stack.enter_context(Endpoint(name, KEYS[name], public, run="r", listen=listen, note=lambda _: None))
            for name in names
        }
        for name, end in ends.items():
            for other in names:
                if other != name:
                    end.connect(other, ends[other].address, public[other])
        yield ends
