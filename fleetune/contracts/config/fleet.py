"""Which devices are asked for (what is found is `contracts.fleet`)."""

from fleetune.contracts.fleet import LAUNCHERS
from fleetune.contracts.record import a_name, distinct, one_of, positive, record
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
    accelerator: str = "auto"
    """`auto` takes an accelerator where there is one; else `cpu` or `cuda:N`."""
    emulate: Emulate = Emulate()

    def __post_init__(self) -> None:
        a_name("device", self.name)
        one_of(f"device {self.name}", "launcher", self.launcher, LAUNCHERS)
        if self.accelerator not in ("auto", "cpu") and not self.accelerator.startswith("cuda:"):
            raise Refused(f"device {self.name}: accelerator is {self.accelerator!r}; allowed are auto, cpu, cuda:N")


@record
class FleetRequest:
    """The `fleet` section of a run, or a file of configs/fleets."""

    devices: tuple[DeviceRequest, ...] = (DeviceRequest(name="here"),)
    tolerance: float = 0.1
    """A new measurement within this share of the stored one keeps the stored fleet."""

    def __post_init__(self) -> None:
        if not self.devices:
            raise Refused("fleet: devices is empty; name at least one")
        distinct("fleet", "device name", (device.name for device in self.devices))
        positive("fleet", tolerance=self.tolerance)
