"""A fleet: devices, the container engines that run them, and the directed links between devices."""

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field

from fleetune.contracts.record import (
    check_device_name,
    check_link_ends,
    check_name,
    distinct,
    not_negative,
    positive,
    record,
)
from fleetune.contracts.url_passwords import holds_password
from fleetune.errors import Refused

LOCAL = "local"
"""This machine's engine: DOCKER_HOST if set, else the default socket, else the one of `make engine`."""
IMAGE = "fleetune-train"
"""Name of the training image that `make images` builds."""
SCHEMES = ("unix", "ssh", "tcp")
BYTES_PER_MBIT = 125_000


@record
class LinkSpec:
    """Rate and latency of one directed link."""

    source: str
    target: str
    mbit_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        owner = f"links: pair {self.source} -> {self.target}"
        positive(owner, mbit_per_s=self.mbit_per_s)
        not_negative(owner, latency_s=self.latency_s)
        check_link_ends(owner, self.source, self.target)

    @property
    def bytes_per_s(self) -> float:
        """The rate in bytes per second."""
        return self.mbit_per_s * BYTES_PER_MBIT


@record
class NetworkSpec:
    """Links of a simulated fleet, or the rates that container links are shaped to: a default and exceptions."""

    mbit_per_s: float
    latency_s: float = 0.0
    pairs: tuple[LinkSpec, ...] = ()

    def __post_init__(self) -> None:
        positive("links", mbit_per_s=self.mbit_per_s)
        not_negative("links", latency_s=self.latency_s)
        distinct("links", "pair", (f"{pair.source} -> {pair.target}" for pair in self.pairs))

    def link(self, source: str, target: str) -> LinkSpec:
        """Return the specification of one directed link."""
        for pair in self.pairs:
            if (pair.source, pair.target) == (source, target):
                return pair
        return LinkSpec(source=source, target=target, mbit_per_s=self.mbit_per_s, latency_s=self.latency_s)


@record
class Engine:
    """A named container engine: its address, certificates, and the address of its machine."""

    name: str
    address: str
    """`unix:///PATH`, `ssh://[USER@]HOST[:PORT]` or `tcp://HOST:PORT` (always with mutual TLS)."""
    tls: str | None = None
    """Folder with ca.pem, cert.pem and key.pem; required for `tcp` addresses and refused for others."""
    reach: str | None = None
    """Address under which other devices reach the machine; by default the host of `address`."""

    def __post_init__(self) -> None:
        check_name("engine", self.name)
        owner = f"engine {self.name}"
        if self.name == LOCAL:
            raise Refused(f"{owner}: this name means the engine of this machine; choose another")
        if holds_password(self.address):
            raise Refused(
                f"{owner}: its address holds a password, which would be kept with the run and shown; leave it out and "
                "let ssh use a key"
            )
        try:
            parts = urlsplit(self.address)
            port = parts.port
        except ValueError:
            raise Refused(f"{owner}: address {self.address!r} has no usable port; write tcp://HOST:PORT") from None
        complete = bool(parts.path.strip("/")) if parts.scheme == "unix" else bool(parts.hostname)
        if parts.scheme not in SCHEMES or not complete:
            raise Refused(
                f"{owner}: address is {self.address!r}; allowed are unix:///PATH, ssh://USER@HOST and tcp://HOST:PORT"
            )
        if parts.scheme == "tcp" and (self.tls is None or port is None):
            raise Refused(
                f"{owner}: {self.address} needs a port and tls, the folder with ca.pem, cert.pem and key.pem: "
                "an engine without client authentication gives anyone control of its machine"
            )
        if parts.scheme != "tcp" and self.tls is not None:
            raise Refused(f"{owner}: tls is for tcp:// addresses; leave it out")
        if ":" in self.host:  # links, networks of containers and the limits of their rates are IPv4
            raise Refused(
                f"{owner}: {self.host!r} is an IPv6 address, at which its containers would not listen, or has a port; "
                "give a reach: a name or an IPv4 address, without a port, at which the other devices find its machine"
            )

    @property
    def is_here(self) -> bool:
        """True if the engine's containers can mount folders of this machine."""
        return self.address.startswith("unix:")

    @property
    def host(self) -> str:
        """Host name or IP address of the engine's machine; empty for this machine."""
        return self.reach or urlsplit(self.address).hostname or ""


