"""Which devices are asked for (what is found is `contracts.fleet`)."""

from fleetune.contracts.engine import IMAGE, LOCAL, Engine
from fleetune.contracts.fleet import DOCKER, LAUNCHERS
from fleetune.contracts.record import a_device_name, distinct, one_of, positive, record
from fleetune.contracts.simulated import Simulated
from fleetune.contracts.ways import Links
from fleetune.errors import Refused


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
    """`process` runs what it does on this machine, `docker` in containers of its engine."""
    engine: str = LOCAL
    """Name of one of the fleet's engines; `local` is that of this machine."""
    accelerator: str = "auto"
    """`auto` takes an accelerator where there is one; else `cpu` or `cuda:N`."""
    threads: int | None = None
    """That it computes with; None: as many as it has cores, or its share of them (see discovery.threads)."""
    emulate: Emulate = Emulate()
    simulated: Simulated | None = None
    """Speeds of hardware that is not there; in a file also the name of a file in configs/devices."""

    def __post_init__(self) -> None:
        a_device_name(self.name)
        one_of(f"device {self.name}", "launcher", self.launcher, LAUNCHERS)
        if self.accelerator not in ("auto", "cpu") and not self.accelerator.startswith("cuda:"):
            raise Refused(f"device {self.name}: accelerator is {self.accelerator!r}; allowed are auto, cpu, cuda:N")
        if self.threads is not None:
            positive(f"device {self.name}", threads=self.threads)
        if self.launcher != DOCKER and self.engine != LOCAL:
            raise Refused(f"device {self.name}: engine {self.engine} needs launcher: docker")
        if self.simulated is not None and (
            self.emulate != Emulate() or self.accelerator != "auto" or self.threads is not None
        ):
            raise Refused(
                f"device {self.name}: it is simulated, so emulate, accelerator and threads say nothing about it; "
                "leave them out"
            )


@record
class Join:
    """Devices that are not in the file: those that join by `fleetune join` while discovery listens."""

    token_file: str
    """File that holds the token; every device must give the same."""
    wait_s: float = 10.0
    """How long to listen for them."""

    def __post_init__(self) -> None:
        positive("join", wait_s=self.wait_s)


@record
class FleetRequest:
    """The `fleet` section of a run, or a file of configs/fleets."""

    devices: tuple[DeviceRequest, ...] = (DeviceRequest(name="here"),)
    tolerance: float = 0.1
    """A new measurement within this share of the stored one keeps the stored fleet."""
    links: Links | None = None
    """Of a simulated fleet, which needs them; of containers of one engine: what their links are held to. None where
    they are measured as they are."""
    engines: tuple[Engine, ...] = ()
    """Engines that devices name; that of this machine needs no entry."""
    image: str = IMAGE
    """What the containers of devices are made of; `fleetune-mounted` uses code and packages of this machine."""
    join: Join | None = None

    def __post_init__(self) -> None:
        if not self.devices and self.join is None:
            raise Refused("fleet: devices is empty; name at least one")
        distinct("fleet", "device name", (device.name for device in self.devices))
        positive("fleet", tolerance=self.tolerance)
        self._prove_one_kind()
        distinct("fleet", "engine name", (engine.name for engine in self.engines))
        engines = [LOCAL, *(engine.name for engine in self.engines)]
        for device in self.devices:
            one_of(f"device {device.name}", "engine", device.engine, engines)
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
        plain = [device.name for device in self.devices if device.launcher != DOCKER]
        away = [engine.name for engine in self.engines if not engine.is_here]
        used = sorted({device.engine for device in self.devices})
        if real and self.links is not None and (len(used) > 1 or set(used) & set(away)):
            raise Refused(
                f"fleet: links are given, but devices are on engines {', '.join(used)}; only links between containers "
                "of one engine of this machine can be held to a rate: leave links out"
            )
        if real and plain and self.links is not None:
            raise Refused(
                f"fleet: links are given, but {', '.join(plain)} run as processes, whose links are measured as they "
                "are; make all devices launcher: docker or leave links out"
            )
