"""What a device and a host say to each other, once each has proven that it knows the token.

The device says `here` (an Introduction); the host answers `welcome`, or `refused` with `why`.
"""

from dataclasses import field

from fleetune.contracts.engine import Engine
from fleetune.contracts.record import a_name, record
from fleetune.discovery.joining.engine_facts import EngineFacts
from fleetune.errors import Refused

RUN = "join"
"""Instead of a run's id: whoever knows the token belongs here, in any run."""
HOST, DEVICE = "host", "device"
REFUSALS = "refused.log"
MOST_CHARACTERS = 64
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
        for what, text in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if len(text) > MOST_PEM_CHARACTERS:
                raise Refused(f"device {self.name}: {what} has {len(text)} characters; at most {MOST_PEM_CHARACTERS}")
        if not self.answer_to.startswith("tcp://"):
            raise Refused(f"device {self.name}: answer_to is {self.answer_to!r}; write tcp://ADDRESS:PORT")


def a_joining_name(name: str) -> None:
    """Refuse what can be no device's name, or no folder's beside the log of refusals."""
    a_name("device", name)
    if len(name) > MOST_CHARACTERS or name == REFUSALS:
        raise Refused(
            f"device {name[:MOST_CHARACTERS]}: a name has at most {MOST_CHARACTERS} characters; not {REFUSALS}"
        )