ANY = "any"


@record
class ModelSpeed:
    """Speed of a simulated device for one model type.

    One pass (forward or backward) over y samples of a unit takes
    `layers · layer_s + y · FLOPs / flops_per_s`: small batches do not fill a GPU, so time is not proportional to y.
    """

    model: str = ANY
    """A Hugging Face model_type such as `resnet`; `any` applies to all types without their own speed."""
    flops_per_s: float
    layer_s: float = 0.0
    """Fixed seconds per layer and pass, independent of the batch size."""
    inferred: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True if the speed was inferred instead of measured; the config file states from what."""

    def __post_init__(self) -> None:
        positive(f"speed of {self.model}", flops_per_s=self.flops_per_s)
        not_negative(f"speed of {self.model}", layer_s=self.layer_s)


@record
class SimulatedDevice:
    """A device that exists only as numbers, to plan for: its memory for training, and a speed per model type."""

    memory_bytes: int
    speeds: tuple[ModelSpeed, ...]

    def __post_init__(self) -> None:
        positive("simulated", memory_bytes=self.memory_bytes)
        if not self.speeds:
            raise Refused("simulated: speeds is empty; give at least one flops_per_s")
        distinct("simulated", "speed of model", (speed.model for speed in self.speeds))

    def speed(self, device: str, model: str) -> ModelSpeed:
        """Return the speed for a model_type. Refused: a type without a speed; the error lists the known ones."""
        found = {speed.model: speed for speed in self.speeds}
        if model in found or ANY in found:
            return found.get(model) or found[ANY]
        raise Refused(
            f"device {device}: it is simulated and has speeds for {', '.join(found)}, none for {model!r}; "
            f"add one to simulated.speeds (model: {model}, or {ANY})"
        )


PROCESS, DOCKER = "process", "docker"
LAUNCHERS = (PROCESS, DOCKER)


@record
class Device:
    """One machine as discovery found it."""

    name: str
    memory_bytes: int
    """Memory that training may use, the runtime's own included."""
    cores: float
    """CPU cores that the device computes with; fewer than the machine has if emulated."""
    threads: Annotated[int, Field(exclude_if=lambda value: value == 1)] = 1
    """Compute threads, the same for profiling and training; never more than `cores`."""
    accelerator: str = "cpu"
    """Torch device of the tensors: `cpu` or `cuda:N`."""
    accelerator_name: Annotated[str, Field(exclude_if=lambda value: not value)] = ""
    """Name of the GPU, as torch says it; empty for a CPU and in fleets of older versions."""
    launcher: str = PROCESS
    engine: Annotated[str, Field(exclude_if=lambda value: value == LOCAL)] = LOCAL
    """Name of the engine that runs the device's containers."""
    fingerprint: str
    """Digest of the machine, its software and its emulated limits; part of the profile cache's key."""
    emulated: bool = False
    link_cpu_s_per_byte: float = 0.0
    """CPU seconds per byte sent or received, mostly for encryption."""
    simulated: Annotated[SimulatedDevice | None, Field(exclude_if=lambda value: value is None)] = None
    """Speeds of a simulated device; None, and left out of the JSON form, for a real one."""

    def __post_init__(self) -> None:
        check_device_name(self.name)
        positive(f"device {self.name}", memory_bytes=self.memory_bytes, cores=self.cores, threads=self.threads)
        not_negative(f"device {self.name}", link_cpu_s_per_byte=self.link_cpu_s_per_byte)

    @property
    def computes_on(self) -> str:
        """The accelerator, with its name where it has one, for people."""
        return f"{self.accelerator}, {self.accelerator_name}" if self.accelerator_name else self.accelerator


