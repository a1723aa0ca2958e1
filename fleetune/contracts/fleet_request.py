"""The `fleet` section of a run: the requested devices. `contracts.fleet` holds the discovered ones."""

from fleetune.contracts.fleet import DOCKER, IMAGE, LAUNCHERS, LOCAL, Engine, NetworkSpec, SimulatedDevice
from fleetune.contracts.record import check_device_name, distinct, one_of, positive, record
from fleetune.errors import Refused


@record
class Emulate:
    """Limits below what the machine has, so that one machine can host an uneven fleet."""

    cores: float | None = None
    """CPU share in cores: with 0.5 every computation takes twice its CPU time."""
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
    """`process` runs the device's work on this machine, `docker` in containers of its engine."""
    engine: str = LOCAL
    """Name of one of the fleet's engines; `local` is this machine's engine."""
    accelerator: str = "auto"
    """`cpu`, `cuda:N`, or `auto`: an accelerator if there is one."""
    threads: int | None = None
    """Compute threads; None: one per core, or the device's share of the cores (see discovery.devices.thread_counts)."""
    emulate: Emulate = Emulate()
    simulated: SimulatedDevice | None = None
    """Speeds of hardware that does not exist here; in a fleet file also the name of a file in configs/devices."""

    def __post_init__(self) -> None:
        check_device_name(self.name)
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
                f"device {self.name}: it is simulated, so emulate, accelerator and threads do not apply; leave them out"
            )


@record
class Join:
    """Settings for devices outside the fleet file, which join by `fleetune join` while discovery listens."""

    token_file: str
    """File with the token that every joining device must present."""
    wait_s: float = 10.0
    """Seconds to listen for joining devices."""

    def __post_init__(self) -> None:
        positive("join", wait_s=self.wait_s)


@record
class FleetRequest:
    """The `fleet` section of a run, or a file of configs/fleets."""

    devices: tuple[DeviceRequest, ...] = (DeviceRequest(name="here"),)
    tolerance: float = 0.1
    """Relative change of a measurement up to which the stored fleet is kept."""
    links: NetworkSpec | None = None
    """Required for a simulated fleet; for containers of one engine, the rates their links are shaped to. None: links
    are measured as they are."""
    engines: tuple[Engine, ...] = ()
    """Engines that devices refer to by name; this machine's engine needs no entry."""
    image: str = IMAGE
    """Image of the devices' containers; `fleetune-mounted` uses this machine's code and packages."""
    join: Join | None = None

    def __post_init__(self) -> None:
        if not self.devices and self.join is None:
            raise Refused("fleet: devices is empty; name at least one")
        distinct("fleet", "device name", (device.name for device in self.devices))
        positive("fleet", tolerance=self.tolerance)
        self._validate_kind_and_links()
        distinct("fleet", "engine name", (engine.name for engine in self.engines))
        engines = [LOCAL, *(engine.name for engine in self.engines)]
        for device in self.devices:
            one_of(f"device {device.name}", "engine", device.engine, engines)
        names = [device.name for device in self.devices]
        for pair in self.links.pairs if self.links else ():
            for name in (pair.source, pair.target):
                one_of(f"fleet: links.pairs {pair.source} -> {pair.target}", "device", name, names)

    @property
    def simulated(self) -> tuple[str, ...]:
        """Names of the simulated devices: all of the fleet's or none."""
        return tuple(device.name for device in self.devices if device.simulated)

    def _validate_kind_and_links(self) -> None:
        """Refuse a mix of simulated and real devices, and links that are missing or cannot be shaped."""
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
