"""Which devices are asked for (what is found is `contracts.fleet`)."""

from fleetune.contracts.fleet import LAUNCHERS
from fleetune.contracts.record import a_name, distinct, not_negative, one_of, positive, record
from fleetune.contracts.simulated import Simulated
from fleetune.errors import Refused

BYTES_PER_MBIT = 125_000


@record
class Emulate:
    """Hold a device below what its machine has, so that an uneven fleet fits on one machine."""

    cores: float | None = None
    """Share of CPU: 0.5 makes every computation take twice its CPU time."""
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.cores is not None:
            positive("emulate", cores=self.cores)
        if self.memory_bytes is not None:
            positive("emulate", memory_bytes=self.memory_bytes)


@record
class DeviceRequest:
    """One device of the fleet file."""

    name: str
    launcher: str = "process"
    accelerator: str = "auto"
    """`auto` takes an accelerator where there is one; else `cpu` or `cuda:N`."""
    emulate: Emulate = Emulate()
    simulated: Simulated | None = None
    """Speeds of hardware that is not there; in a file also the name of a file in configs/devices."""

    def __post_init__(self) -> None:
        a_name("device", self.name)
        one_of(f"device {self.name}", "launcher", self.launcher, LAUNCHERS)
        if self.accelerator not in ("auto", "cpu") and not self.accelerator.startswith("cuda:"):
            raise Refused(f"device {self.name}: accelerator is {self.accelerator!r}; allowed are auto, cpu, cuda:N")
        if self.simulated is not None and (self.emulate != Emulate() or self.accelerator != "auto"):
            raise Refused(
                f"device {self.name}: it is simulated, so emulate and accelerator say nothing about it; leave them out"
            )


@record
class Way:
    """One direction between two simulated devices, where it differs from the others."""

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


@record
class Links:
    """Links of a simulated fleet; those of real devices are measured."""

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


@record
class FleetRequest:
    """The `fleet` section of a run, or a file of configs/fleets."""

    devices: tuple[DeviceRequest, ...] = (DeviceRequest(name="here"),)
    tolerance: float = 0.1
    """A new measurement within this share of the stored one keeps the stored fleet."""
    links: Links | None = None
    """Of a simulated fleet, which needs them; None where they are measured."""

    def __post_init__(self) -> None:
        if not self.devices:
            raise Refused("fleet: devices is empty; name at least one")
        distinct("fleet", "device name", (device.name for device in self.devices))
        positive("fleet", tolerance=self.tolerance)
        self._prove_one_kind()
        names = [device.name for device in self.devices]
        for way in self.links.pairs if self.links else ():
            for name in (way.source, way.target):
                one_of(f"fleet: links.pairs {way.source} -> {way.target}", "device", name, names)

    @property
    def simulated(self) -> tuple[str, ...]:
        """Names of the devices that exist only as numbers: all or none."""
        return tuple(device.name for device in self.devices if device.simulated)

    def _prove_one_kind(self) -> None:
        """Simulated devices have no real ones beside them, and their links are given."""
        simulated = self.simulated
        real = [device.name for device in self.devices if device.name not in simulated]
        if simulated and real:
            raise Refused(
                f"fleet: {', '.join(simulated)} are simulated and {', '.join(real)} are real; "
                "nothing can be measured between them: make all simulated or none"
            )
        if simulated and self.links is None:
            raise Refused("fleet: its devices are simulated, so links cannot be measured; give links.mbit_per_s")
        if real and self.links is not None:
            raise Refused(
                "fleet: links are given, but its devices are real and their links are measured; leave them out"
            )
