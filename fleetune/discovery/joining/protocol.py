"""What a device and a host say to each other, once each has proven that it knows the token.

The device says `here` (an Introduction); the host answers `welcome`, or `refused` with `why`.
"""

import re
from dataclasses import field
from ipaddress import AddressValueError, IPv4Address

from fleetune.contracts.fleet import Engine
from fleetune.contracts.record import check_device_name, record
from fleetune.discovery.joining.engine_facts import EngineFacts
from fleetune.errors import Refused

RUN = "join"
"""Instead of a run's id: whoever knows the token belongs here, in any run."""
HOST, DEVICE = "host", "device"
REFUSALS, EARLIER_REFUSALS = "refused.log", "refused.log.1"
MOST_CHARACTERS = 64
PLACE = re.compile(r"tcp://([0-9.]{7,15}):([0-9]{1,5})")
MOST_PEM_CHARACTERS = 1 << 14


@record
class Introduction:
    """A device's first words."""

    name: str
    address: str
    """Of its engine: tcp://ADDRESS:PORT, open to the holder of the papers only."""
    answer_to: str
    """Where it hears the answer."""
    facts: EngineFacts
    ca: str
    cert: str
    key: str = field(repr=False)

    def __post_init__(self) -> None:
        a_joining_name(self.name)
        Engine(name=self.name, address=self.address, tls=".")  # proves the address
        _prove_place(f"device {self.name}: address", self.address)
        for what, text in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if len(text) > MOST_PEM_CHARACTERS:
                raise Refused(f"device {self.name}: {what} has {len(text)} characters; at most {MOST_PEM_CHARACTERS}")
        _prove_place(f"device {self.name}: answer_to", self.answer_to)


def _prove_place(owner: str, place: str) -> None:
    """A numeric address and a port: whatever else may be looked up, or means something to what connects to it."""
    found = PLACE.fullmatch(place)
    try:
        usable = found is not None and bool(IPv4Address(found[1])) and 0 < int(found[2]) < 1 << 16
    except AddressValueError:
        usable = False
    if not usable:
        raise Refused(f"{owner} is {place[:80]!r}; write tcp://ADDRESS:PORT, the address in numbers")


def a_joining_name(name: str) -> None:
    """Refuse what can be no device's name, or no folder's beside the log of refusals."""
    check_device_name(name)
    if len(name) > MOST_CHARACTERS or name in (REFUSALS, EARLIER_REFUSALS):
        raise Refused(
            f"device {name[:MOST_CHARACTERS]}: a name has at most {MOST_CHARACTERS} characters; not {REFUSALS}"
        )
