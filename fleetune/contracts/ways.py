"""What is said of the links between devices: stated where a fleet is simulated, asked for where it is emulated."""

from fleetune.contracts.record import distinct, not_negative, positive, record
from fleetune.errors import Refused

BYTES_PER_MBIT = 125_000


@record
class Way:
    """One direction between two devices, where it differs from the others."""

    source: str
    target: str
    mbit_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        owner = f"links: pair {self.source} -> {self.target}"
        positive(owner, mbit_per_s=self.mbit_per_s)
        not_negative(owner, latency_s=self.latency_s)
        if self.source == self.target:
            raise Refused(f"{owner}: a link joins two different devices")

    @property
    def bytes_per_s(self) -> float:
        """What arrives in a second."""
        return self.mbit_per_s * BYTES_PER_MBIT


@record
class Links:
    """Links of a simulated fleet, or those that containers are held to; all others are only measured."""

    mbit_per_s: float
    latency_s: float = 0.0
    pairs: tuple[Way, ...] = ()

    def __post_init__(self) -> None:
        positive("links", mbit_per_s=self.mbit_per_s)
        not_negative("links", latency_s=self.latency_s)
        distinct("links", "pair", (f"{way.source} -> {way.target}" for way in self.pairs))

    def way(self, source: str, target: str) -> Way:
        """What is said of one direction."""
        for way in self.pairs:
            if (way.source, way.target) == (source, target):
                return way
        return Way(source=source, target=target, mbit_per_s=self.mbit_per_s, latency_s=self.latency_s)
