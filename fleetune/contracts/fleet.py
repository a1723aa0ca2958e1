"""A fleet: the machines that take part and the directed links between them."""

from typing import Annotated

from pydantic import Field

from fleetune.contracts.engine import IMAGE, LOCAL, Engine
from fleetune.contracts.record import a_device_name, distinct, not_negative, positive, record
from fleetune.contracts.simulated import Simulated
from fleetune.contracts.ways import Links
from fleetune.errors import Refused

PROCESS, DOCKER = "process", "docker"
LAUNCHERS = (PROCESS, DOCKER)


@record
class Device:
    """One machine as it was found."""

    name: str
    memory_bytes: int
    """What training may use in all, the runtime's own memory included."""
    cores: float
    """CPU cores the device computes with; below what the machine has when the device is emulated."""
    threads: Annotated[int, Field(exclude_if=lambda value: value == 1)] = 1
    """That its process computes with, when it is profiled as when it trains; never more than its cores."""
    accelerator: str = "cpu"
    """Where tensors live: `cpu`, or `cuda:N`."""
    launcher: str = PROCESS
    engine: Annotated[str, Field(exclude_if=lambda value: value == LOCAL)] = LOCAL
    """Name of the engine whose containers do its work."""
    fingerprint: str
    """Changes when the machine, its software or its emulated limits change; part of what profiles are cached by."""
    emulated: bool = False
    link_cpu_s_per_byte: float = 0.0
    """Processor seconds that a byte on a link costs the device, sent or received: encryption, mostly."""
    simulated: Annotated[Simulated | None, Field(exclude_if=lambda value: value is None)] = None
    """Its speeds, when it exists only as numbers; not written where it is real."""

    def __post_init__(self) -> None:
        a_device_name(self.name)
        positive(f"device {self.name}", memory_bytes=self.memory_bytes, cores=self.cores, threads=self.threads)
        not_negative(f"device {self.name}", link_cpu_s_per_byte=self.link_cpu_s_per_byte)


@record
class Link:
    """One direction between two devices: a message of n bytes takes latency_s + n / bytes_per_s."""

    source: str
    target: str
    latency_s: float
    bytes_per_s: float
    fit_error: float = 0.0
    """Median relative distance of the probe's times from the fitted line."""

    def __post_init__(self) -> None:
        owner = f"link {self.source} -> {self.target}"
        positive(owner, bytes_per_s=self.bytes_per_s)
        not_negative(owner, latency_s=self.latency_s, fit_error=self.fit_error)
        if self.source == self.target:
            raise Refused(f"{owner}: a link joins two different devices")


@record
class Fleet:
    """The `fleet` artifact: every device, and a link for every ordered pair of them."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    engines: Annotated[tuple[Engine, ...], Field(exclude_if=lambda value: not value)] = ()
    image: Annotated[str, Field(exclude_if=lambda value: value == IMAGE)] = IMAGE
    """What containers of its devices are made of."""
    emulated_links: Annotated[Links | None, Field(exclude_if=lambda value: value is None)] = None
    """What links between containers are held to; `links` says what was measured then."""

    def __post_init__(self) -> None:
        if not self.devices:
            raise Refused("fleet: it needs at least one device")
        names = [device.name for device in self.devices]
        distinct("fleet", "device name", names)
        pairs = {(link.source, link.target) for link in self.links}
        wanted = {(a, b) for a in names for b in names if a != b}
        if pairs != wanted or len(self.links) != len(wanted):
            odd = sorted(pairs ^ wanted) or [("a pair", "given twice")]
            raise Refused(f"fleet: links must cover every ordered pair of devices once (at fault: {odd[0]})")

    @property
    def simulated(self) -> tuple[str, ...]:
        """Names of the devices that exist only as numbers."""
        return tuple(device.name for device in self.devices if device.simulated)

    def device(self, name: str) -> Device:
        """The device of that name; refused with the list of names when there is none."""
        for device in self.devices:
            if device.name == name:
                return device
        raise Refused(f"fleet: no device {name!r}; it has {', '.join(d.name for d in self.devices)}")

    def link(self, source: str, target: str) -> Link:
        """The directed link between two devices of the fleet."""
        for link in self.links:
            if (link.source, link.target) == (source, target):
                return link
        raise Refused(f"fleet: no link {source} -> {target}")