@record
class Link:
    """One direction between two devices: a message of n bytes takes latency_s + n / bytes_per_s."""

    source: str
    target: str
    latency_s: float
    bytes_per_s: float
    fit_error: float = 0.0
    """Median relative error of the linear fit to the probe's times."""

    def __post_init__(self) -> None:
        owner = f"link {self.source} -> {self.target}"
        positive(owner, bytes_per_s=self.bytes_per_s)
        not_negative(owner, latency_s=self.latency_s, fit_error=self.fit_error)
        check_link_ends(owner, self.source, self.target)


@record
class Machine:
    """A machine that several devices share."""

    cores: float
    """Processors of the machine, which all its devices share."""
    devices: tuple[str, ...]
    """At least two."""

    def __post_init__(self) -> None:
        positive("machine", cores=self.cores)
        if len(self.devices) < 2:
            raise Refused(f"machine of {', '.join(self.devices) or 'no device'}: it needs at least two devices")


@record
class Fleet:
    """The `fleet` artifact: every device, and a link for every ordered pair of them."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    engines: Annotated[tuple[Engine, ...], Field(exclude_if=lambda value: not value)] = ()
    image: Annotated[str, Field(exclude_if=lambda value: value == IMAGE)] = IMAGE
    """Image of the devices' containers."""
    emulated_links: Annotated[NetworkSpec | None, Field(exclude_if=lambda value: value is None)] = None
    """Rates that links between containers are shaped to; `links` holds what was measured under them."""
    machines: Annotated[tuple[Machine, ...], Field(exclude_if=lambda value: not value)] = ()
    """Those that several devices share, whose messages all compete for its processors; none in simulated fleets."""

    def __post_init__(self) -> None:
        if not self.devices:
            raise Refused("fleet: it needs at least one device")
        names = [device.name for device in self.devices]
        distinct("fleet", "device name", names)
        placed = [name for machine in self.machines for name in machine.devices]
        distinct("fleet", "device on a machine", placed)
        for name in placed:
            if name not in names:
                raise Refused(f"fleet: a machine has device {name!r}; the fleet has {', '.join(names)}")
        pairs = {(link.source, link.target) for link in self.links}
        wanted = {(a, b) for a in names for b in names if a != b}
        if pairs != wanted or len(self.links) != len(wanted):
            odd = sorted(pairs ^ wanted) or [("a pair", "given twice")]
            raise Refused(f"fleet: links must cover every ordered pair of devices once (at fault: {odd[0]})")

    @property
    def simulated(self) -> tuple[str, ...]:
        """Names of the simulated devices."""
        return tuple(device.name for device in self.devices if device.simulated)

    def without(self, lost: Collection[str]) -> "Fleet":
        """Return the fleet that is left; Refused if nothing is, or for a device that it does not have."""
        for name in lost:
            self.device(name)
        kept = (tuple(name for name in machine.devices if name not in lost) for machine in self.machines)
        return replace(
            self,
            devices=tuple(device for device in self.devices if device.name not in lost),
            links=tuple(link for link in self.links if not {link.source, link.target} & set(lost)),
            machines=tuple(
                replace(machine, devices=names)
                for machine, names in zip(self.machines, kept, strict=True)
                if len(names) > 1
            ),
        )

    def check_real(self) -> None:
        """Refused if a device is simulated, since it cannot train."""
        if odd := self.simulated:
            raise Refused(f"device {odd[0]} is simulated: a run with it ends after plan; use --until plan")

    def device(self, name: str) -> Device:
        """Return the device called `name`. Refused: an unknown name; the error lists the known ones."""
        for device in self.devices:
            if device.name == name:
                return device
        raise Refused(f"fleet: no device {name!r}; it has {', '.join(d.name for d in self.devices)}")

    def link(self, source: str, target: str) -> Link:
        """Return the directed link between two devices. Refused: a pair without a link."""
        for link in self.links:
            if (link.source, link.target) == (source, target):
                return link
        raise Refused(f"fleet: no link {source} -> {target}")
